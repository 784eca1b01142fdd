// pool: planning: extend in place where that moves fewest pages, harvest idle chunks oldest first, create the rest.
#include "pool/planner.hpp"

#include <algorithm>

namespace vpmm::pool {

using region::Region;
using region::RegionState;

namespace {

// Regions tried for extension in place, largest first; more would be a scan without a gain.
constexpr std::size_t kExtensionCandidates = 8;

Demand demand(const Need& need, Bytes missing) { return {need.size, missing, need.mapped, need.peak_used}; }

bool is_hole(const Region* region) { return region != nullptr && region->state == RegionState::hole; }

}  // namespace

bool Planner::is_waitable(const Region& free, std::optional<time::TimelineId> own) const {
  const auto parts = free.stamp.parts();
  return std::all_of(parts.begin(), parts.end(), [&](const time::StampPart& part) {
    return (own && part.timeline == *own) || timelines_.is_waitable(part);
  });
}

void Planner::add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own,
                        std::vector<time::StampPart>& waits) {
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
         policy_.grow_first(demand(need, need.size)) == 0;
}

bool Planner::is_takeable(const Region& free, const Need& need, Effort effort) const {
  if (is_usable(free, need.own)) return true;
  return may_wait(need, effort) && is_waitable(free, need.own);
}

// Free regions next to a hole, largest first: extending one moves the fewest pages.
std::vector<Region*> Planner::extensible(const Need& need, Effort effort) const {
  std::vector<Region*> found;
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

// Whole chunks from the front of `from`, as one stretch, until `wanted` bytes are reached.
void Planner::take_chunks(Region* from, Bytes wanted, Harvest& harvest) const {
  Move move{from, {}, from->stamp, {}};
  chunks_.for_each_inside(from->range, [&](const vm::Mapping& mapping) {
    if (move.range.size >= wanted) return false;
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
// Chunks move whole, so the last one of a harvest may be larger than what is wanted of it, and its rest is pinned. Of
// all ranges that give nothing yet, the smallest chunk that is large enough takes its place.
void Planner::refit_last(Bytes wanted, const Region* except, const Need& need, Harvest& harvest) const {
  if (harvest.bytes <= wanted) return;
  Move& last = harvest.moves.back();
  const vm::Mapping surplus = last.chunks.back();
  const Bytes needed = wanted - (harvest.bytes - surplus.chunk->size);
  const auto gives_already = [&](const Region* free) {
    return std::any_of(harvest.moves.begin(), harvest.moves.end(), [&](const Move& move) { return move.from == free; });
  };
  vm::Mapping best = surplus;
  Region* from = nullptr;
  index_.for_each_free_by_age([&](Region* free) {
    if (free == except || !is_usable(*free, need.own) || free->range.size < needed || gives_already(free)) return true;
    chunks_.for_each_inside(free->range, [&](const vm::Mapping& mapping) {
      if (mapping.chunk->size < needed || mapping.chunk->size >= best.chunk->size) return true;
      best = mapping;
      from = free;
      return best.chunk->size > needed;
    });
    return best.chunk->size > needed;
  });
  if (from == nullptr) return;
  harvest.bytes -= surplus.chunk->size - best.chunk->size;
  last.range.size -= surplus.chunk->size;
  last.chunks.pop_back();
  if (last.chunks.empty()) harvest.moves.pop_back();
  harvest.moves.push_back({from, best.range(), from->stamp, {best}});
}

Planner::Harvest Planner::harvest(Bytes wanted, const Region* except, const Need& need, Effort effort) const {
  Harvest harvest;
  const auto collect = [&](auto&& admits) {
    index_.for_each_free_by_age([&](Region* free) {
      if (harvest.bytes >= wanted) return false;
      if (free != except && admits(*free)) take_chunks(free, wanted - harvest.bytes, harvest);
      return true;
    });
  };
  collect([&](const Region& free) { return is_usable(free, need.own); });
  refit_last(wanted, except, need, harvest);
  if (harvest.bytes < wanted && may_wait(need, effort))
    collect([&](const Region& free) { return !is_usable(free, need.own) && is_waitable(free, need.own); });
  return harvest;
}

// Finds room for `bytes` of mapped space: next to the kept region, else in the smallest hole.
bool Planner::place(Plan& plan, Bytes bytes, const Need& need) const {
  if (plan.kept == nullptr) {
    plan.hole = index_.smallest_hole(bytes, need.alignment);
    if (plan.hole == nullptr) return false;
    plan.mapped = {align_up(plan.hole->range.begin, need.alignment), bytes};
    plan.allocation = plan.mapped.begin;
    return true;
  }
  Region* after = plan.kept->next;
  if (is_hole(after) && after->range.size >= bytes) {
    plan.hole = after;
    plan.mapped = {after->range.begin, bytes};
    plan.allocation = plan.kept_range.begin;
    return true;
  }
  Region* before = plan.kept->previous;
  if (need.alignment > index_.page_size() || !is_hole(before) || before->range.size < bytes) return false;
  plan.hole = before;
  plan.mapped = {before->range.end() - bytes, bytes};
  plan.allocation = plan.kept_range.end() - need.size;
  return true;
}

std::variant<Plan, NoPlan> Planner::fill(Region* kept, const Need& need, Effort effort) const {
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
    created = effort == Effort::by_policy ? policy_.grow_first(demand(need, missing)) : 0;
    Harvest found = harvest(missing - created, kept, need, effort);
    if (found.bytes < missing - created) created = missing - found.bytes;
    for (const Move& move : found.moves) add_waits(move.stamp, need.own, plan.waits);
    plan.moves = std::move(found.moves);
  }
  created = round_up(created, page_size_);
  if (created > need.growth_room) return NoPlan{NoPlan::Reason::memory, created - need.growth_room};
  if (created > 0)
    plan.creates = is_one_chunk ? std::vector<Bytes>{created} : policy_.chunk_sizes(created, need.mapped);
  const Bytes bytes = plan.moved_bytes() + created;  // whole chunks move, so it may be more than the request
  if (!place(plan, bytes, need)) return NoPlan{NoPlan::Reason::address_space, bytes};
  return plan;
}

std::variant<Plan, NoPlan> Planner::plan(const Need& need, Effort effort) const {
  if (effort == Effort::apart) return fill(nullptr, need, effort);
  std::optional<Bytes> least;  // the smallest shortage of memory met on the way
  for (Region* kept : extensible(need, effort)) {
    std::variant<Plan, NoPlan> result = fill(kept, need, effort);
    if (const Plan* plan = std::get_if<Plan>(&result)) {
      // The front of a range that does not start aligned stays behind; when memory is short it must move, too.
      const bool is_whole = plan->kept_range.begin == kept->range.begin;
      if (is_whole || plan->creates.empty() || effort == Effort::by_policy) return result;
      continue;
    }
    const NoPlan& failure = std::get<NoPlan>(result);
    if (failure.reason == NoPlan::Reason::memory) least = std::min(least.value_or(failure.missing), failure.missing);
  }
  std::variant<Plan, NoPlan> result = fill(nullptr, need, effort);
  NoPlan* failure = std::get_if<NoPlan>(&result);
  if (failure != nullptr && failure->reason == NoPlan::Reason::memory && least)
    failure->missing = std::min(failure->missing, *least);
  return result;
}

}  // namespace vpmm::pool
