// pool: planning: extend in place where that moves fewest pages, harvest idle chunks, large ones first, create the
// rest.
#include "pool/planner.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/host_memory.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

namespace {

// Regions tried for extension in place, largest first; more would be a scan without a gain.
constexpr std::size_t kExtensionCandidates = 8;

// Ranges looked at, oldest first, for two ends that spare an idle chunk: it takes about as long as to map these.
constexpr std::size_t kRangesForJoining = 1024;

// What is mapped over the most of it that may be shadows, while memory is to be had.
constexpr Bytes kShadowDivisor = 8;

bool is_hole(const Region* region) { return region != nullptr && region->state == RegionState::hole; }

}  // namespace

bool Planner::is_waitable(const Region& free, std::optional<time::TimelineId> own) const {
  const auto parts = free.stamp.parts();
  return std::all_of(parts.begin(), parts.end(), [&](const time::StampPart& part) {
    return (own && part.timeline == *own) || timelines_.is_waitable(part);
  });
}

void Planner::add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own, Vector<time::StampPart>& waits) {
  for (const time::StampPart& part : stamp.parts()) {
    if (own && part.timeline == *own) continue;
    const auto same = std::find_if(waits.begin(), waits.end(),
                                   [&](const time::StampPart& wait) { return wait.timeline == part.timeline; });
    if (same == waits.end())
      waits.push_back(part);
    else
      same->sequence = std::max(same->sequence, part.sequence);
  }
}

bool Planner::may_wait(const Need& need, Effort effort) const {
  if (!need.may_wait) return false;
  if (effort == Effort::wait_too) return true;
  return effort == Effort::by_policy && policy_.waiting() != Waiting::never &&
         policy_.grow_first(need.demand(need.size)) == 0;
}

bool Planner::is_takeable(const Region& free, const Need& need, Effort effort) const {
  if (is_usable(free, need.own)) return true;
  return may_wait(need, effort) && is_waitable(free, need.own);
}

// Free regions next to a hole, largest first: extending one moves the fewest pages.
Vector<Region*> Planner::extensible(const Need& need, Effort effort) const {
  Vector<Region*> found;
  index_.for_each_free_by_age([&](Region* free) {
    if (!is_takeable(*free, need, effort)) return true;
    if (region::RegionIndex::aligned_start(*free, need.size, need.alignment)) return true;  // fits as it is
    if (is_hole(free->next) || (is_hole(free->previous) && need.alignment <= index_.page_size())) found.push_back(free);
    return true;
  });
  const auto larger = [](const Region* a, const Region* b) {
    return a->range.size != b->range.size ? a->range.size > b->range.size : a->range.begin < b->range.begin;
  };
  const std::size_t kept = std::min(found.size(), kExtensionCandidates);
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(), larger);
  found.resize(kept);
  return found;
}

// Note [Large chunks move first]
// A moved chunk costs the same whatever its size, and small chunks are what small requests are best put together from.
// So ranges give in the order of the mean size of their chunks, sizes between two powers of two being alike; among
// those the oldest first.
Vector<Region*> Planner::by_chunk_size(const Need& need) const {
  Vector<std::pair<int, Region*>> ranked;
  index_.for_each_free_by_age([&](Region* free) {
    if (free->range.size < page_size_ || !is_usable(*free, need.own)) return true;
    Bytes bytes = 0;
    std::uint64_t chunks = 0;
    chunks_.for_each_inside(free->range, [&](const vm::Mapping& mapping) {
      bytes += mapping.chunk->size;
      ++chunks;
      return true;
    });
    if (chunks > 0) ranked.emplace_back(std::bit_width(bytes / chunks), free);
    return true;
  });
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  Vector<Region*> ranges;
  ranges.reserve(ranked.size());
  for (const auto& [rank, free] : ranked) ranges.push_back(free);
  return ranges;
}

// Whole chunks from the front of `from`, as one stretch, as long as they are not larger than what is still wanted.
void Planner::take_chunks(Region* from, Bytes wanted, Harvest& harvest) const {
  Move move{from, {}, from->stamp, {}};
  chunks_.for_each_inside(from->range, [&](const vm::Mapping& mapping) {
    if (mapping.chunk->size > wanted - move.range.size) return false;
    if (move.chunks.empty()) move.range.begin = mapping.at;
    move.range.size += mapping.chunk->size;
    move.chunks.push_back(mapping);
    return true;
  });
  if (move.chunks.empty()) return;
  harvest.bytes += move.range.size;
  harvest.moves.push_back(std::move(move));
}

// Note [The last chunk is the one that fits best]
// Chunks move whole, so the last one of a harvest may be larger than what is wanted of it, and its rest is pinned. So
// chunks that are not larger come first, also small ones, and for what is left the smallest that is large enough: of
// the ranges that give nothing yet, or next to what the others give.
void Planner::take_last(const Vector<Region*>& ranges, const Region* except, Bytes lacking, Harvest& harvest) const {
  const auto move_of = [&](const Region* free) {
    return std::find_if(harvest.moves.begin(), harvest.moves.end(),
                        [&](const Move& move) { return move.from == free; });
  };
  std::optional<vm::Mapping> best;
  Region* from = nullptr;
  for (Region* free : ranges) {
    if (best && best->chunk->size == lacking) break;
    if (free == except || free->range.size < lacking) continue;
    const auto gives = move_of(free);
    const bool gives_already = gives != harvest.moves.end();
    const DevicePtr begin = gives_already ? gives->range.end() : free->range.begin;
    chunks_.for_each_inside({begin, free->range.end() - begin}, [&](const vm::Mapping& mapping) {
      if (mapping.chunk->size >= lacking && (!best || mapping.chunk->size < best->chunk->size)) {
        best = mapping;
        from = free;
      }
      return !gives_already;
    });
  }
  if (!best) return;
  harvest.bytes += best->chunk->size;
  const auto gives = move_of(from);
  if (gives == harvest.moves.end()) {
    harvest.moves.push_back({from, best->range(), from->stamp, {*best}});
    return;
  }
  gives->range.size += best->chunk->size;
  gives->chunks.push_back(*best);
}

Planner::Harvest Planner::harvest(Bytes wanted, const Region* except, const Need& need, Effort effort,
                                  Supply& supply) const {
  Harvest harvest;
  const auto collect = [&](const Vector<Region*>& ranges) {
    for (Region* free : ranges) {
      if (harvest.bytes >= wanted) return;
      if (free != except) take_chunks(free, wanted - harvest.bytes, harvest);
    }
    if (harvest.bytes < wanted) take_last(ranges, except, wanted - harvest.bytes, harvest);
  };
  if (wanted == 0) return harvest;
  if (!supply) supply = by_chunk_size(need);
  collect(*supply);
  if (harvest.bytes >= wanted || !may_wait(need, effort)) return harvest;
  Vector<Region*> waitable;
  index_.for_each_free_by_age([&](Region* free) {
    if (!is_usable(*free, need.own) && is_waitable(*free, need.own)) waitable.push_back(free);
    return true;
  });
  collect(waitable);
  return harvest;
}

// Note [Ends of chunks in use]
// A chunk that is partly in use cannot move. But what is free at one end of it can be used elsewhere all the same: the
// chunk is mapped a second time, whole, so that this end joins the new span. A free back begins the span, a free front
// ends it, so there are two ends in a plan at most. The other addresses of the two mappings are shadows (Note [A chunk
// may be in two mappings]). It costs what moving a chunk does, and takes the place of memory that would be created, or
// of an idle chunk that would be partly used. But such a chunk is idle only when it is free in both places, so no more
// than a share of what is mapped becomes shadows.

namespace {

// Of ends that are large enough the smallest is better, else the largest.
bool is_better(Bytes size, const std::optional<End>& than, Bytes lacking) {
  if (!than) return true;
  const Bytes other = than->range.size;
  return size < lacking ? size > other : other < lacking || size < other;
}

// Takes up to `surplus` from the side of `end` that is away from the chunk's border, and from `surplus`.
void shorten(std::optional<End>& end, bool is_back, Bytes alignment, Bytes& surplus) {
  if (!end) return;
  const Bytes cut = round_down(std::min(surplus, end->range.size - 1), alignment);
  if (is_back) end->range.begin = end->range.begin + cut;
  end->range.size -= cut;
  surplus -= cut;
}

}  // namespace

bool Planner::has_many_shadows(const Need& need, Bytes more) const {
  return index_.bytes(RegionState::shadow) + more > need.mapped / kShadowDivisor;
}

// In place of some of the `lacking` bytes that would be created. Returns what is left to create, in whole pages.
Bytes Planner::take_ends(Plan& plan, Bytes lacking, const Need& need, const EndSearch& search) const {
  const bool grows_back = plan.kept == nullptr || is_hole(plan.kept->next);
  const bool grows_front = plan.kept == nullptr || !grows_back;
  std::size_t looked_at = 0;
  index_.for_each_free_by_age([&](Region* free) {
    if (looked_at++ >= search.most_ranges) return false;
    const AddressRange& range = free->range;
    if (range.size < search.least || free == plan.kept || !is_takeable(*free, need, search.effort)) return true;
    const auto consider = [&](std::optional<End>& best, DevicePtr begin, DevicePtr end, const vm::Mapping& mapping) {
      if (end - begin >= search.least && is_better(end - begin, best, lacking))
        best = End{free, {begin, end - begin}, free->stamp, mapping};
    };
    chunks_.for_each_around({range.begin, 1}, [&](const vm::Mapping& mapping) {
      const DevicePtr end = mapping.range().end();
      if (!grows_front || mapping.at >= range.begin || end > range.end()) return;
      if (is_multiple(range.begin - mapping.at, need.alignment)) consider(plan.first, range.begin, end, mapping);
    });
    chunks_.for_each_around({range.end() - 1, 1}, [&](const vm::Mapping& mapping) {
      if (!grows_back || mapping.at < range.begin || mapping.range().end() <= range.end()) return;
      consider(plan.last, mapping.at, range.end(), mapping);
    });
    return true;
  });
  if (plan.first && plan.last) {
    const Bytes first = plan.first->range.size;
    const Bytes last = plan.last->range.size;
    const bool is_one_enough = std::max(first, last) >= lacking;
    if (is_one_enough || plan.first->mapping.chunk == plan.last->mapping.chunk)
      (is_better(first, plan.last, lacking) ? plan.last : plan.first).reset();
  }
  const Bytes found = (plan.first ? plan.first->range.size : 0) + (plan.last ? plan.last->range.size : 0);
  const Bytes created = found < lacking ? round_up(lacking - found, page_size_) : 0;
  Bytes surplus = found + created - std::min(lacking, found + created);
  shorten(plan.last, false, index_.page_size(), surplus);
  shorten(plan.first, true, std::max(need.alignment, index_.page_size()), surplus);
  return created;
}

// Finds room for `bytes` of mapped space: next to the kept region, else in the smallest hole.
bool Planner::place(Plan& plan, Bytes bytes, const Need& need) const {
  if (plan.kept == nullptr) {
    plan.hole = index_.smallest_hole(bytes, need.alignment);
    if (plan.hole == nullptr) return false;
    plan.mapped = {align_up(plan.hole->range.begin, need.alignment), bytes};
    plan.allocation = plan.mapped.begin + plan.rest_before();
    return true;
  }
  Region* after = plan.kept->next;
  if (is_hole(after) && after->range.size >= bytes && !plan.first) {
    plan.hole = after;
    plan.mapped = {after->range.begin, bytes};
    plan.allocation = plan.kept_range.begin;
    return true;
  }
  Region* before = plan.kept->previous;
  if (need.alignment > index_.page_size() || !is_hole(before) || before->range.size < bytes || plan.last) return false;
  plan.hole = before;
  plan.mapped = {before->range.end() - bytes, bytes};
  plan.allocation = plan.kept_range.end() - need.size;
  return true;
}

std::variant<Plan, NoPlan> Planner::fill(Region* kept, const Need& need, Effort effort, Supply& supply) const {
  Plan plan;
  plan.request = need.size;
  Bytes missing = need.size;
  if (kept != nullptr) {
    const DevicePtr start = align_up(kept->range.begin, need.alignment);
    if (start >= kept->range.end()) return NoPlan{NoPlan::Reason::address_space, need.size};
    plan.kept = kept;
    plan.kept_stamp = kept->stamp;
    plan.kept_range = {start, kept->range.end() - start};
    missing -= std::min(missing, plan.kept_range.size);
    add_waits(kept->stamp, need.own, plan.waits);
  }
  Bytes created = missing;
  const bool is_one_chunk = effort == Effort::grow_only || effort == Effort::apart;
  if (!is_one_chunk) {
    created = effort == Effort::by_policy ? policy_.grow_first(need.demand(missing)) : 0;
    Harvest found = harvest(missing - created, kept, need, effort, supply);
    if (found.bytes < missing - created) created = missing - found.bytes;
    plan.moves = std::move(found.moves);
    const bool is_beyond_budget = effort != Effort::by_policy || policy_.grow_first(need.demand(missing)) == 0;
    const bool is_short = effort != Effort::by_policy;
    if (created > 0 && is_beyond_budget && (is_short || !has_many_shadows(need, 0)))
      created =
          take_ends(plan, created, need, {effort, is_short ? page_size_ : policy_.least_part(need.demand(missing))});
  }
  created = round_up(created, page_size_);
  if (created > need.growth_room) return NoPlan{NoPlan::Reason::memory, created - need.growth_room};
  if (created > 0) plan.creates = is_one_chunk ? Vector<Bytes>{created} : policy_.chunk_sizes(created, need.mapped);
  return laid_out(std::move(plan), need);
}

std::variant<Plan, NoPlan> Planner::laid_out(Plan plan, const Need& need) const {
  for (const time::Stamp& stamp : plan.moved_stamps()) add_waits(stamp, need.own, plan.waits);
  // Whole chunks move, so it may be more than the request.
  const Bytes bytes = plan.moved_bytes() + plan.created_bytes() + plan.end_chunk_bytes();
  if (!place(plan, bytes, need)) return NoPlan{NoPlan::Reason::address_space, bytes};
  return plan;
}

std::optional<Plan> Planner::join(const Need& need) const {
  Plan ends;
  ends.request = need.size;
  if (take_ends(ends, need.size, need, {Effort::move_first, page_size_, kRangesForJoining}) > 0) return std::nullopt;
  if (has_many_shadows(need, ends.end_chunk_bytes())) return std::nullopt;
  std::variant<Plan, NoPlan> joined = laid_out(std::move(ends), need);
  Plan* const plan = std::get_if<Plan>(&joined);
  return plan == nullptr ? std::nullopt : std::optional<Plan>(std::move(*plan));
}

std::variant<Plan, NoPlan> Planner::plan(const Need& need, Effort effort) const {
  Supply supply;
  if (effort == Effort::apart) return fill(nullptr, need, effort, supply);
  std::optional<Bytes> least;  // the smallest shortage of memory met on the way
  for (Region* kept : extensible(need, effort)) {
    std::variant<Plan, NoPlan> result = fill(kept, need, effort, supply);
    if (const Plan* plan = std::get_if<Plan>(&result)) {
      // The front of a range that does not start aligned stays behind; when memory is short it must move, too.
      const bool is_whole = plan->kept_range.begin == kept->range.begin;
      if (is_whole || plan->creates.empty() || effort == Effort::by_policy) return result;
      continue;
    }
    const NoPlan& failure = std::get<NoPlan>(result);
    if (failure.reason == NoPlan::Reason::memory) least = std::min(least.value_or(failure.missing), failure.missing);
  }
  std::variant<Plan, NoPlan> result = fill(nullptr, need, effort, supply);
  NoPlan* failure = std::get_if<NoPlan>(&result);
  if (failure != nullptr && failure->reason == NoPlan::Reason::memory && least)
    failure->missing = std::min(failure->missing, *least);
  return result;
}

}  // namespace vpmm::pool
