// SPDX-License-Identifier: Apache-2.0
// pool: hits, moves and growth.
#include "pool/strategies.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace vpmm::pool {

using region::Region;
using region::RegionState;

namespace {

NoPlan no_memory(Bytes missing) { return {NoPlan::Reason::memory, missing}; }

Plan plan_of(const Ask& ask, Vector<Part> kept) {
  Plan plan;
  plan.request = ask.size;
  plan.kept = std::move(kept);
  for (const Part& part : plan.kept) View::add_waits(part.stamp, ask.own, plan.waits);
  return plan;
}

// --- hits

Bytes whole_chunks(const vm::ChunkTable& chunks, DevicePtr begin, DevicePtr end)
    VPMM_REQUIRES(pool_lock) {
  if (end <= begin) return 0;
  const DevicePtr first = chunks.first_border(begin), last = chunks.last_border(end);
  return last > first ? last - first : 0;
}

// Note [Cut at the better end]
// Takes the end of a free range that leaves more chunks whole, as only these can move; the front
// among equals. Returns nullopt if it does not fit aligned.
std::optional<AddressRange> cut(const View& view, const Ask& ask, AddressRange free)
    VPMM_REQUIRES(pool_lock) {
  const std::optional<DevicePtr> front = region::aligned_start(free, ask.size, ask.alignment);
  if (!front) return std::nullopt;
  const DevicePtr back{round_down(to_integer(free.end() - ask.size), ask.alignment)};
  const auto left_whole = [&](DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    return whole_chunks(view.chunks, free.begin, begin) +
           whole_chunks(view.chunks, begin + ask.size, free.end());
  };
  const bool is_front = ask.goes_low || back == *front || left_whole(*front) >= left_whole(back);
  return AddressRange{is_front ? *front : back, ask.size};
}

// Tells if the chunks of a range are as few as a request of that size has when they are new.
bool has_fewest_chunks(const View& view, const Ask& ask, AddressRange range)
    VPMM_REQUIRES(pool_lock) {
  Bytes count = 0;
  view.chunks.for_each_inside(range, [&](const vm::Mapping&) {
    ++count;
    return count * ask.chunk < range.size + ask.chunk;
  });
  return count * ask.chunk < range.size + ask.chunk;
}

// Note [Own chunks]. Returns the whole chunks in a free range with the sum closest to the size, the
// first among equals.
std::optional<AddressRange> own_stretch(const View& view, const Ask& ask, AddressRange free)
    VPMM_REQUIRES(pool_lock) {
  const bool is_one = ask.chunks == Chunks::one;
  const Bytes most = ask.chunks == Chunks::own ? ask.size + ask.size / kExcessShare : ask.size;
  const DevicePtr last = view.chunks.last_border(free.end());
  std::optional<AddressRange> best;
  DevicePtr end = view.chunks.first_border(free.begin);
  for (DevicePtr begin = end; begin < last; begin = view.chunks.around(begin).end()) {
    while (end < last && end - begin < ask.size) end = view.chunks.around(end).end();
    const AddressRange stretch{begin, end - begin};
    if (stretch.size < ask.size) break;
    const bool fits = stretch.size <= most && (!is_one || view.chunks.around(begin).end() == end) &&
                      (ask.chunks != Chunks::exact || has_fewest_chunks(view, ask, stretch));
    if (fits && is_aligned(begin, ask.alignment) && (!best || stretch.size < best->size))
      best = stretch;
  }
  return best;
}

// Returns the part of a free range for the request; nullopt: does not fit.
std::optional<AddressRange> taken(const View& view, const Ask& ask, AddressRange free)
    VPMM_REQUIRES(pool_lock) {
  return ask.has_own_chunks() ? own_stretch(view, ask, free) : cut(view, ask, free);
}

bool fits(const View& view, const Ask& ask, AddressRange free) VPMM_REQUIRES(pool_lock) {
  return ask.has_own_chunks() ? own_stretch(view, ask, free).has_value()
                              : region::aligned_start(free, ask.size, ask.alignment).has_value();
}

Plan hit(const View& view, const Ask& ask, Region* first, AddressRange range)
    VPMM_REQUIRES(pool_lock) {
  Plan plan = plan_of(ask, view.parts_of(first, range));
  plan.request = range.size;
  plan.allocation = range.begin;
  return plan;
}

Region* best_with_own_chunks(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  Region* best = nullptr;
  view.index.for_each_fit(ask.size, ask.own, ask.first(),
                          [&](Region* free) VPMM_REQUIRES(pool_lock) {
                            if (own_stretch(view, ask, free->range)) best = free;
                            return best == nullptr;
                          });
  return best;
}

// Note [Spare whole chunks]
// A request in part of a wholly idle chunk traps the rest. Where memory is scarce, it therefore
// compares the few smallest ranges that are large enough, and takes the one in which it uses fewest
// bytes of whole chunks; the smallest among equals. Elsewhere the best fit alone decides: programs
// that repeat find the ranges of the last step.
constexpr int kRangesLookedAt = 4;

Region* sparing_region(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  Region* best = nullptr;
  Bytes least = 0;
  int looked_at = 0;
  view.index.for_each_fit(
      ask.size, ask.own, ask.first(), [&](Region* free) VPMM_REQUIRES(pool_lock) {
        const std::optional<AddressRange> part = cut(view, ask, free->range);
        if (!part) return true;
        const auto whole = [&](DevicePtr begin, DevicePtr end) VPMM_REQUIRES(pool_lock) {
          return whole_chunks(view.chunks, begin, end);
        };
        const Bytes used = whole(free->range.begin, free->range.end()) -
                           whole(free->range.begin, part->begin) -
                           whole(part->end(), free->range.end());
        if (best == nullptr || used < least) {
          best = free;
          least = used;
        }
        return ++looked_at < kRangesLookedAt && least > 0;
      });
  return best;
}

// Note [Shared pages go low]
// Pages of small requests live long, and each pins its chunk. So they lie side by side at the
// lowest addresses, away from larger requests.

// Returns the smallest region that is large enough; behind waits, after a look at all.
Region* best_region(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  if (ask.has_own_chunks() && !ask.takes_waiting) return best_with_own_chunks(view, ask);
  if (ask.goes_low && !ask.takes_waiting)
    return view.index.lowest_fit(ask.size, ask.alignment, ask.own);
  if (ask.spares_chunks && !ask.takes_waiting) return sparing_region(view, ask);
  if (!ask.takes_waiting) return view.index.best_fit(ask.size, ask.alignment, ask.own, ask.first());
  Region* best = nullptr;
  view.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
    const bool is_smaller = best == nullptr || std::pair(free->range.size, free->range.begin) <
                                                   std::pair(best->range.size, best->range.begin);
    if (is_smaller && view.admits(free, ask) && fits(view, ask, free->range)) best = free;
    return true;
  });
  return best;
}

// Plans the smallest stretch of neighbours that only their stamps divide.
std::optional<Plan> best_run(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  Region* best = nullptr;
  AddressRange smallest;
  const auto consider = [&](const Vector<Region*>& run) VPMM_REQUIRES(pool_lock) {
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (!view.admits(run[i], ask)) continue;
      Region* const first = run[i];
      AddressRange stretch = first->range;
      for (; i + 1 < run.size() && view.admits(run[i + 1], ask); ++i)
        stretch.size += run[i + 1]->range.size;
      const bool is_better = best == nullptr || stretch.size < smallest.size;
      if (!is_better || !fits(view, ask, stretch)) continue;
      best = first;
      smallest = stretch;
    }
    return true;
  };
  if (ask.takes_waiting)
    view.index.for_each_run(consider);
  else if (ask.own)
    view.index.for_each_run_with(*ask.own, consider);
  if (best == nullptr) return std::nullopt;
  return hit(view, ask, best, *taken(view, ask, smallest));
}

}  // namespace

Decision fit(const View& view, const Ask& ask) {
  if (Region* const free = best_region(view, ask))
    return hit(view, ask, free, *taken(view, ask, free->range));
  if (std::optional<Plan> plan = best_run(view, ask)) return std::move(*plan);
  return no_memory(ask.size);
}

// --- plans

namespace {

// End of a stretch that stays in place, beside a hole into which the rest of the allocation is
// mapped.
struct KeptEnd {
  Region* first = nullptr;  // null: no kept part
  AddressRange range;
  Region* hole = nullptr;
  bool is_front = false;  // the kept part is the allocation's front; the hole is behind it
};

// Begin of the most whole chunks at the end of `stretch`, before a hole, that are less than the
// request.
DevicePtr own_front(const View& view, const Ask& ask, AddressRange stretch)
    VPMM_REQUIRES(pool_lock) {
  DevicePtr front = stretch.end();
  for (DevicePtr p = stretch.end(); p > stretch.begin;) {
    p = view.chunks.around(p - 1).at;
    if (p < stretch.begin || stretch.end() - p >= ask.size) break;
    if (is_aligned(p, ask.alignment)) front = p;
  }
  return front;
}

// End of the most whole chunks at the front of `stretch`, behind a hole, that are less than the
// request.
DevicePtr own_back(const View& view, const Ask& ask, AddressRange stretch)
    VPMM_REQUIRES(pool_lock) {
  DevicePtr back = stretch.begin;
  for (DevicePtr p = stretch.begin; p < stretch.end();) {
    p = view.chunks.around(p).end();
    if (p > stretch.end() || p - stretch.begin >= ask.size) break;
    if (is_aligned(p - ask.size, ask.alignment)) back = p;
  }
  return back;
}

KeptEnd kept_before(const View& view, const Ask& ask, Region* hole) VPMM_REQUIRES(pool_lock) {
  KeptEnd kept{nullptr, {hole->range.begin, 0}, hole, true};
  Region* first = nullptr;
  for (Region* free = hole->previous; view.admits(free, ask); free = free->previous) first = free;
  if (first == nullptr) return kept;
  const AddressRange stretch{first->range.begin, hole->range.begin - first->range.begin};
  const DevicePtr begin =
      ask.has_own_chunks() ? own_front(view, ask, stretch) : align_up(stretch.begin, ask.alignment);
  if (begin < hole->range.begin) kept = {first, {begin, hole->range.begin - begin}, hole, true};
  return kept;
}

KeptEnd kept_behind(const View& view, const Ask& ask, Region* hole) VPMM_REQUIRES(pool_lock) {
  const DevicePtr begin = hole->range.end();
  DevicePtr end = begin;
  for (const Region* free = hole->next; view.admits(free, ask); free = free->next)
    end = free->range.end();
  if (ask.has_own_chunks()) end = own_back(view, ask, {begin, end - begin});
  if (end == begin || end - begin >= ask.size) return {};
  const DevicePtr allocation{round_down(to_integer(end - ask.size), ask.alignment)};
  end = allocation + ask.size;
  if (end <= begin || allocation < hole->range.begin) return {};
  return {hole->next, {begin, end - begin}, hole, false};
}

// Upper bound of all stretches. Where free regions touch, their sum is the only bound that needs no
// search.
Bytes bound_of_stretches(const View& view) VPMM_REQUIRES(pool_lock) {
  return view.index.has_runs() ? view.index.bytes(RegionState::free) : view.index.largest_free();
}

// Keeps the largest stretch: it moves and creates least. Its hole fits the missing bytes in whole
// pages. Of holes at both ends it fills the one behind, unless only the other has room for whole
// new chunks.
KeptEnd best_kept(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  const Bytes page = view.tuning.page_size;
  const Bytes most = std::min(bound_of_stretches(view), ask.size);
  const auto rank = [&](const KeptEnd& kept) {
    const Bytes left = ask.size - kept.range.size;
    const bool has_room =
        kept.hole != nullptr && kept.hole->range.size >= round_up(left, ask.chunk);
    return std::tuple(kept.range.size, has_room, ~to_integer(kept.range.begin), kept.is_front);
  };
  KeptEnd best;
  const auto consider = [&](const KeptEnd& kept) {
    if (kept.first == nullptr || kept.range.size >= ask.size) return;
    const bool is_enough = kept.hole->range.size >= round_up(ask.size - kept.range.size, page);
    if (is_enough && rank(kept) > rank(best)) best = kept;
  };
  view.index.for_each_hole(std::max(ask.size - most, page),
                           [&](Region* hole) VPMM_REQUIRES(pool_lock) {
                             consider(kept_before(view, ask, hole));
                             consider(kept_behind(view, ask, hole));
                             return true;
                           });
  return best;
}

// Tells if a chunk of `size` bytes helps where `left` bytes are missing.
bool may_move(const Ask& ask, Bytes size, Bytes left) {
  switch (ask.chunks) {
    case Chunks::shared: return true;
    case Chunks::own: return size <= left;
    case Chunks::one: return size == left;
    case Chunks::exact: break;
  }
  return (size == ask.chunk && size <= left) || size == left % ask.chunk;
}

// Takes wholly idle chunks and lowers `left` by their bytes. Adjacent chunks of one region form one
// move.
Vector<Move> idle_chunks(const View& view, const Ask& ask, AddressRange except, Bytes& left)
    VPMM_REQUIRES(pool_lock) {
  Vector<Move> moves;
  if (view.index.bytes(RegionState::free) == view.chunks.trapped_bytes())
    return moves;  // no chunk is wholly idle
  view.for_each_giving(ask, [&](Region* free) VPMM_REQUIRES(pool_lock) {
    view.chunks.for_each_inside(free->range, [&](const vm::Mapping& mapping) {
      if (except.overlaps(mapping.range()) || !may_move(ask, mapping.chunk->size, left))
        return true;
      const bool is_beside = !moves.empty() && moves.back().part.from == free &&
                             moves.back().part.range.end() == mapping.at;
      if (!is_beside) moves.push_back({{free, {mapping.at, 0}, free->stamp}, {}});
      moves.back().part.range.size += mapping.chunk->size;
      moves.back().chunks.push_back(mapping);
      left -= std::min(left, mapping.chunk->size);
      return left > 0;
    });
    return left > 0;
  });
  return moves;
}

// Places the mapped part: in the hole beside the kept part, else in the smallest hole that is large
// enough.
Decision laid_out(const View& view, const Ask& ask, const KeptEnd& kept, Plan plan)
    VPMM_REQUIRES(pool_lock) {
  for (const Move& move : plan.moves) View::add_waits(move.part.stamp, ask.own, plan.waits);
  const Bytes bytes = plan.moved_bytes() + plan.growth();
  if (kept.first == nullptr) {
    const Bytes alignment = std::max(ask.alignment, view.tuning.page_alignment());
    plan.hole = view.index.smallest_hole(bytes, alignment);
    if (plan.hole == nullptr) return NoPlan{NoPlan::Reason::address_space, bytes};
    plan.mapped = {align_up(plan.hole->range.begin, alignment), bytes};
    plan.allocation = plan.mapped.begin;
    return plan;
  }
  if (kept.hole->range.size < bytes) return NoPlan{NoPlan::Reason::address_space, bytes};
  plan.hole = kept.hole;
  plan.mapped = {kept.is_front ? kept.range.end() : kept.range.begin - bytes, bytes};
  plan.allocation = kept.is_front ? kept.range.begin : kept.range.end() - ask.size;
  return plan;
}

// Sizes of new chunks for `left` bytes; own chunks end where the request does.
std::optional<Vector<Bytes>> new_chunks(const View& view, const Ask& ask, Bytes left) {
  const Bytes room = ask.has_own_chunks() ? std::min(ask.growth_room, left) : ask.growth_room;
  return view.tuning.chunks_for(left, ask.chunk, room);
}

Decision stitched(const View& view, const Ask& ask, const KeptEnd& kept) VPMM_REQUIRES(pool_lock) {
  Plan plan = plan_of(ask, view.parts_of(kept.first, kept.range));
  Bytes left = ask.size - kept.range.size;
  const Bytes whole = ask.has_own_chunks() ? left : round_up(left, ask.chunk);
  if (whole <= std::min(ask.early_growth, ask.growth_room)) {
    plan.creates = *new_chunks(view, ask, left);
  } else {
    plan.moves = idle_chunks(view, ask, kept.range, left);
    std::optional<Vector<Bytes>> creates = new_chunks(view, ask, left);
    if (!creates) return no_memory(round_up(left, view.tuning.page_size) - ask.growth_room);
    plan.creates = std::move(*creates);
  }
  return laid_out(view, ask, kept, std::move(plan));
}

}  // namespace

// Note [A plan]
// The largest usable stretch beside a hole stays in place, and the rest is mapped beside it: new
// chunks, as far as early growth goes; else wholly idle chunks, then new ones. Chunks are not cut
// to size. The excess of the last one stays free beside the allocation, with that chunk's stamp.
// Own chunks have no excess (Note [Own chunks]).
Decision stitch(const View& view, const Ask& ask) {
  const bool may_keep = ask.chunks == Chunks::shared || ask.chunks == Chunks::own;
  const KeptEnd kept = may_keep ? best_kept(view, ask) : KeptEnd{};
  Decision decision = stitched(view, ask, kept);
  const NoPlan* const none = std::get_if<NoPlan>(&decision);
  if (none == nullptr || kept.first == nullptr) return decision;
  // The last chunk exceeds the hole, or the kept part lies in a chunk that the rest needs.
  Decision without = stitched(view, ask, KeptEnd{});
  const NoPlan* const neither = std::get_if<NoPlan>(&without);
  const bool lack_memory = neither != nullptr && none->reason == NoPlan::Reason::memory &&
                           neither->reason == NoPlan::Reason::memory;
  return lack_memory && none->missing < neither->missing ? decision : without;
}

Decision grow_in_one_chunk(const View& view, const Ask& ask) {
  const Bytes chunk = round_up(ask.size, view.tuning.page_size);
  if (chunk > ask.growth_room) return no_memory(chunk - ask.growth_room);
  Plan plan = plan_of(ask, {});
  plan.creates = {chunk};
  return laid_out(view, ask, KeptEnd{}, std::move(plan));
}

}  // namespace vpmm::pool
