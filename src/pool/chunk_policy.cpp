// pool: the two chunk policies.
#include "pool/chunk_policy.hpp"

#include <algorithm>

namespace vpmm::pool {

namespace {

// One chunk per page, moved whenever that saves creating one (specification: MinUse).
class PagePolicy final : public ChunkPolicy {
 public:
  explicit PagePolicy(Bytes page_size) : page_size_(page_size) {}
  const char* name() const override { return "page"; }
  Bytes grow_first(const Demand&) const override { return 0; }
  std::vector<Bytes> chunk_sizes(Bytes shortfall, Bytes) const override {
    return std::vector<Bytes>(shortfall / page_size_, page_size_);
  }
  Prefer preference() const override { return Prefer::waiting; }

 private:
  Bytes page_size_;
};

// Note [Footprint budget]
// A created chunk costs what a moved one does, but moving costs one call per chunk and creating one per shortfall. So
// while mapped memory stays within the budget over the largest use ever seen, grow; from there on, move. A sixteenth of
// the shortfall per chunk keeps chunks large where requests are, and small enough that one of them partly in use does
// not pin much. docs/decisions/0003-footprint-budget.md has the figures.
class AdaptivePolicy final : public ChunkPolicy {
 public:
  AdaptivePolicy(Bytes page_size, Bytes chunk_max)
      : page_size_(page_size), chunk_max_(std::max(round_down(chunk_max, page_size), page_size)) {}
  const char* name() const override { return "adaptive"; }

  Bytes grow_first(const Demand& demand) const override {
    const Bytes budget = demand.peak_used + demand.peak_used / kBudgetDivisor;
    return demand.mapped + demand.missing <= budget ? demand.missing : 0;
  }

  std::vector<Bytes> chunk_sizes(Bytes shortfall, Bytes mapped) const override {
    const Bytes part =
        mapped == 0 ? shortfall : round_up(std::max<Bytes>(shortfall / kChunksPerShortfall, 1), page_size_);
    const Bytes size = std::min(part, chunk_max_);
    std::vector<Bytes> sizes;
    for (Bytes left = shortfall; left > 0; left -= sizes.back()) sizes.push_back(std::min(left, size));
    return sizes;
  }

  Prefer preference() const override { return Prefer::growing; }

 private:
  static constexpr Bytes kBudgetDivisor = 50;  // 2 %
  static constexpr Bytes kChunksPerShortfall = 16;
  Bytes page_size_;
  Bytes chunk_max_;
};

}  // namespace

std::unique_ptr<ChunkPolicy> make_chunk_policy(const Config& config, Bytes page_size) {
  if (config.page_chunks) return std::make_unique<PagePolicy>(page_size);
  return std::make_unique<AdaptivePolicy>(page_size, config.chunk_max);
}

}  // namespace vpmm::pool
