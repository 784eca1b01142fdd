// SPDX-License-Identifier: Apache-2.0
// pool: whatever there is and whatever is asked for, plans keep what strategies promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "pool/plan_dice.hpp"
#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

using region::Region;
using region::RegionState;

// --- what there is, seen without the code under test

bool may_use(const PlanWorld& world, const time::Stamp& stamp, const Ask& ask) {
  const auto parts = stamp.parts();
  const auto is_own = [&](const time::StampPart& part) {
    return ask.own && part.timeline == *ask.own;
  };
  return std::all_of(parts.begin(), parts.end(), [&](const time::StampPart& part) {
    return is_own(part) || (ask.takes_waiting && world.timelines.is_waitable(part));
  });
}

// Neighbours that the caller may use, or a hole.
struct Stretch {
  AddressRange range;
  std::size_t regions = 0;
  bool is_hole = false;
};

struct Seen {
  std::vector<Stretch> all;  // by address
  std::vector<const Region*> usable;
  std::vector<vm::Mapping> movable;  // chunks that are wholly idle in one region

  Seen(PlanWorld& world, const Ask& ask) {
    world.index.for_each([&](const Region& region) {
      const bool is_hole = region.state == RegionState::hole;
      const bool is_usable = region.state == RegionState::free && may_use(world, region.stamp, ask);
      if (!is_hole && !is_usable) return;
      const bool goes_on = is_usable && !all.empty() && !all.back().is_hole &&
                           all.back().range.end() == region.range.begin;
      if (!goes_on) all.push_back({{region.range.begin, 0}, 0, is_hole});
      all.back().range.size += region.range.size;
      ++all.back().regions;
      if (!is_usable) return;
      usable.push_back(&region);
      for (DevicePtr p = region.range.begin; p < region.range.end(); p = p + world.tuning.grain) {
        const vm::Mapping mapping = world.chunks.around(p);
        if (mapping.at == p && mapping.end() <= region.range.end()) movable.push_back(mapping);
      }
    });
  }
  Bytes movable_bytes(AddressRange except) const {
    Bytes bytes = 0;
    for (const vm::Mapping& mapping : movable)
      if (!except.overlaps(mapping.range())) bytes += mapping.chunk->size;
    return bytes;
  }
  Bytes largest_movable() const {
    Bytes largest = 0;
    for (const vm::Mapping& mapping : movable) largest = std::max(largest, mapping.chunk->size);
    return largest;
  }
};

// Where `ask` may begin at `alignment` in `range`; none: it does not fit.
std::optional<DevicePtr> first_place(AddressRange range, const Ask& ask, Bytes grain) {
  for (DevicePtr p = range.begin; p + ask.size <= range.end(); p = p + grain)
    if (is_aligned(p, ask.alignment)) return p;
  return std::nullopt;
}
DevicePtr last_place(AddressRange range, const Ask& ask, Bytes grain) {
  DevicePtr p = range.end() - ask.size;
  while (!is_aligned(p, ask.alignment)) p = p - grain;
  return p;
}

struct Beside {
  AddressRange kept;
  Bytes hole = 0;
};

// The largest end of a stretch beside a hole that is large enough for the rest, in whole pages; of
// several the one whose hole is the smallest that has room for whole chunks.
Beside largest_beside_hole(const Seen& seen, const Ask& ask, Bytes grain) {
  Beside best;
  const auto consider = [&](AddressRange kept, Bytes hole) {
    if (kept.size >= ask.size || hole < round_up(ask.size - kept.size, kPage)) return;
    const auto rank = [&](const Beside& each) {
      const bool has_room = each.hole >= round_up(ask.size - each.kept.size, ask.chunk);
      return std::tuple(each.kept.size, has_room, ~each.hole);
    };
    if (const Beside beside{kept, hole}; rank(beside) > rank(best)) best = beside;
  };
  for (std::size_t i = 0; i < seen.all.size(); ++i) {
    if (!seen.all[i].is_hole) continue;
    const AddressRange hole = seen.all[i].range;
    if (i > 0 && !seen.all[i - 1].is_hole && seen.all[i - 1].range.end() == hole.begin) {
      DevicePtr begin = seen.all[i - 1].range.begin;
      while (begin < hole.begin && !is_aligned(begin, ask.alignment)) begin = begin + grain;
      if (begin < hole.begin) consider({begin, hole.begin - begin}, hole.size);
    }
    if (i + 1 < seen.all.size() && !seen.all[i + 1].is_hole &&
        seen.all[i + 1].range.begin == hole.end()) {
      const AddressRange stretch = seen.all[i + 1].range;
      if (stretch.size >= ask.size) continue;
      DevicePtr begin = stretch.end() - ask.size;
      while (!is_aligned(begin, ask.alignment)) begin = begin - grain;
      if (begin >= hole.begin && begin + ask.size > hole.end())
        consider({hole.end(), begin + ask.size - hole.end()}, hole.size);
    }
  }
  return best;
}

// --- what every plan keeps

// The first promise that `plan` breaks; empty: none.
class PlanCheck {
 public:
  PlanCheck(PlanWorld& world, const Ask& ask, const Plan& plan)
      : world_(world), ask_(ask), plan_(plan) {}

  std::string broken() {
    check_memory();
    check_layout();
    check_waits();
    return broken_;
  }

 private:
  void expect(bool holds, const char* what) {
    if (!holds && broken_.empty()) broken_ = what;
  }
  void take(const Part& part, const char* what) {
    expect(part.from->state == RegionState::free, what);
    expect(part.from->range.contains(part.range) && !part.range.empty(),
           "a part lies in its region");
    expect(part.stamp == part.from->stamp, "a part has the stamp of its region");
    expect(may_use(world_, part.stamp, ask_), "only memory that the caller may use");
    for (const AddressRange& other : taken_) expect(!other.overlaps(part.range), "nothing twice");
    taken_.push_back(part.range);
  }

  void check_memory() {
    for (const Part& part : plan_.kept) take(part, "what is kept is free");
    for (const Move& move : plan_.moves) {
      take(move.part, "what moves is free");
      DevicePtr reached = move.part.range.begin;
      for (const vm::Mapping& mapping : move.chunks) {
        expect(mapping.at == reached, "the chunks of a move tile it");
        expect(mapping.chunk->partly_used == 0, "only wholly idle chunks move");
        const vm::Mapping there = world_.chunks.around(mapping.at);
        expect(there.at == mapping.at && there.chunk == mapping.chunk,
               "a chunk moves from where it is");
        reached = mapping.end();
      }
      expect(reached == move.part.range.end(), "the chunks of a move tile it");
    }
  }

  void check_layout() {
    if (ask_.chunks != Chunks::own || !plan_.is_hit())
      expect(plan_.request == ask_.size, "the request is what was asked for");
    else
      expect(plan_.request >= ask_.size && plan_.request - ask_.size <= ask_.size / 8,
             "an eighth more is the most");
    if (ask_.chunks != Chunks::shared) check_own_chunks();
    expect(is_aligned(plan_.allocation, ask_.alignment), "the allocation is aligned");
    expect(plan_.growth() <= ask_.growth_room, "growth is within its room");
    DevicePtr reached = plan_.kept.empty() ? DevicePtr{} : plan_.kept.front().range.begin;
    const DevicePtr kept_begin = reached;
    for (const Part& part : plan_.kept) {
      expect(part.range.begin == reached, "what is kept stands side by side");
      reached = part.range.end();
    }
    if (plan_.is_hit()) {
      expect(plan_.moves.empty() && plan_.creates.empty(), "a hit needs no call");
      return expect(plan_.range() == AddressRange{kept_begin, reached - kept_begin},
                    "a hit is what it keeps");
    }
    expect(plan_.hole->state == RegionState::hole && plan_.hole->range.contains(plan_.mapped),
           "what is mapped lies in a hole");
    expect(is_multiple(plan_.mapped.begin - PlanWorld::kStart, kPage), "whole pages are mapped");
    expect(plan_.mapped.size == plan_.moved_bytes() + plan_.growth(), "pieces tile what is mapped");
    for (const Bytes size : plan_.creates)
      expect(size > 0 && size % kPage == 0, "new chunks are whole pages");
    check_excess(kept_begin, reached);
  }

  // What is kept is whole chunks, and so what moves and is created, which ends where the request
  // does.
  void check_own_chunks() {
    for (const Part& part : plan_.kept) {
      const DevicePtr begin = plan_.kept.front().range.begin, end = plan_.kept.back().range.end();
      world_.chunks.for_each_around(part.range, [&](const vm::Mapping& mapping) {
        expect(begin <= mapping.at && mapping.end() <= end, "own chunks are whole");
        expect(mapping.chunk->partly_used == 0, "own chunks are wholly idle");
      });
    }
    expect(plan_.is_hit() || plan_.kept_bytes() + plan_.mapped.size == plan_.request,
           "own chunks end with the request");
    const bool is_one = ask_.chunks == Chunks::one;
    expect(!is_one || plan_.is_hit() || plan_.pieces() == 1, "one chunk is one chunk");
  }

  // What is too much is less than the last piece, at the end that nothing is kept beside.
  void check_excess(DevicePtr kept_begin, DevicePtr kept_end) {
    const Bytes last =
        plan_.creates.empty() ? plan_.moves.back().chunks.back().chunk->size : plan_.creates.back();
    const Bytes excess = plan_.kept_bytes() + plan_.mapped.size - plan_.request;
    expect(plan_.kept_bytes() + plan_.mapped.size >= plan_.request && excess < last,
           "less than a piece is too much");
    if (plan_.kept.empty())
      return expect(plan_.allocation == plan_.mapped.begin, "it begins with what is mapped");
    if (plan_.is_mapped_in_front()) {
      expect(plan_.mapped.end() == kept_begin, "what is mapped stands beside what is kept");
      return expect(plan_.range().end() == kept_end, "it ends with what is kept");
    }
    expect(plan_.mapped.begin == kept_end, "what is mapped stands beside what is kept");
    expect(plan_.allocation == kept_begin, "it begins with what is kept");
  }

  // Of each foreign timeline the latest number, once.
  void check_waits() {
    Map<time::TimelineId, std::uint64_t> wanted;
    const auto add = [&](const time::Stamp& stamp) {
      for (const time::StampPart& part : stamp.parts())
        if (part.timeline != ask_.own)
          wanted[part.timeline] = std::max(wanted[part.timeline], part.sequence);
    };
    for (const Part& part : plan_.kept) add(part.stamp);
    for (const Move& move : plan_.moves) add(move.part.stamp);
    expect(plan_.waits.size() == wanted.size(), "one wait for each stream");
    for (const time::StampPart& part : plan_.waits)
      expect(wanted.contains(part.timeline) && wanted[part.timeline] == part.sequence,
             "waits for the latest");
  }

  PlanWorld& world_;
  const Ask& ask_;
  const Plan& plan_;
  std::vector<AddressRange> taken_;
  std::string broken_;
};

// --- what each strategy promises

// Bytes of whole chunks that a cut at `range` leaves of `free`.
Bytes left_whole(PlanWorld& world, AddressRange free, AddressRange range) {
  Bytes bytes = 0;
  world.chunks.for_each_around(free, [&](const vm::Mapping& mapping) {
    if (free.contains(mapping.range()) && !range.overlaps(mapping.range()))
      bytes += mapping.chunk->size;
  });
  return bytes;
}

std::string broken_cut(PlanWorld& world, const Ask& ask, AddressRange free, DevicePtr allocation) {
  const Bytes grain = world.tuning.grain;
  const DevicePtr front = *first_place(free, ask, grain), back = last_place(free, ask, grain);
  if (allocation != front && allocation != back) return "a cut leaves an end";
  if (ask.goes_low) return allocation == front ? "" : "what goes low is the front";
  const DevicePtr other = allocation == front ? back : front;
  const Bytes left = left_whole(world, free, {allocation, ask.size});
  const Bytes otherwise = left_whole(world, free, {other, ask.size});
  if (left < otherwise) return "the other end would leave more chunks whole";
  return left == otherwise && allocation != front ? "the front goes first among equals" : "";
}

// Bytes of whole chunks that the request would use of a range.
Bytes used_whole(PlanWorld& world, const Ask& ask, AddressRange free) {
  const Bytes grain = world.tuning.grain;
  const auto left = [&](DevicePtr begin) { return left_whole(world, free, {begin, ask.size}); };
  return left_whole(world, free, {free.end(), 0}) -
         std::max(left(*first_place(free, ask, grain)), left(last_place(free, ask, grain)));
}

std::string broken_by_fit(PlanWorld& world, const Seen& seen, const Ask& ask,
                          const Decision& decision) {
  const Bytes grain = world.tuning.grain;
  std::vector<const Region*> all;
  const auto rank = [&](const Region* region) {
    const bool is_later =
        ask.own_first && !ask.takes_waiting && !ask.goes_low && region->stamp.is_complete();
    const Bytes size = ask.goes_low && !ask.takes_waiting ? 0 : region->range.size;
    return std::tuple(is_later, size, region->range.begin);
  };
  for (const Region* region : seen.usable)
    if (first_place(region->range, ask, grain)) all.push_back(region);
  std::sort(all.begin(), all.end(),
            [&](const Region* a, const Region* b) { return rank(a) < rank(b); });
  const Region* best = all.empty() ? nullptr : all.front();
  if (ask.spares_chunks && !ask.goes_low && !ask.takes_waiting && best != nullptr) {
    all.resize(std::min<std::size_t>(all.size(), 4));
    best = *std::min_element(all.begin(), all.end(), [&](const Region* a, const Region* b) {
      return used_whole(world, ask, a->range) < used_whole(world, ask, b->range);
    });
  }
  std::optional<AddressRange> stretch;
  for (const Stretch& each : seen.all) {
    if (each.is_hole || each.regions < 2 || !first_place(each.range, ask, grain)) continue;
    if (!stretch || each.range.size < stretch->size) stretch = each.range;
  }
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return best != nullptr || stretch ? "there is a place" : "";
  if (!plan->is_hit()) return "a hit needs no call";
  if (best == nullptr && !stretch) return "there is no place";
  if (best == nullptr) return broken_cut(world, ask, *stretch, plan->allocation);
  if (plan->kept.front().from != best) return "another region is the best";
  return broken_cut(world, ask, best->range, plan->allocation);
}

// In which order chunks leave their ranges.
std::string broken_order(const PlanWorld& world, const Ask& ask, const Plan& plan) {
  const bool by_age = world.tuning.order == Tuning::Order::oldest_first;
  std::optional<std::tuple<bool, bool, std::uint64_t>> last;
  for (const Move& move : plan.moves) {
    const time::Stamp& stamp = move.part.stamp;
    const bool waits = !stamp.is_complete() && !(ask.own && stamp.is_only_on(*ask.own));
    const bool is_later = !by_age && !waits && ask.own_first && stamp.is_complete();
    const std::uint64_t number =
        by_age || waits ? move.part.from->age() : move.part.from->range.size;
    const std::tuple now(waits, is_later, number);
    if (last && now < *last) return "chunks leave in another order";
    last = now;
  }
  return "";
}

std::string broken_by_stitch(PlanWorld& world, const Seen& seen, const Ask& ask,
                             const Decision& decision) {
  const Beside beside = largest_beside_hole(seen, ask, world.tuning.grain);
  const Bytes left = ask.size - beside.kept.size;
  const Bytes movable = seen.movable_bytes({});
  const Bytes movable_beside = seen.movable_bytes(beside.kept);
  // A piece may be larger than what lacks, and than the hole.
  const Bytes most_mapped = left + std::max(ask.chunk, seen.largest_movable());
  const bool has_room = !beside.kept.empty() && most_mapped <= beside.hole;
  if (const NoPlan* const none = std::get_if<NoPlan>(&decision)) {
    if (none->reason == NoPlan::Reason::address_space) return "there is address space";
    if (none->missing == 0) return "something is missing";
    if (movable + ask.growth_room >= ask.size) return "what can move and growth are enough";
    if (has_room && movable_beside + ask.growth_room >= left)
      return "with what is kept it is enough";
    return none->missing <= round_up(ask.size, kPage) ? "" : "more is missing than was asked for";
  }
  const Plan& plan = std::get<Plan>(decision);
  const Bytes kept = plan.kept_bytes();
  if (kept != beside.kept.size && kept != 0) return "the largest end is kept";
  if (kept == 0 && has_room && movable_beside + ask.growth_room >= left)
    return "an end could be kept";
  const AddressRange except =
      plan.kept.empty() ? AddressRange{} : AddressRange{plan.kept.front().range.begin, kept};
  const Bytes lacking = ask.size - kept;
  const bool is_early = round_up(lacking, ask.chunk) <= std::min(ask.early_growth, ask.growth_room);
  if (is_early !=
          (plan.moves.empty() && plan.growth() >= lacking && plan.growth() <= ask.early_growth) &&
      seen.movable_bytes(except) > 0)
    return "early growth goes first, as far as it goes";
  if (is_early) return "";
  if (!plan.creates.empty() && plan.moved_bytes() != seen.movable_bytes(except))
    return "every idle chunk moves before anything is created";
  if (!plan.creates.empty() && plan.growth() >= lacking - plan.moved_bytes() + ask.chunk)
    return "it grows too much";
  return broken_order(world, ask, plan);
}

// --- own chunks

// The chunks that are whole in a range, by address.
std::vector<AddressRange> chunks_in(const PlanWorld& world, AddressRange range) {
  std::vector<AddressRange> chunks;
  world.chunks.for_each_around(range, [&](const vm::Mapping& mapping) {
    if (range.contains(mapping.range())) chunks.push_back(mapping.range());
  });
  return chunks;
}

// Where in a range whole chunks may serve it, the closest to the size first.
std::optional<AddressRange> own_place(const PlanWorld& world, const Ask& ask, AddressRange range) {
  const std::vector<AddressRange> chunks = chunks_in(world, range);
  std::optional<AddressRange> best;
  for (std::size_t first = 0; first < chunks.size(); ++first)
    for (std::size_t last = first; last < chunks.size(); ++last) {
      const AddressRange place{chunks[first].begin, chunks[last].end() - chunks[first].begin};
      const Bytes most = ask.chunks == Chunks::own ? ask.size / 8 : 0;
      const bool may_be = place.size >= ask.size && place.size - ask.size <= most &&
                          (ask.chunks != Chunks::one || first == last);
      if (may_be && is_aligned(place.begin, ask.alignment) && (!best || place.size < best->size))
        best = place;
    }
  return best;
}

std::string broken_by_own_fit(const PlanWorld& world, const Seen& seen, const Ask& ask,
                              const Decision& decision) {
  const Region* best = nullptr;
  const auto rank = [&](const Region* region) {
    const bool is_later = ask.own_first && !ask.takes_waiting && region->stamp.is_complete();
    return std::tuple(is_later, region->range.size, region->range.begin);
  };
  for (const Region* region : seen.usable)
    if (own_place(world, ask, region->range) && (best == nullptr || rank(region) < rank(best)))
      best = region;
  std::vector<AddressRange> places;
  Bytes smallest = 0;
  for (const Stretch& each : seen.all) {
    const auto place =
        each.is_hole || each.regions < 2 ? std::nullopt : own_place(world, ask, each.range);
    if (!place || (!places.empty() && each.range.size > smallest)) continue;
    if (each.range.size < smallest) places.clear();
    smallest = each.range.size;
    places.push_back(*place);
  }
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return best != nullptr || !places.empty() ? "there is a place" : "";
  if (!plan->is_hit()) return "a hit needs no call";
  if (best != nullptr)
    return plan->range() == own_place(world, ask, best->range) ? "" : "another place is the best";
  return std::find(places.begin(), places.end(), plan->range()) != places.end()
             ? ""
             : "another run is the smallest";
}

// Bytes of the largest end of a stretch beside a hole, of whole chunks that are less than the
// request.
Bytes own_beside_hole(const PlanWorld& world, const Seen& seen, const Ask& ask) {
  Bytes best = 0;
  for (std::size_t i = 0; i + 1 < seen.all.size() && ask.chunks == Chunks::own; ++i) {
    const Stretch &front = seen.all[i], &back = seen.all[i + 1];
    if (front.is_hole == back.is_hole || front.range.end() != back.range.begin) continue;
    const AddressRange hole = front.is_hole ? front.range : back.range;
    const AddressRange stretch = front.is_hole ? back.range : front.range;
    Bytes kept = 0;
    for (const AddressRange& chunk : chunks_in(world, stretch)) {
      const Bytes bytes = front.is_hole ? chunk.end() - stretch.begin : stretch.end() - chunk.begin;
      const DevicePtr begin = front.is_hole ? chunk.end() - ask.size : chunk.begin;
      if (bytes < ask.size && is_aligned(begin, ask.alignment)) kept = std::max(kept, bytes);
    }
    if (ask.size - kept <= hole.size) best = std::max(best, kept);
  }
  return best;
}

std::string broken_by_own_stitch(PlanWorld& world, const Seen& seen, const Ask& ask,
                                 const Decision& decision) {
  const Bytes beside = own_beside_hole(world, seen, ask);
  if (const NoPlan* const none = std::get_if<NoPlan>(&decision)) {
    if (none->reason == NoPlan::Reason::address_space) return "there is address space";
    if (none->missing == 0 || none->missing > ask.size)
      return "what is missing is part of what was asked for";
    if (ask.growth_room >= ask.size - beside) return "with what is kept growth is enough";
    const bool all_fit = ask.chunks == Chunks::own && seen.largest_movable() <= ask.growth_room;
    return all_fit && seen.movable_bytes({}) + ask.growth_room >= ask.size
               ? "what can move and growth are enough"
               : "";
  }
  const Plan& plan = std::get<Plan>(decision);
  const Bytes kept = plan.kept_bytes();
  if (kept != beside && (kept != 0 || ask.growth_room >= ask.size - beside))
    return "the largest end is kept";
  Bytes left = ask.size - kept;
  const bool is_early = left <= std::min(ask.early_growth, ask.growth_room);
  if (is_early) return plan.moves.empty() ? "" : "early growth goes first, as far as it goes";
  const AddressRange except =
      kept == 0 ? AddressRange{} : AddressRange{plan.kept.front().range.begin, kept};
  std::vector<DevicePtr> moved;
  for (const Move& move : plan.moves)
    for (const vm::Mapping& mapping : move.chunks) {
      if (mapping.chunk->size > left) return "what moves fits in what lacks";
      left -= mapping.chunk->size;
      moved.push_back(mapping.at);
    }
  for (const vm::Mapping& mapping : seen.movable) {
    const bool is_taken = except.overlaps(mapping.range()) ||
                          std::find(moved.begin(), moved.end(), mapping.at) != moved.end();
    const bool fits =
        ask.chunks == Chunks::one ? mapping.chunk->size == left : mapping.chunk->size <= left;
    if (!is_taken && left > 0 && fits)
      return "every idle chunk that fits moves before anything is created";
  }
  return broken_order(world, ask, plan);
}

std::string broken_by_new_chunk(const Ask& ask, const Decision& decision) {
  const Bytes size = round_up(ask.size, kPage);
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return size <= ask.growth_room ? "there is room for it" : "";
  return plan->creates == Vector<Bytes>{size} && plan->moves.empty() && plan->kept.empty()
             ? ""
             : "one new chunk";
}

std::string broken_by(PlanWorld& world, const Ask& ask) {
  const Seen seen(world, ask);
  std::string broken;
  const auto check = [&](const char* name, Strategy strategy, const auto& own_promises) {
    if (!broken.empty()) return;
    const Decision decision = strategy(world.view(), ask);
    if (const Plan* const plan = std::get_if<Plan>(&decision))
      broken = PlanCheck(world, ask, *plan).broken();
    if (broken.empty()) broken = own_promises(decision);
    if (!broken.empty())
      broken = message_of("not so: {}\n{}: {}", broken, name, PlanWorld::text(decision));
  };
  const bool is_shared = ask.chunks == Chunks::shared;
  check("fit", fit, [&](const Decision& d) {
    return is_shared ? broken_by_fit(world, seen, ask, d) : broken_by_own_fit(world, seen, ask, d);
  });
  check("stitch", stitch, [&](const Decision& d) {
    return is_shared ? broken_by_stitch(world, seen, ask, d)
                     : broken_by_own_stitch(world, seen, ask, d);
  });
  check("grow_in_one_chunk", grow_in_one_chunk,
        [&](const Decision& d) { return broken_by_new_chunk(ask, d); });
  return broken;
}

constexpr int kAsks = 20;

// A failure tells the promise, the command that replays its seed, and the state as code.
testing::AssertionResult keeps_promises(std::uint64_t seed) {
  settings::Config config;
  config.page_chunks = seed % 7 == 3;
  PlanWorld world(config);
  Dice dice(seed, world);
  dice.draw_state();
  for (int i = 0; i < kAsks; ++i) {
    const Ask ask = dice.draw_ask();
    const std::string broken = broken_by(world, ask);
    if (broken.empty()) continue;
    return testing::AssertionFailure()
           << broken << "\nasked: " << text_of(ask, world.tuning.grain) << "\nof "
           << world.index.picture(world.tuning.grain) << "\n"
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
