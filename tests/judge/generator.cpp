// judge: the habits of a random program, and the frequency of its operations.
#include "judge/generator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace vpmm::judge {
namespace {

constexpr std::array<const char*, 3> kPrefer = {"footprint", "balanced", "latency"};
constexpr std::array<const char*, 3> kAnyStream = {"context", "legacy", "park"};
constexpr std::array<const char*, 5> kChunkMax = {"page", "2MiB", "16MiB", "64MiB", "256MiB"};

// How a program behaves from its begin to its end.
struct Habits {
  enum class Life { last_first, first_first, any };
  Life life = Life::any;
  Bytes largest = 0;
  std::uint64_t small_one_in = 2;
  std::vector<Bytes> usual_sizes;  // empty: every size is new
  Bytes most_live = 0;
  std::size_t most_allocations = 0;
  std::uint64_t any_stream_one_in = 8;
  std::uint64_t other_stream_one_in = 3;
  std::uint64_t streams_at_once = 1;  // used at the same time; which ones changes slowly
  bool captures = false;
  bool arenas = false;
  bool resets = false;
  bool limits = false;
};

class Writer {
 public:
  explicit Writer(std::uint64_t seed) : random_(seed) {}
  Program program(std::size_t operations);

 private:
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  Bytes between(Bytes least, Bytes most);
  void draw_setting();
  void draw_variables();
  void draw_habits();

  Bytes size();
  std::uint64_t stream();
  std::uint64_t pool() { return below(setting_.pools); }
  struct Live {
    std::uint64_t id;
    Bytes bytes;
  };
  std::size_t pick() { return static_cast<std::size_t>(below(live_.size())); }
  std::uint64_t some_id() { return live_.empty() ? 0 : live_[pick()].id; }
  std::uint64_t some(const std::vector<std::uint64_t>& ids) {
    return ids.empty() ? 0 : ids[below(ids.size())];
  }
  Operation next();
  Operation allocating();
  Operation allocating_many(Operation first);
  Operation freeing();
  Operation using_it();
  Operation capturing();
  Operation with_arenas();
  Operation limiting();
  Operation rare();
  Operation of_streams();

  std::mt19937_64 random_;
  Setting setting_;
  Habits habits_;
  std::vector<Live> live_;  // oldest first
  Bytes live_bytes_ = 0;
  std::vector<std::uint64_t> freed_;
  std::vector<std::uint64_t> captures_;
  std::vector<std::uint64_t> graphs_;
  std::vector<std::uint64_t> arenas_;
  std::uint64_t next_id_ = 1;
  std::uint64_t first_stream_ = 0;  // of those in use
};

// Spread evenly over the powers of two.
Bytes Writer::between(Bytes least, Bytes most) {
  const double low = std::log2(static_cast<double>(least));
  const double high = std::log2(static_cast<double>(std::max(least, most)));
  return static_cast<Bytes>(
      std::exp2(low + (high - low) * static_cast<double>(below(1 << 20)) / (1 << 20)));
}

// --- setting and habits

void Writer::draw_setting() {
  setting_.seed = random_();
  setting_.pools = one_in(4) ? 2 : 1;
  setting_.threads = one_in(3) ? 2 + below(7) : 1;
  if (one_in(20)) setting_.threads = 65 + below(8);
  constexpr std::array<std::uint64_t, 6> kStreams = {1, 2, 4, 8, 30, 200};
  setting_.streams = kStreams[below(kStreams.size())];
  setting_.gpu_bytes = round_up(between(64 * kMiB, 4 * kGiB), 2 * kMiB);
  setting_.schedule = below(3);
  if (one_in(2)) setting_.lag_ns = between(1000, 20'000'000);
  setting_.has_context_events = one_in(8) ? 0 : 1;
  const std::uint64_t support = below(24);
  setting_.has_vmm = support == 0 ? 0 : 1;
  setting_.has_driver_pool = support == 1 ? 0 : 1;
  setting_.frees_when_short = one_in(5) ? 1 : 0;
  setting_.frees_on_allocating = one_in(8) ? 1 : 0;
  setting_.listens = one_in(4) ? 1 : 0;
  setting_.crowds = setting_.seed % 4 == 3 ? 1 : 0;
}

void Writer::draw_variables() {
  const auto set = [this](const char* name, const std::string& value) {
    setting_.variables.emplace_back(name, value);
  };
  if (one_in(2)) set("VPMM_PREFER", kPrefer[below(3)]);
  if (one_in(2)) set("VPMM_CHUNK_MAX", kChunkMax[below(kChunkMax.size())]);
  if (one_in(6)) set("VPMM_PAGE_SIZE", "8MiB");
  if (one_in(8)) set("VPMM_MAX_MAPPINGS", std::to_string(40 + below(200)));
  if (one_in(8)) set("VPMM_PAGES", std::to_string(below(40)));
  if (one_in(6)) set("VPMM_RELEASE_THRESHOLD", std::to_string(below(512)) + "MiB");
  if (one_in(3))
    set("VPMM_CAPACITY", std::to_string(between(32, setting_.gpu_bytes / kMiB)) + "MiB");
  if (one_in(3)) set("VPMM_ANY_STREAM", kAnyStream[below(3)]);
  if (one_in(8)) set("VPMM_SMALL", "stream_ordered");
  if (one_in(8)) set("VPMM_IPC_ISOLATE", "1");
  for (auto& [name, value] : setting_.variables)  // a page is the least chunk
    if (name == "VPMM_CHUNK_MAX" && value == "2MiB") value = "8MiB";
}

void Writer::draw_habits() {
  habits_.life = static_cast<Habits::Life>(below(3));
  habits_.largest = between(setting_.gpu_bytes / 1000, setting_.gpu_bytes / 3);
  habits_.small_one_in = 1 + below(4);
  for (std::uint64_t i = one_in(2) ? 1 + below(6) : 0; i > 0; --i)
    habits_.usual_sizes.push_back(between(256, habits_.largest));
  habits_.most_live = setting_.gpu_bytes / 100 * (20 + below(100));
  habits_.most_allocations = static_cast<std::size_t>(between(4, 400));
  habits_.any_stream_one_in = 1 + below(12);
  habits_.other_stream_one_in = 1 + below(6);
  habits_.streams_at_once = one_in(3) ? setting_.streams + 2 : 1 + below(setting_.streams);
  habits_.captures = one_in(2);
  habits_.arenas = one_in(2);
  habits_.resets = one_in(4);
  habits_.limits = one_in(2);
}

Program Writer::program(std::size_t operations) {
  draw_setting();
  draw_variables();
  draw_habits();
  Program made{setting_, {}};
  while (made.operations.size() < operations) {
    made.operations.push_back(next());
    if (one_in(64)) made.operations.push_back({.verb = Verb::inspect, .pool = pool()});
  }
  return made;
}

// --- operations

Bytes Writer::size() {
  if (one_in(16)) {  // a border, one byte less or more
    constexpr std::array<Bytes, 9> kBorders = {256,        16 * kKiB,  64 * kKiB,
                                               120 * kKiB, 512 * kKiB, 2 * kMiB,
                                               8 * kMiB,   16 * kMiB,  64 * kMiB};
    return kBorders[below(kBorders.size())] + below(3) - 1;
  }
  if (one_in(400)) return setting_.gpu_bytes << below(12);
  if (!habits_.usual_sizes.empty() && !one_in(8))
    return habits_.usual_sizes[below(habits_.usual_sizes.size())];
  const Bytes drawn = one_in(habits_.small_one_in)
                          ? between(1, 2 * kMiB)
                          : between(std::min(2 * kMiB, habits_.largest), habits_.largest);
  return one_in(2) ? drawn : round_up(drawn, drawn >= 2 * kMiB ? 2 * kMiB : 256);
}

std::uint64_t Writer::stream() {
  const std::uint64_t all = 1 + setting_.threads + setting_.streams;
  if (one_in(64)) first_stream_ = below(all);
  if (one_in(24)) return below(all);
  return (first_stream_ + below(habits_.streams_at_once)) % all;
}

Operation Writer::allocating() {
  Operation made{.verb = Verb::allocate,
                 .id = next_id_++,
                 .pool = pool(),
                 .stream = one_in(habits_.any_stream_one_in) ? kNoStream : stream(),
                 .bytes = size()};
  const std::uint64_t kind = below(24);
  if (kind == 0) return allocating_many(made);
  if (kind < 3) made.verb = Verb::try_allocate;
  if (kind == 3) made.alignment = Bytes{1} << below(26);
  if (kind == 4) made.flag = 1 + below(3);
  if (kind > 16 && !arenas_.empty()) made.arena = some(arenas_);
  live_.push_back({made.id, made.bytes});
  live_bytes_ += made.bytes;
  return made;
}

Operation Writer::allocating_many(Operation first) {
  first.verb = Verb::allocate_many;
  first.count = 1 + below(7);
  next_id_ = first.id + first.count;
  for (std::uint64_t i = 0; i < first.count; ++i) {
    live_.push_back({first.id + i, first.bytes >> i % 3});
    live_bytes_ += live_.back().bytes;
  }
  return first;
}

Operation Writer::freeing() {
  constexpr std::array kVerbs = {
      Verb::free, Verb::free,     Verb::free,          Verb::free_on,  Verb::free_on,
      Verb::free, Verb::free_any, Verb::free_deferred, Verb::try_free, Verb::free_many};
  std::size_t at = pick();
  if (habits_.life == Habits::Life::last_first)
    at = live_.size() - 1 - below(std::min<std::size_t>(3, live_.size()));
  if (habits_.life == Habits::Life::first_first) at = below(std::min<std::size_t>(3, live_.size()));
  Operation made{.verb = kVerbs[below(kVerbs.size())], .id = live_[at].id};
  if (made.verb == Verb::free_on || made.verb == Verb::free_many) made.stream = stream();
  if (made.verb == Verb::free_on) made.flag = below(2);
  if (made.verb == Verb::free_many) made.count = 1 + below(6);
  live_bytes_ -= std::min(live_bytes_, live_[at].bytes);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
  freed_.push_back(made.id);
  return made;
}

Operation Writer::using_it() {
  const std::uint64_t id = some_id();
  if (!one_in(habits_.other_stream_one_in))
    return {.verb = one_in(2) ? Verb::write : Verb::read, .id = id};
  if (one_in(2)) return {.verb = Verb::read_on, .id = id, .stream = stream()};
  return {.verb = Verb::move, .id = id, .stream = stream(), .flag = below(2)};
}

Operation Writer::of_streams() {
  switch (below(12)) {
    case 0: return {.verb = Verb::bind, .pool = pool(), .stream = stream()};
    case 1:
    case 2:
    case 3: return {.verb = Verb::create_stream, .stream = stream(), .flag = below(2)};
    case 4:
    case 5:
      return {.verb = Verb::destroy_stream,
              .stream = stream(),
              .other = stream(),
              .flag = one_in(3) ? 1u : 0u};
    case 6: return {.verb = Verb::spin, .stream = stream(), .ns = between(1000, 100'000'000)};
    default: return {.verb = Verb::order, .stream = stream(), .other = stream()};
  }
}

Operation Writer::capturing() {
  const std::uint64_t kind = below(10);
  if (kind == 0 || (captures_.empty() && graphs_.empty())) {
    captures_.push_back(next_id_++);
    return {.verb = Verb::begin_capture,
            .id = captures_.back(),
            .stream = stream(),
            .count = below(3),
            .flag = below(2)};
  }
  if (kind < 4 && !captures_.empty()) {
    const Operation end{
        .verb = Verb::end_capture, .id = captures_.back(), .flag = one_in(5) ? 1u : 0u};
    captures_.pop_back();
    if (end.flag == 0) graphs_.push_back(end.id);
    return end;
  }
  if (kind == 4) return {.verb = Verb::destroy_graph, .id = some(graphs_), .flag = below(4)};
  return {.verb = Verb::launch, .id = some(graphs_), .stream = stream()};
}

Operation Writer::with_arenas() {
  const std::uint64_t kind = below(8);
  const std::uint64_t id = some(arenas_);
  if (kind == 0) return {.verb = Verb::pin_arena, .id = id};
  if (kind == 1) return {.verb = Verb::trim_arena, .id = id};
  if (kind < 4 && id != 0) {
    arenas_.erase(std::remove(arenas_.begin(), arenas_.end(), id), arenas_.end());
    return {.verb = Verb::release_arena, .id = id};
  }
  arenas_.push_back(next_id_++);
  return {.verb = Verb::create_arena,
          .id = arenas_.back(),
          .pool = pool(),
          .flag = one_in(2) ? 0 : below(4)};
}

Operation Writer::limiting() {
  const Bytes live = std::max<Bytes>(live_bytes_, 8 * kMiB);
  switch (below(8)) {
    case 0:
      return {.verb = Verb::trim,
              .pool = pool(),
              .bytes = one_in(2) ? 0 : between(kMiB, setting_.gpu_bytes)};
    case 1:
      return {.verb = Verb::preallocate,
              .pool = pool(),
              .bytes = between(kMiB, setting_.gpu_bytes / 2)};
    case 2:
    case 3:  // often below or just above the bytes that live
      return {.verb = Verb::set_capacity,
              .pool = pool(),
              .bytes = live / 100 * (60 + below(80)) + 2 * kMiB};
    case 4:
      return {.verb = Verb::set_capacity,
              .pool = pool(),
              .bytes = between(16 * kMiB, setting_.gpu_bytes)};
    case 5: return {.verb = Verb::set_capacity, .pool = pool()};
    default:
      return {.verb = Verb::others_use, .bytes = one_in(2) ? 0 : between(kMiB, setting_.gpu_bytes)};
  }
}

Operation Writer::rare() {
  switch (below(12)) {
    case 0: return {.verb = Verb::free_inside, .id = some_id()};
    case 1:
    case 2: return {.verb = Verb::free_again, .id = some(freed_)};
    case 3: return {.verb = Verb::defer_cleanup, .pool = pool()};
    case 4: return {.verb = Verb::record, .pool = pool()};
    case 5:
    case 6: return {.verb = Verb::synchronize, .pool = pool()};
    case 7: return {.verb = Verb::pass, .ns = below(200'000'000)};
    case 8:
      if (habits_.resets) return {.verb = Verb::reset, .pool = pool(), .flag = below(2)};
      return {.verb = Verb::step, .count = 1000};
    default: return {.verb = Verb::inspect, .pool = pool()};
  }
}

Operation Writer::next() {
  const std::uint64_t kind = below(100);
  if (kind < 4) return of_streams();
  if (kind < 12 && habits_.captures) return capturing();
  if (kind < 15 && habits_.arenas) return with_arenas();
  if (kind < 18 && habits_.limits) return limiting();
  if (kind < 22) return rare();
  if (kind < 27) return {.verb = Verb::step, .count = below(30)};
  if (kind < 32) return {.verb = Verb::pass, .ns = below(200'000)};
  if (kind < 44) return using_it();
  const bool is_full = live_bytes_ > habits_.most_live || live_.size() > habits_.most_allocations;
  if (live_.empty() || (!is_full && kind < 75) || (is_full && kind < 54)) return allocating();
  return freeing();
}

}  // namespace

Program random_program(std::uint64_t seed, std::size_t operations) {
  return Writer(seed).program(operations);
}

}  // namespace vpmm::judge
