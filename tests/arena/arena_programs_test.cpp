// SPDX-License-Identifier: Apache-2.0
// arena tests: random programs with several arenas on a small GPU. Sizes lie around those at which
// blocks share stretches. After each operation figures and places are held against a list of live
// memory, and each refusal against the chunks in use and the gaps of the arena.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

class Program {
 public:
  explicit Program(std::uint64_t seed) : random_(seed), world_(scene()) {
    for (int i = 0; i < 3; ++i) streams_.push_back(world_.stream());
    for (int i = 0; i < 3; ++i) arenas_.push_back(make());
    world_.pool().reports().add_event_callback(
        report::bit_of(report::EventKind::arena_grow) |
            report::bit_of(report::EventKind::arena_shrink),
        [this](const report::ReportedEvent& event) { note(event); });
  }
  ~Program() {
    if (capturing_) end_capture();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The first fault; empty: none.
  std::string step() {
    if (below(150) == 0) is_growing_ = !is_growing_;
    const std::uint64_t kind = below(100);
    if (kind < (is_growing_ ? 55 : 30)) return allocate(arenas_[below(arenas_.size())]);
    if (kind < 78) return end();
    if (kind < 88) return allocate_outside();
    if (capturing_) return kind < 90 ? end_capture() : "";
    Arena& in = arenas_[below(arenas_.size())];
    switch (kind) {
      case 88:
      case 89: return use();
      case 90: return record_use();
      case 91: return trim(in);
      case 92: return below(4) == 0 ? release(in) : "";
      case 93: return below(10) == 0 ? pin(in) : "";
      case 94: return below(4) == 0 ? capture() : "";
      case 95: return in.is_asleep ? resume(in) : suspend(in);
      case 96: return settle();
      case 97: world_.sim().advance_host_ns(below(2'000'000)); return check();
      default: return take_at(in);
    }
  }
  std::string history() const {
    std::string all;
    for (const std::string& each : history_) all += each + "\n";
    return all;
  }

 private:
  struct Arena {
    ArenaId id{};
    arena::ArenaOptions options;
    bool is_pinned = false;
    bool is_asleep = false;
  };
  struct Live {
    AddressRange range;  // as the pool rounds it
    Bytes requested = 0;
    ArenaId arena{};
    std::optional<std::size_t> stream;  // nullopt: any
  };
  struct Stretch {
    AddressRange range;
    ArenaId arena{};
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    history_.push_back(fmt::format(format, std::forward<Args>(args)...));
    if (history_.size() > 60) history_.pop_front();
  }

  WorldOptions scene() {
    const std::uint64_t kind = below(4);
    WorldOptions options = kind == 0   ? page_world()
                           : kind == 1 ? page_by_page_world()
                                       : adaptive_world();
    capacity_ = (40 + below(400)) * kPage;
    options.config.limits.capacity = capacity_;
    constexpr settings::Prefer kPrefer[] = {settings::Prefer::footprint, settings::Prefer::latency,
                                            settings::Prefer::balanced, settings::Prefer::balanced};
    options.config.prefer = kPrefer[below(4)];
    say("scene {}, {} pages", kind, capacity_ / kPage);
    return options;
  }
  Arena make() {
    const std::uint64_t kind = below(10);
    arena::ArenaOptions options;
    options.one_chunk = kind == 0;
    options.splits = kind != 1;
    options.is_exact = kind >= 8;
    const Arena made{make_arena(world_, options), options};
    say("arena {} of kind {}", number(made.id), kind);
    return made;
  }
  static std::uint64_t number(ArenaId id) { return static_cast<std::uint64_t>(id); }
  pool::Stream handle_of(std::optional<std::size_t> stream) const {
    return stream ? pool::Stream(streams_[*stream]) : std::nullopt;
  }

  void note(const report::ReportedEvent& event) {
    const AddressRange part{event.ptr, event.bytes};
    if (event.kind == report::EventKind::arena_grow) {
      stretches_[part.begin] = {part, ArenaId{event.arena}};
      return;
    }
    const auto whole = std::prev(stretches_.upper_bound(part.begin));
    const Stretch stretch = whole->second;
    EXPECT_TRUE(stretch.range.contains(part));
    stretches_.erase(whole);
    for (const AddressRange rest :
         {AddressRange{stretch.range.begin, part.begin - stretch.range.begin},
          AddressRange{part.end(), stretch.range.end() - part.end()}})
      if (!rest.empty()) stretches_[rest.begin] = {rest, stretch.arena};
  }

  // --- what must hold

  Arena* find(ArenaId id) {
    for (Arena& each : arenas_)
      if (each.id == id) return &each;
    return nullptr;
  }
  bool is_asleep(const Live& live) {
    const Arena* const in = find(live.arena);
    return in != nullptr && in->is_asleep;
  }
  bool has_live(AddressRange range) const {
    const auto after = live_.lower_bound(range.end());
    return after != live_.begin() && std::prev(after)->second.range.overlaps(range);
  }
  const Stretch* stretch_around(AddressRange range) const {
    const auto after = stretches_.lower_bound(range.end());
    if (after == stretches_.begin()) return nullptr;
    const Stretch& before = std::prev(after)->second;
    return before.range.overlaps(range) ? &before : nullptr;
  }

  std::string check() {
    if (std::string broken = world_.pool().reports().validate(); !broken.empty()) return broken;
    const observe::Statistics now = world_.statistics();
    Bytes requested = 0, taken = 0;
    std::uint64_t count = 0;
    for (const auto& [begin, each] : live_) {
      if (is_asleep(each)) continue;
      requested += each.requested;
      taken += each.range.size;
      ++count;
    }
    if (now.live_bytes != requested || now.live_allocations != count)
      return fmt::format("{} bytes live in {}, {} in {} counted", requested, count, now.live_bytes,
                         now.live_allocations);
    const Bytes idle = now.free_bytes + now.small_free_bytes;
    if (now.allocated_bytes != taken || now.mapped_bytes != taken + idle)
      return fmt::format("{} bytes taken, {} counted, {} idle of {}", taken, now.allocated_bytes,
                         idle, now.mapped_bytes);
    if (now.mapped_bytes > capacity_) return "more is mapped than may be";
    return now.pending_bytes > idle ? "more is pending than idle" : "";
  }

  // Whether free memory of the arena fits once all work is over.
  bool has_gap(const Arena& in, Bytes bytes, Bytes alignment) const {
    for (const auto& [begin, stretch] : stretches_) {
      if (stretch.arena != in.id) continue;
      DevicePtr from = begin;
      const auto fits = [&](DevicePtr end) {
        const DevicePtr at = align_up(from, std::max(alignment, arena::kGrain));
        return at <= end && end - at >= round_up(bytes, arena::kGrain);
      };
      for (auto live = live_.lower_bound(begin);
           live != live_.end() && live->first < stretch.range.end(); ++live) {
        if (fits(live->first)) return true;
        from = live->second.range.end();
      }
      if (fits(stretch.range.end())) return true;
    }
    return false;
  }
  // Note [A stretch is in use as a whole]
  bool is_in_use(AddressRange chunk) {
    if (has_live(chunk)) return true;
    const Stretch* const stretch = stretch_around(chunk);
    const Arena* const in = stretch == nullptr ? nullptr : find(stretch->arena);
    if (in == nullptr) return false;
    const bool is_whole = !in->options.splits || in->options.one_chunk;
    return in->is_pinned || (is_whole && has_live(stretch->range));
  }
  Bytes used() {
    Bytes bytes = 0;
    for (const AddressRange& chunk : world_.pool().reports().layout().chunks)
      if (is_in_use(chunk)) bytes += chunk.size;
    return bytes;
  }
  // Nobody can wait for what is pending during a capture.
  std::string refused(const Error& error, Bytes rounded) {
    say("  refused");
    if (error.code != ErrorCode::out_of_memory) return error.message;
    if (!capturing_ && used() + rounded <= capacity_)
      return fmt::format("refused with {} of {} in use: {}", used(), capacity_, error.message);
    return check();
  }

  std::string take_over(DevicePtr ptr, Bytes bytes, ArenaId arena,
                        std::optional<std::size_t> stream) {
    const auto info = world_.pool().query(ptr);
    if (!info || info.value().begin != ptr || info.value().requested != bytes ||
        info.value().arena != arena)
      return "a query knows another allocation";
    const Live live{{ptr, info.value().usable}, bytes, arena, stream};
    if (has_live(live.range)) return "it overlaps live memory";
    const Stretch* const stretch = stretch_around(live.range);
    if (stretch == nullptr ? arena != ArenaId{}
                           : stretch->arena != arena || !stretch->range.contains(live.range))
      return "it is outside of the arena";
    live_[ptr] = live;
    if (below(3) == 0) write(live);
    return check();
  }

  // --- operations

  Bytes size() {
    const auto near = [&](Bytes bytes) { return bytes - 1024 + below(2049); };
    switch (below(12)) {
      case 0: return near(kPage / 2);
      case 1: return near(5 * kPage);
      case 2: return near(10 * kPage);
      case 3: return near((1 + below(5)) * kPage);
      case 4: return 1 + below(kPage / 2);
      case 5: return 1 + below(12 * kPage);
      case 6: return (1 + below(5)) * kPage;
      case 7: return kPage + kPage / 10;
      case 8: return 1 + below(2000);
      case 9: return 1 + below(5 * kPage);
      case 10: return below(8) == 0 ? 1 + below(40 * kPage) : kPage / 2 + below(kPage);
      default: return kPage * 3 / 2;
    }
  }
  // One call of the driver fails, or all from it on.
  bool plan_fault() {
    if (below(12) != 0) return false;
    constexpr driver::Call kCalls[] = {driver::Call::mem_create, driver::Call::mem_map,
                                       driver::Call::mem_set_access,
                                       driver::Call::mem_address_reserve};
    driver::FaultPlan plan;
    plan.calls = {kCalls[below(4)]};
    plan.nth = 1 + below(12);
    if (below(3) == 0) plan.repeat = driver::FaultPlan::Repeat::from_then_on;
    world_.faults().set_plan(plan);
    return true;
  }

  std::string allocate(Arena& in) {
    const std::size_t stream = capturing_ && below(2) == 0 ? *capturing_ : below(streams_.size());
    const bool captures = capturing_ == stream;
    const std::optional<std::size_t> named =
        captures || below(12) != 0 ? std::optional(stream) : std::nullopt;
    const Bytes bytes = size();
    const Bytes alignment = below(6) == 0 ? Bytes{512} << below(15) : 0;
    const bool has_fault = plan_fault();
    say("allocate {} aligned to {} in {} on {}{}", bytes, alignment, number(in.id),
        named ? static_cast<int>(stream) : -1, has_fault ? ", with faults" : "");
    const auto made = world_.pool().allocate({bytes, alignment, handle_of(named), in.id});
    world_.faults().clear_plan();
    if (in.is_asleep) return made.ok() ? "allocated in a suspended arena" : check();
    in.is_pinned = in.is_pinned || captures;
    if (made && !is_aligned(made.value(), std::max(alignment, arena::kGrain))) return "not aligned";
    if (made) return take_over(made.value(), bytes, in.id, named);
    if (has_fault) return check();
    if (!capturing_ && !in.is_pinned && in.options.splits && has_gap(in, bytes, alignment))
      return "free in the arena, and refused: " + made.error().message;
    return refused(made.error(), round_up(bytes, kPage));
  }
  std::string allocate_outside() {
    if (capturing_) return "";
    const Bytes bytes = below(3) == 0 ? kPage + below(20 * kPage) : 1 + below(kPage);
    const std::size_t stream = below(streams_.size());
    const bool has_fault = plan_fault();
    say("allocate {} on {}{}", bytes, stream, has_fault ? ", with faults" : "");
    const auto made = world_.pool().allocate({bytes, 0, streams_[stream]});
    world_.faults().clear_plan();
    if (made) return take_over(made.value(), bytes, ArenaId{}, stream);
    return has_fault ? check() : refused(made.error(), round_up(bytes + bytes / 32, kPage));
  }
  // The pool knows the places of the memory, so none is wrong.
  std::string take_at(Arena& in) {
    if (in.is_asleep || !in.options.splits || stretches_.empty()) return "";
    if (std::string wrong = settle(); !wrong.empty()) return wrong;
    auto at = stretches_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(stretches_.size())));
    if (at->second.arena != in.id) return "";
    const AddressRange within = at->second.range;
    const AddressRange part{within.begin + below(within.size / arena::kGrain) * arena::kGrain,
                            1 + below(below(2) == 0 ? 4096 : 3 * kPage)};
    const AddressRange whole{part.begin, round_up(part.size, arena::kGrain)};
    say("allocate {} at {:#x} in {}", part.size, to_integer(part.begin), number(in.id));
    const auto made = world_.pool().arenas().allocate_at(in.id, part, streams_[0]);
    if (made.ok() != (within.contains(whole) && !has_live(whole)))
      return "a place is free or is not: " + message_of(made);
    return made ? take_over(made.value(), part.size, in.id, 0) : check();
  }

  const Live* any_live() {
    if (live_.empty()) return nullptr;
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(live_.size())));
    return &at->second;
  }
  std::string end() {
    const Live* const live = any_live();
    if (live == nullptr) return "";
    std::optional<std::size_t> stream = live->stream;
    if (stream && below(6) == 0) stream = below(streams_.size());
    if (below(10) == 0) stream.reset();
    if (capturing_ && stream == capturing_) {
      Arena* const in = find(live->arena);
      if (in == nullptr) return "";
      in->is_pinned = true;
    }
    say("free {:#x} of {} on {}", to_integer(live->range.begin), number(live->arena),
        stream ? static_cast<int>(*stream) : -1);
    const DevicePtr ptr = live->range.begin;
    live_.erase(ptr);
    world_.deallocate(ptr, handle_of(stream));
    return check();
  }
  void write(const Live& live) {
    if (capturing_ || !live.stream || is_asleep(live)) return;
    world_.use(live.range.begin, live.requested, streams_[*live.stream],
               below(8) == 0 ? 3'000'000 : 20'000);
  }
  std::string use() {
    if (const Live* const live = any_live()) write(*live);
    return "";
  }
  std::string record_use() {
    const Live* const live = any_live();
    if (live == nullptr) return "";
    const std::size_t stream = below(streams_.size());
    say("use {:#x} on {}", to_integer(live->range.begin), stream);
    EXPECT_TRUE(world_.pool().record_use(live->range.begin, streams_[stream]).ok());
    return check();
  }

  std::string settle() {
    say("settle");
    world_.sim().run_until_idle();
    world_.wait();
    if (std::string wrong = check(); !wrong.empty()) return wrong;
    return world_.statistics().pending_bytes == 0 ? "" : "work is over, and memory pending";
  }
  std::string trim(Arena& in) {
    say("trim {}", number(in.id));
    const Bytes given = test::trim(world_, in.id);
    if (in.is_pinned) return given == 0 ? check() : "a pinned arena gave memory";
    if (in.is_asleep) return check();
    for (const AddressRange& chunk : world_.pool().reports().layout().chunks) {
      const Stretch* const stretch = stretch_around(chunk);
      if (stretch != nullptr && stretch->arena == in.id &&
          !has_live(in.options.one_chunk ? stretch->range : chunk))
        return "an idle chunk stayed";
    }
    return check();
  }
  std::string release(Arena& in) {
    if (in.is_asleep) return "";
    say("release {}", number(in.id));
    test::release(world_, in.id);
    in = make();
    return check();
  }
  std::string pin(Arena& in) {
    say("pin {}", number(in.id));
    test::pin(world_, in.id);
    in.is_pinned = true;
    return check();
  }
  std::string capture() {
    if (std::string wrong = settle(); !wrong.empty()) return wrong;
    capturing_ = below(streams_.size());
    say("capture on {}", *capturing_);
    EXPECT_TRUE(world_.pool().streams().capture_begin().ok());
    begin_capture(world_, streams_[*capturing_], driver::CaptureMode::relaxed);
    return "";
  }
  std::string end_capture() {
    say("end of the capture");
    destroy(world_, test::end_capture(world_, streams_[*capturing_]));
    capturing_.reset();
    EXPECT_TRUE(world_.pool().streams().capture_end().ok());
    return check();
  }
  std::string suspend(Arena& in) {
    if (in.is_pinned) return "";
    if (std::string wrong = settle(); !wrong.empty()) return wrong;
    say("suspend {}", number(in.id));
    const auto done =
        world_.pool().suspension().suspend(in.id, {false, false, false, std::nullopt});
    if (!done) return done.error().message;
    in.is_asleep = true;
    return check();
  }
  std::string resume(Arena& in) {
    say("resume {}", number(in.id));
    const auto done = world_.pool().suspension().resume(in.id, {});
    if (!done && done.error().code != ErrorCode::out_of_memory) return done.error().message;
    in.is_asleep = !done.ok();
    return check();
  }

  std::mt19937_64 random_;
  std::deque<std::string> history_;
  Bytes capacity_ = 0;
  PoolWorld world_;
  std::vector<StreamHandle> streams_;
  std::vector<Arena> arenas_;
  std::map<DevicePtr, Stretch> stretches_;
  std::map<DevicePtr, Live> live_;
  std::optional<std::size_t> capturing_;
  bool is_growing_ = true;
};

std::uint64_t number_in(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(ArenaPrograms, agree_with_a_list_of_live_memory) {
  const std::uint64_t first = number_in("VPMM_SEED", 1);
  for (std::uint64_t seed = first; seed < first + number_in("VPMM_ARENA_SEEDS", 12); ++seed) {
    Program program(seed);
    for (int i = 0; i < 1000; ++i) {
      const std::string wrong = program.step();
      ASSERT_TRUE(wrong.empty() && !HasFailure())
          << wrong << "\nstep " << i << " of VPMM_SEED=" << seed << " vpmm_test_arena:\n"
          << program.history();
    }
  }
}

}  // namespace
}  // namespace vpmm::test
