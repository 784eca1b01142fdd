// pool: the two chunk policies.
#include "pool/chunk_policy.hpp"

#include <algorithm>
#include <optional>

#include "base/host_memory.hpp"

namespace vpmm::pool {

namespace {

// One chunk per page, moved whenever that saves creating one (specification: MinUse).
class PagePolicy final : public ChunkPolicy {
 public:
  explicit PagePolicy(Bytes page_size) : page_size_(page_size) {}
  const char* name() const override { return "page"; }
  Bytes grow_first(const Demand&) const override { return 0; }
  Vector<Bytes> chunk_sizes(Bytes shortfall, Bytes) const override {
    return Vector<Bytes>(shortfall / page_size_, page_size_);
  }
  Bytes least_part(const Demand&) const override { return page_size_; }
  bool spares(const Demand&, std::int64_t) const override { return false; }
  Waiting waiting() const override { return Waiting::before_moves; }
  std::uint64_t patience_ns(const Demand&, Bytes) const override { return 0; }
  std::uint64_t hope_ns(const Demand&) const override { return 0; }
  bool wants_proof_now(const Demand&) const override { return false; }
  Placement placement(Bytes, Bytes) const override { return Placement::front; }
  bool sets_apart(const Demand&, std::int64_t) const override { return false; }

 private:
  Bytes page_size_;
};

// What is created is kept for ever. So a pause may be the longer the more would be created and the more is mapped
// beyond the budget already: both together, and of that the part which a pause may spare, are worth this long from this
// part of what is mapped on, or from so many bytes on, for less is no loss however little is mapped. Were it for what
// is created alone, small requests would pause for little each, and add up.
constexpr std::uint64_t kMostPatienceNs = 12'000'000;
constexpr Bytes kMostPatiencePart = 32;
constexpr Bytes kMostPatienceLeast = 128 * kMiB;
constexpr std::uint64_t kShareOfHope = 3;  // of that, for what other threads may free

// What VPMM_PREFER stands for.
struct Taste {
  Bytes budget_permille;  // growth without moving: so much mapped over the largest use
  Bytes apart_permille;   // and so much more for small requests with a chunk of their own
  Bytes chunks;           // a new chunk is the shortfall by this
  Bytes least_divisor;    // but at least mapped memory by this
  Placement placement;
  Waiting waiting;
  bool is_patient;                       // beyond the budget
  std::optional<Bytes> strict_permille;  // every page counts: so much mapped over the most that was asked for
};

constexpr Taste taste_of(Prefer prefer) {
  switch (prefer) {
    case Prefer::footprint: return {0, 0, 32, 4096, Placement::anywhere, Waiting::after_moves, false, 0};
    case Prefer::balanced: return {15, 5, 14, 500, Placement::ends, Waiting::never, true, 36};
    case Prefer::latency: return {100, 0, 8, 100, Placement::ends, Waiting::never, false, std::nullopt};
  }
  return {};
}

// While little is mapped, growth is one chunk: 1 GiB costs 75 us so, and 200 us in pieces of this size (cudaMalloc:
// 80 us). Later on larger chunks would pin more than they save.
constexpr Bytes kLargestLaterChunk = 256 * kMiB;
// Little is at most this part of the shortfall: a program often allocates a few small things before its first large
// one.
constexpr Bytes kLittlePart = 64;

// A part of a chunk is worth a mapping of its own when it is at least this share of the least new chunk.
constexpr Bytes kPartsPerLeastChunk = 5;

// A request is small for a pool when it is at most this share of what is mapped.
constexpr Bytes kSmallShare = 1024;

// Note [Footprint budget]
// A created chunk costs what a moved one does, but moving costs one call per chunk and creating one per shortfall. So
// while mapped memory stays within the budget over the largest use ever seen, grow; from there on, move, and search all
// free ranges for the place that keeps most chunks whole. A share of the shortfall per chunk keeps chunks large where
// requests are, and small enough that one of them partly in use does not pin much; a share of mapped memory at least,
// for what a chunk that small could pin is not worth a call. A small request that would pin as much as it takes is
// better off with a chunk of its own, which later serves others of its size. Once nearly more is mapped than may be,
// for what was asked for, no part of a chunk is too small to be worth a call.
// docs/design/chunk-policy.md has the figures.
class AdaptivePolicy final : public ChunkPolicy {
 public:
  AdaptivePolicy(const Config& config, Bytes page_size)
      : taste_(taste_of(config.prefer)),
        page_size_(page_size),
        early_most_(std::max(round_down(config.chunk_max, page_size), page_size)),
        later_most_(std::min(early_most_, std::max(round_down(kLargestLaterChunk, page_size), page_size))) {}
  const char* name() const override { return "adaptive"; }

  Bytes grow_first(const Demand& demand) const override { return breaks_budget(demand) ? 0 : demand.missing; }

  Vector<Bytes> chunk_sizes(Bytes shortfall, Bytes mapped) const override {
    const bool is_early = mapped <= shortfall / kLittlePart;
    const Bytes part = is_early ? shortfall : round_up(shortfall / taste_.chunks, page_size_);
    const Bytes least = std::max(page_size_, round_down((mapped + shortfall) / taste_.least_divisor, page_size_));
    const Bytes size = std::min(std::max(part, least), is_early ? early_most_ : later_most_);
    Vector<Bytes> sizes;
    for (Bytes left = shortfall; left > 0; left -= sizes.back()) sizes.push_back(std::min(left, size));
    return sizes;
  }

  Bytes least_part(const Demand& demand) const override {
    const bool is_strict = taste_.strict_permille && exceeds(demand.mapped, demand.peak_asked, *taste_.strict_permille);
    if (is_strict) return page_size_;
    return std::max(page_size_, demand.mapped / (kPartsPerLeastChunk * taste_.least_divisor));
  }
  bool spares(const Demand& demand, std::int64_t pinned) const override {
    return pinned >= static_cast<std::int64_t>(least_part(demand)) &&
           breaks_budget({0, 0, demand.mapped, demand.peak_used});
  }
  Waiting waiting() const override { return taste_.waiting; }
  std::uint64_t patience_ns(const Demand& demand, Bytes spared) const override {
    return breaks_budget(demand) ? pause_ns(demand, spared) : 0;
  }
  std::uint64_t hope_ns(const Demand& demand) const override { return pause_ns(demand, demand.missing) / kShareOfHope; }
  bool wants_proof_now(const Demand& demand) const override { return breaks_budget(demand); }
  Placement placement(Bytes mapped, Bytes peak_used) const override {
    return breaks_budget({0, 0, mapped, peak_used}) ? Placement::anywhere : taste_.placement;
  }
  bool sets_apart(const Demand& demand, std::int64_t pinned) const override {
    return pinned >= static_cast<std::int64_t>(demand.request) && demand.request <= demand.mapped / kSmallShare &&
           !breaks_budget(demand, taste_.apart_permille);
  }

 private:
  std::uint64_t pause_ns(const Demand& demand, Bytes spared) const {
    if (!taste_.is_patient) return 0;
    const Bytes limit = with(taste_.budget_permille, demand.peak_used);
    const Bytes beyond = demand.mapped - std::min(demand.mapped, limit);
    const double part = static_cast<double>(std::min(spared, demand.missing)) / static_cast<double>(demand.missing);
    const double stake = part * static_cast<double>(demand.missing + beyond);
    const double enough = static_cast<double>(std::max(demand.mapped / kMostPatiencePart, kMostPatienceLeast));
    return static_cast<std::uint64_t>(std::min(stake / enough, 1.0) * static_cast<double>(kMostPatienceNs));
  }
  bool breaks_budget(const Demand& demand, Bytes extra_permille = 0) const {
    return exceeds(demand.mapped + demand.missing, demand.peak_used, taste_.budget_permille + extra_permille);
  }
  static bool exceeds(Bytes bytes, Bytes limit, Bytes permille) { return bytes > with(permille, limit); }
  static Bytes with(Bytes permille, Bytes bytes) { return bytes + bytes / 1000 * permille; }

  Taste taste_;
  Bytes page_size_;
  Bytes early_most_;
  Bytes later_most_;
};

}  // namespace

std::unique_ptr<ChunkPolicy> make_chunk_policy(const Config& config, Bytes page_size) {
  if (config.page_chunks) return std::make_unique<PagePolicy>(page_size);
  return std::make_unique<AdaptivePolicy>(config, page_size);
}

}  // namespace vpmm::pool
