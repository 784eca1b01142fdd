// pool: whatever there is and whatever is asked for, plans keep what strategies promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

// Draws a state, which it prints as the calls that make it, and asks.
class Dice {
 public:
  Dice(std::uint64_t seed, PlanWorld& world) : random_(seed), world_(world) {}

  void draw_state() {
    Bytes first = below(4);
    for (std::uint64_t regions = 1 + below(8); regions > 0; --regions) {
      if (one_in(3)) first += one_in(3) ? 60 : below(5);  // a hole
      if (one_in(5)) {
        world_.allocated(first, 1);
        say("allocated({}, 1);", first);
        ++first;
        continue;
      }
      const Vector<Bytes> sizes = draw_chunks();
      Bytes pages = 0;
      std::string text;
      for (const Bytes size : sizes) {
        pages += size;
        text += (text.empty() ? "" : ", ") + std::to_string(size);
      }
      if (first + pages > 500) return;  // 400 stay a hole, so no address space is short
      const auto [stamp, stamp_text] = draw_stamp();
      world_.map_free(first, sizes, stamp);
      say("map_free({}, {{{}}}{});", first, text, stamp_text);
      if (one_in(8)) move_from(first);
      first += pages;
    }
  }

  Ask draw_ask() {
    static constexpr Bytes kAlignments[] = {1, 1, 1, 2, 8};
    Ask ask = world_.ask(log_uniform(one_in(2) ? 250 : 20));
    ask.alignment = kAlignments[below(5)] * kPage;
    if (one_in(4)) ask.own.reset();
    ask.takes_waiting = ask.own && one_in(3);
    if (one_in(2)) ask.slack = below(ask.size / kPage / 2 + 1) * kPage;
    if (one_in(3)) ask.growth_room = below(200) * kPage;
    ask.early_growth = below(100) * kPage;
    return ask;
  }
  const std::string& code() const { return code_; }

 private:
  std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  Bytes log_uniform(Bytes most) {
    const double exponent = std::uniform_real_distribution<double>(0, std::log2(static_cast<double>(most)))(random_);
    return static_cast<Bytes>(std::exp2(exponent));
  }
  template <typename... T>
  void say(fmt::format_string<const T&...> format, const T&... values) {
    code_ += "  " + fmt::format(format, values...) + "\n";
  }

  Vector<Bytes> draw_chunks() {
    const Bytes most = one_in(3) ? 128 : 8;
    Vector<Bytes> sizes(1 + below(4));
    for (Bytes& size : sizes) size = log_uniform(most);
    return sizes;
  }
  std::pair<time::Stamp, std::string> draw_stamp() {
    using Closed = PlanWorld::Closed;
    switch (below(6)) {
      case 0:
      case 1: return {world_.pending(world_.own), ", pending(own)"};
      case 2: return {world_.pending(world_.other), ", pending(other)"};
      case 3:
        if (one_in(2)) return {world_.pending(world_.third), ", pending(third)"};
        return {world_.pending(world_.third, Closed::no), ", pending(third, Closed::no)"};
      default: return {{}, ""};
    }
  }
  void move_from(Bytes first) {
    const Bytes old = 900 + moved_;
    const Bytes pages = world_.chunks.inside({PlanWorld::page(first), 1000 * kPage}).front().chunk->size / kPage;
    if (old + pages > 1000) return;
    world_.moved_from(old, first);
    say("moved_from({}, {});", old, first);
    moved_ += pages;
  }

  std::mt19937_64 random_;
  PlanWorld& world_;
  std::string code_;
  Bytes moved_ = 0;
};

std::string text_of(const Ask& ask) {
  return message_of("size {}, alignment {}, {}{}slack {}, growth_room {}, early_growth {}", ask.size / kPage,
                    ask.alignment / kPage, ask.own ? "own stream, " : "any stream, ",
                    ask.takes_waiting ? "takes waiting, " : "", ask.slack / kPage, ask.growth_room / kPage,
                    ask.early_growth / kPage);
}

// What may be used, seen without the code under test.
struct Usable {
  Usable(PlanWorld& world, const Ask& ask) {
    world.index.for_each([&](const region::Region& region) {
      const bool is_usable = region.state == region::RegionState::free && may_use(world, region.stamp, ask);
      if (!is_usable) return;
      bytes += region.range.size;
      if (stretches.empty() || stretches.back().range.end() != region.range.begin) stretches.push_back({});
      Stretch& last = stretches.back();
      if (last.chunks.empty()) last.range = {region.range.begin, 0};
      last.range.size += region.range.size;
      ++last.regions;
      for (const vm::Mapping& mapping : world.chunks.inside(region.range)) {
        last.chunks.push_back(mapping);
        if (!region.stamp.is_complete() || mapping.chunk->mappings > 1)
          largest_unsplittable = std::max(largest_unsplittable, mapping.chunk->size);
      }
    });
  }
  static bool may_use(const PlanWorld& world, const time::Stamp& stamp, const Ask& ask) {
    const auto parts = stamp.parts();
    const bool is_own = std::all_of(parts.begin(), parts.end(),
                                    [&](const time::StampPart& part) { return ask.own && part.timeline == *ask.own; });
    const bool has_events = std::all_of(parts.begin(), parts.end(), [&](const time::StampPart& part) {
      return (ask.own && part.timeline == *ask.own) || world.timelines.is_waitable(part);
    });
    return is_own || (ask.takes_waiting && has_events);
  }

  struct Stretch {
    AddressRange range;
    std::size_t regions = 0;
    std::vector<vm::Mapping> chunks;
  };
  std::vector<Stretch> stretches;
  Bytes bytes = 0;
  Bytes largest_unsplittable = 0;  // of the chunks that are pending, or still have an old address
};

// The first promise that `plan` breaks; empty: none.
class PlanCheck {
 public:
  PlanCheck(PlanWorld& world, const Ask& ask, const Plan& plan) : world_(world), ask_(ask), plan_(plan) {}

  std::string broken() {
    check_memory();
    check_layout();
    check_sums();
    check_waits();
    return broken_;
  }

 private:
  void expect(bool holds, const char* what) {
    if (!holds && broken_.empty()) broken_ = what;
  }
  void take(const Part& part, const char* what) {
    expect(part.from->state == region::RegionState::free, what);
    expect(part.from->range.contains(part.range) && !part.range.empty(), "a part lies in its region");
    expect(part.stamp == part.from->stamp, "a part has the stamp of its region");
    expect(Usable::may_use(world_, part.stamp, ask_), "only memory that the caller may use");
    Bytes whole = 0;
    for (const vm::Mapping& mapping : world_.chunks.inside(part.range)) whole += mapping.chunk->size;
    expect(whole == part.range.size, "whole chunks");
    for (const AddressRange& other : taken_) expect(!other.overlaps(part.range), "nothing twice");
    taken_.push_back(part.range);
  }

  void check_memory() {
    for (const Part& part : plan_.kept) take(part, "what is kept is free");
    for (const Move& move : plan_.moves) {
      take(move.part, "what moves is free");
      DevicePtr reached = move.part.range.begin;
      for (const vm::Mapping& chunk : move.chunks) {
        expect(chunk.at == reached, "the chunks of a move tile it");
        reached = chunk.range().end();
      }
      expect(reached == move.part.range.end(), "the chunks of a move tile it");
    }
    if (!plan_.split) return;
    const Split& split = *plan_.split;
    take(split.part, "what is split is free");
    expect(split.part.range == split.chunk.range(), "a split is of one chunk");
    expect(split.part.stamp.is_complete() && split.chunk.chunk->mappings == 1, "only a complete chunk is split");
    expect(!split.left.empty() && split.left.size < split.part.range.size, "a split leaves something, and not all");
    expect(split.left.begin == split.part.range.begin || split.left.end() == split.part.range.end(),
           "a split leaves the front or the back of the chunk");
    expect(split.part.range.contains(split.left), "a split leaves part of the chunk");
    expect(sum(split.left_chunks) == split.left.size, "new chunks tile what a split leaves");
  }

  void check_layout() {
    DevicePtr reached = plan_.kept.empty() ? DevicePtr{} : plan_.kept.front().range.begin;
    const DevicePtr kept_begin = reached;
    for (const Part& part : plan_.kept) {
      expect(part.range.begin == reached, "what is kept stands side by side");
      reached = part.range.end();
    }
    expect(is_aligned(plan_.allocation, ask_.alignment), "the allocation is aligned");
    if (plan_.is_hit()) return expect(plan_.allocation == kept_begin, "a hit begins where it is");
    expect(plan_.hole->state == region::RegionState::hole && plan_.hole->range.contains(plan_.mapped),
           "what is mapped lies in a hole");
    const bool is_behind = plan_.mapped.begin == reached;
    const bool is_before = plan_.mapped.end() == kept_begin;
    expect(plan_.kept.empty() || is_behind || is_before, "what is mapped stands beside what is kept");
    expect(plan_.allocation == (plan_.kept.empty() || is_before ? plan_.mapped.begin : kept_begin),
           "the allocation begins with the first of the two");
  }

  void check_sums() {
    expect(plan_.request == ask_.size, "the request is what was asked for");
    expect(plan_.mapped.size == plan_.moved_bytes() + plan_.created_bytes(), "what is mapped is moved or created");
    expect(plan_.kept_bytes() + plan_.mapped.size == plan_.request + plan_.slack, "kept, moved and created are all");
    expect(plan_.slack <= ask_.slack, "slack is within its bound");
    expect(plan_.growth() <= ask_.growth_room, "growth is within its room");
    expect(std::is_sorted(plan_.creates.rbegin(), plan_.creates.rend()), "large chunks first");
  }

  // Of each foreign timeline the latest number, once.
  void check_waits() {
    Map<time::TimelineId, std::uint64_t> wanted;
    const auto add = [&](const time::Stamp& stamp) {
      for (const time::StampPart& part : stamp.parts())
        if (part.timeline != ask_.own) wanted[part.timeline] = std::max(wanted[part.timeline], part.sequence);
    };
    for (const Part& part : plan_.kept) add(part.stamp);
    for (const Move& move : plan_.moves) add(move.part.stamp);
    expect(plan_.waits.size() == wanted.size(), "one wait for each stream");
    for (const time::StampPart& part : plan_.waits)
      expect(wanted.contains(part.timeline) && wanted[part.timeline] == part.sequence, "waits for the latest");
  }

  static Bytes sum(const Vector<Bytes>& sizes) {
    Bytes bytes = 0;
    for (const Bytes size : sizes) bytes += size;
    return bytes;
  }

  PlanWorld& world_;
  const Ask& ask_;
  const Plan& plan_;
  std::vector<AddressRange> taken_;
  std::string broken_;
};

bool has_window(const Usable::Stretch& stretch, const Ask& ask) {
  for (std::size_t first = 0; first < stretch.chunks.size(); ++first) {
    Bytes sum = 0;
    for (std::size_t last = first; last < stretch.chunks.size(); ++last) {
      sum += stretch.chunks[last].chunk->size;
      if (sum >= ask.size && sum <= ask.size + ask.slack) return true;
    }
  }
  return false;
}

// Windows at either end of a region, wherever in a stretch of several.
bool has_window_to_find(PlanWorld& world, const Usable& usable, const Ask& ask) {
  bool has = false;
  world.index.for_each([&](const region::Region& region) {
    if (region.state != region::RegionState::free || !Usable::may_use(world, region.stamp, ask)) return;
    const Vector<vm::Mapping> chunks = world.chunks.inside(region.range);
    for (const bool from_back : {false, true}) {
      Bytes sum = 0;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        sum += chunks[from_back ? chunks.size() - 1 - i : i].chunk->size;
        has = has || (sum >= ask.size && sum <= ask.size + ask.slack);
      }
    }
  });
  return has || std::any_of(usable.stretches.begin(), usable.stretches.end(), [&](const Usable::Stretch& stretch) {
           return stretch.regions > 1 && has_window(stretch, ask);
         });
}

std::string broken_by_fit(PlanWorld& world, const Usable& usable, const Ask& ask, const Decision& decision) {
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan != nullptr) return plan->is_hit() ? "" : "a window needs no call";
  // Where alignment is asked for, not every window is looked for.
  if (ask.alignment == kPage && has_window_to_find(world, usable, ask)) return "there is a window";
  return "";
}

// Note [Nothing idle is pinned], for one plan.
std::string broken_by_stitch(const Usable& usable, const Ask& ask, const Decision& decision) {
  const Bytes lacking = ask.size - std::min(ask.size, usable.bytes);
  if (const NoPlan* const none = std::get_if<NoPlan>(&decision)) {
    if (none->reason == NoPlan::Reason::address_space) return "there is address space";
    const bool may_be_blocked = usable.largest_unsplittable > kPage;
    if (lacking <= ask.growth_room && !may_be_blocked) return "idle memory and growth are enough";
    if (!may_be_blocked && none->missing != lacking - ask.growth_room) return "what is missing is what all lack";
    return "";
  }
  const Plan& plan = std::get<Plan>(decision);
  if (plan.blocked == 0) return plan.growth() == lacking ? "" : "growth is what idle memory lacks";
  if (plan.growth() != plan.blocked) return "a blocked plan creates what the large chunks do not give";
  if (plan.split || usable.largest_unsplittable <= plan.blocked) return "nothing blocks it";
  return "";
}

std::string broken_by_grow(const Ask& ask, const Decision& decision) {
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return "";
  if (!plan->moves.empty() || plan->split) return "growth moves nothing";
  return plan->growth() <= ask.early_growth ? "" : "more than early growth";
}

std::string broken_by(PlanWorld& world, const Ask& ask) {
  const Usable usable(world, ask);
  const auto check = [&](const char* name, Strategy strategy, const auto& own_promises) -> std::string {
    const Decision decision = strategy(world.view(), ask);
    std::string broken = own_promises(decision);
    if (const Plan* const plan = std::get_if<Plan>(&decision); plan != nullptr && broken.empty())
      broken = PlanCheck(world, ask, *plan).broken();
    return broken.empty() ? "" : message_of("not so: {}\n{}: {}", broken, name, PlanWorld::text(decision));
  };
  std::string broken = check("fit", fit, [&](const Decision& d) { return broken_by_fit(world, usable, ask, d); });
  if (broken.empty())
    broken = check("stitch", stitch, [&](const Decision& d) { return broken_by_stitch(usable, ask, d); });
  if (broken.empty()) broken = check("grow", grow, [&](const Decision& d) { return broken_by_grow(ask, d); });
  return broken;
}

constexpr int kAsks = 20;

// A failure tells the promise, the command that replays its seed, and the state as code.
testing::AssertionResult keeps_promises(std::uint64_t seed) {
  Config config;
  config.page_chunks = seed % 7 == 3;
  PlanWorld world(config);
  Dice dice(seed, world);
  dice.draw_state();
  for (int i = 0; i < kAsks; ++i) {
    const Ask ask = dice.draw_ask();
    const std::string broken = broken_by(world, ask);
    if (broken.empty()) continue;
    return testing::AssertionFailure() << broken << "\nasked: " << text_of(ask) << "\nof " << world.index.picture()
                                       << "\n"
                                       << dice.code() << "Replay: VPMM_SEED=" << seed << " " << program_invocation_name
                                       << " --gtest_filter=StrategiesProperty.*";
  }
  return testing::AssertionSuccess();
}

TEST(StrategiesProperty, plans_keep_what_strategies_promise) {
  if (const char* const seed = std::getenv("VPMM_SEED")) {
    EXPECT_TRUE(keeps_promises(std::strtoull(seed, nullptr, 10)));
    return;
  }
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) ASSERT_TRUE(keeps_promises(seed));
}

}  // namespace
}  // namespace vpmm::pool
