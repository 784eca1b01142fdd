// small: the way of a request below a page, and of its free.
#include "small/small_pool.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/check.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

constexpr Bytes kIdleDivisor = 4;

std::uintptr_t tagged(const Region* run) { return reinterpret_cast<std::uintptr_t>(run) | kRunTag; }
std::uintptr_t tagged(const Slab* slab) { return reinterpret_cast<std::uintptr_t>(slab); }

bool earlier(const time::StampPart& a, const time::StampPart& b) {
  return a.timeline != b.timeline ? a.timeline < b.timeline : a.sequence < b.sequence;
}

// The smallest class whose blocks all begin at `alignment`, which divides a unit; none: only a run does.
std::optional<std::size_t> aligned_class(Bytes bytes, Bytes alignment) {
  if (bytes > kLargestBlock) return std::nullopt;
  for (std::size_t c = slab_class(bytes); c < kSlabClasses; ++c)
    if (is_multiple(block_size(c), alignment)) return c;
  return std::nullopt;
}

}  // namespace

SmallPool::SmallPool(pool::Pool& pool, time::Timelines& timelines, std::function<bool()> prove)
    : pool_(pool),
      timelines_(timelines),
      prove_(std::move(prove)),
      page_size_(pool.page_size()),
      directory_(page_size_),
      spans_(kUnit),
      any_(&shards_.emplace_back()),
      waiting_(earlier) {}

bool SmallPool::serves(Bytes bytes, Bytes alignment, Bytes page_size) {
  if (bytes >= page_size || alignment > page_size) return false;
  return std::max(run_units(bytes) * kUnit, alignment) < page_size;
}

// --- a request ------------------------------------------------------------------------------------------------------

Result<DevicePtr> SmallPool::allocate(MutexLock& lock, Bytes bytes, Bytes alignment, const Caller& caller) {
  const Bytes aligned = std::max(alignment, kGrain);
  const std::optional<std::size_t> block = aligned <= kUnit ? aligned_class(bytes, aligned) : std::nullopt;
  const std::uint64_t units = run_units(std::max(bytes, kLeastRun));
  const auto take = [&] {
    return block ? take_block(*block, bytes, caller) : take_run(units, bytes, std::max(aligned, kUnit), caller);
  };
  for (bool has_recalled = false;;) {
    if (const DevicePtr begin = take(); !is_null(begin)) return begin;
    // Another page is cut while little of the pages that are cut already lies idle. Otherwise, and before something
    // would be mapped, what is kept comes back first.
    const bool is_idle = kept_in_arenas_bytes() * kIdleDivisor > arena_bytes();
    const bool has_page = !is_idle && (pool_.fits(page_size_, caller) || recall_one(caller, page_size_));
    if (!has_page && !std::exchange(has_recalled, true)) {
      const bool is_back = recall();
      const Bytes own = caller.timeline == nullptr ? 0 : pending_bytes(caller.timeline->id);
      if ((pending_bytes() > own && prove_()) || is_back) continue;
    }
    Result<void> arena = take_arena(lock, caller);
    if (arena) continue;
    // What the pool waited for in vain may have been parts of pages.
    if (const DevicePtr begin = take(); !is_null(begin)) return begin;
    return std::move(arena.error());
  }
}

Shard& SmallPool::shard_for(const Caller& caller) {
  return caller.timeline == nullptr ? *any_ : shard_of(*caller.timeline);
}

DevicePtr SmallPool::take_block(std::size_t slab_class, Bytes requested, const Caller& caller) {
  Shard& shard = shard_for(caller);
  {
    const SpinGuard guard(shard.lock);
    const DevicePtr block = shard.take_block(slab_class, requested);
    if (!is_null(block)) return block;
  }
  Region* span = take_span(kShapes[slab_class].units * kUnit, kUnit, caller);
  if (span == nullptr) return {};
  Slab* slab = make_slab(span, slab_class, shard);
  const SpinGuard guard(shard.lock);
  shard.open[slab_class].push(slab);
  return shard.take_block(slab_class, requested);
}

DevicePtr SmallPool::take_run(std::uint64_t units, Bytes requested, Bytes alignment, const Caller& caller) {
  Shard& shard = shard_for(caller);
  Region* run = nullptr;
  if (alignment == kUnit) {
    const SpinGuard guard(shard.lock);
    run = shard.take_kept_run(requested);
  }
  if (run == nullptr) {
    run = take_span(units * kUnit, alignment, caller);
    if (run == nullptr) return {};
    ++most_live_;
    Arena& arena = arena_at(run->range.begin);
    arena.owners[arena.unit_of(run->range.begin)].store(tagged(run), std::memory_order_relaxed);
  }
  Arena& arena = arena_at(run->range.begin);
  const SpinGuard guard(shard.lock);
  arena.requested[arena.unit_of(run->range.begin)] = static_cast<std::uint32_t>(requested);
  shard.tally.begin(requested, run->range.size);
  ++shard.tally.allocations;
  return run->range.begin;
}

// A run of units the caller may use at once; null: the pool has to give another page.
Region* SmallPool::take_span(Bytes bytes, Bytes alignment, const Caller& caller) {
  Region* free = spans_.best_fit(bytes, alignment, caller.own());
  if (free == nullptr && recall_one(caller, bytes)) free = spans_.best_fit(bytes, alignment, caller.own());
  if (free == nullptr) return nullptr;
  const std::optional<DevicePtr> start = region::RegionIndex::aligned_start(*free, bytes, alignment);
  VPMM_CHECK(start.has_value(), spans_.picture());
  region::Tenant tenant;
  tenant.requested = bytes;
  if (caller.timeline != nullptr) tenant.timeline = caller.timeline->id;
  count_tenant(tenant.timeline, +1);
  Region* span = spans_.allocate(free, {*start, bytes}, std::move(tenant));
  ++arena_at(*start).occupied;
  return span;
}

// Note [What is left of an arena is as complete as the page was]
// The pool may have given memory that only the caller's stream may use yet. The rest of it then gets a number of that
// stream taken now, after the waits that the pool queued.
Result<void> SmallPool::take_arena(MutexLock& lock, const Caller& caller) {
  VPMM_TRY_ASSIGN(const DevicePtr begin,
                  pool_.allocate(lock, {page_size_, page_size_, pool_.page_alignment()}, caller));
  Region* page = pool_.owner(begin);
  const bool is_complete = pool_.was_complete();
  pool_.disown(page);
  Arena* arena = arenas_.take();
  if (arena->owners == nullptr) {
    const auto units = static_cast<std::size_t>(page_size_ / kUnit);
    arena->owners = static_cast<std::atomic<std::uintptr_t>*>(
        unit_tables_.take(units * sizeof(std::atomic<std::uintptr_t>), alignof(std::atomic<std::uintptr_t>)));
    arena->requested =
        static_cast<std::uint32_t*>(unit_tables_.take(units * sizeof(std::uint32_t), alignof(std::uint32_t)));
  }
  arena->range = page->range;
  arena->page = page;
  set_holder(*page, reinterpret_cast<void*>(PageEntry::of(arena)));
  for (const AddressRange& reservation : pool_.reservations())
    if (reservation.contains(begin)) directory_.cover(reservation);
  if (PageEntry* entry = directory_.at(begin); entry != nullptr)
    entry->owner.store(PageEntry::of(arena), std::memory_order_relaxed);
  spans_.add_reservation(arena->range);
  Region* flying = spans_.detach(spans_.smallest_hole(page_size_, kUnit), arena->range);
  spans_.attach_free(flying, is_complete ? time::Stamp{} : time::Stamp(timelines_.next(*caller.timeline, 0)));
  ++arena_count_;
  pages_.end(page_size_, page_size_);
  --pages_.allocations;
  return {};
}

Slab* SmallPool::make_slab(Region* span, std::size_t slab_class, Shard& shard) {
  Slab* slab = slabs_.take();
  slab->slab_class = slab_class;
  slab->free = slab->shape().all();
  slab->waiting = slab->used_elsewhere = slab->number = 0;
  slab->begin = span->range.begin;
  slab->shard = &shard;
  slab->span = span;
  ++shard.slab_count;
  most_live_ += slab->shape().blocks;
  Arena& arena = arena_at(slab->begin);
  const std::uint64_t first = arena.unit_of(slab->begin);
  for (std::uint64_t unit = first; unit < first + slab->shape().units; ++unit)
    arena.owners[unit].store(tagged(slab), std::memory_order_relaxed);
  return slab;
}

Shard& SmallPool::shard_of(time::Timeline& timeline) {
  const auto found = by_timeline_.find(timeline.id);
  if (found != by_timeline_.end()) return *found->second;
  Shard* shard = nullptr;
  if (unused_shards_.empty()) {
    shard = &shards_.emplace_back();
  } else {
    shard = unused_shards_.back();
    unused_shards_.pop_back();
  }
  by_timeline_.emplace(timeline.id, shard);
  const SpinGuard guard(shard->lock);
  shard->timeline = timeline.id;
  shard->closings_left = 0;
  shard->bytes_freed = 0;
  shard->in_hand.is_used.store(false);
  shard->in_hand.number.store(timeline.last + 1);
  timeline.in_hand = &shard->in_hand;
  shard->wants_attention.store(false, std::memory_order_relaxed);
  shard->stream.store(timeline.stream ? static_cast<std::uint64_t>(*timeline.stream) : 0, std::memory_order_relaxed);
  return *shard;
}

// --- whose an address is
// ----------------------------------------------------------------------------------------------

bool SmallPool::is_arena(const Region& page) {
  return PageEntry::is_arena(reinterpret_cast<std::uintptr_t>(holder_of(page)));
}

Arena& SmallPool::arena_at(DevicePtr p) const {
  const Region* page = pool_.owner(p);
  VPMM_CHECK(page != nullptr && is_arena(*page), fmt::format("no arena around {:#x}", to_integer(p)));
  return *PageEntry::arena(reinterpret_cast<std::uintptr_t>(holder_of(*page)));
}

std::optional<Allocation> SmallPool::find(const Region& page, DevicePtr p) const {
  Allocation found;
  found.arena = PageEntry::arena(reinterpret_cast<std::uintptr_t>(holder_of(page)));
  std::uint64_t unit = found.arena->unit_of(p);
  std::uintptr_t owner = found.arena->owners[unit].load(std::memory_order_relaxed);
  while (owner == 0 && unit > 0) owner = found.arena->owners[--unit].load(std::memory_order_relaxed);
  if (owner == 0) return std::nullopt;
  if ((owner & kRunTag) == 0) {
    found.slab = reinterpret_cast<Slab*>(owner);
    if (!found.slab->span->range.contains(p)) return std::nullopt;
    found.index = found.slab->index_of(p);
    const SpinGuard guard(found.slab->shard->lock);
    if (!found.slab->is_live(found.index)) return std::nullopt;
    found.range = {found.slab->block(found.index), found.slab->shape().block};
    found.requested = found.slab->requested(found.index);
    found.timeline = found.slab->shard->timeline;
    return found;
  }
  found.run = reinterpret_cast<Region*>(owner & ~kRunTag);
  if (!found.run->range.contains(p) || is_kept(*found.run)) return std::nullopt;
  found.range = found.run->range;
  found.requested = found.arena->requested[unit];
  found.timeline = found.run->tenant.timeline;
  return found;
}

const std::vector<time::TimelineId>& SmallPool::other_uses(const Allocation& allocation) const {
  static const std::vector<time::TimelineId> none;
  const auto found = uses_.find(allocation.range.begin);
  return found == uses_.end() ? none : found->second;
}

void SmallPool::record_use(const Allocation& allocation, time::Timeline& timeline) {
  std::vector<time::TimelineId>& uses = uses_[allocation.range.begin];
  if (std::find(uses.begin(), uses.end(), timeline.id) != uses.end()) return;
  uses.push_back(timeline.id);
  ++timeline.tenants;
  if (allocation.slab != nullptr) {
    const SpinGuard guard(allocation.slab->shard->lock);
    allocation.slab->used_elsewhere |= std::uint64_t{1} << allocation.index;
  } else {
    allocation.run->tenant.other_uses = uses;
  }
}

void SmallPool::forget_uses(const Allocation& allocation) {
  const auto found = uses_.find(allocation.range.begin);
  if (found == uses_.end()) return;
  for (const time::TimelineId timeline : found->second) count_tenant(timeline, -1);
  uses_.erase(found);
}

void SmallPool::count_tenant(std::optional<time::TimelineId> timeline, int change) {
  time::Timeline* counted = timeline ? timelines_.find(*timeline) : nullptr;
  if (counted != nullptr) counted->tenants += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

// --- a free
// -----------------------------------------------------------------------------------------------------------

void SmallPool::deallocate(const Allocation& allocation, const time::Stamp& stamp) {
  forget_uses(allocation);
  const time::Stamp rest = timelines_.reduce(stamp);
  if (allocation.slab == nullptr) {
    Shard& shard = allocation.timeline && by_timeline_.contains(*allocation.timeline)
                       ? *by_timeline_.at(*allocation.timeline)
                       : *any_;
    {
      const SpinGuard guard(shard.lock);
      shard.tally.end(allocation.requested, allocation.range.size);
      ++shard.tally.deallocations;
    }
    end_run(allocation.run, rest);
    return;
  }
  Slab* slab = allocation.slab;
  Shard& shard = *slab->shard;
  const bool is_own = rest.is_complete() || (shard.timeline && rest.is_only_on(*shard.timeline));
  {
    const SpinGuard guard(shard.lock);
    slab->used_elsewhere &= ~(std::uint64_t{1} << allocation.index);
    if (is_own) {
      shard.give_block(slab, allocation.index);
      return;
    }
    shard.tally.end(allocation.requested, allocation.range.size);
    ++shard.tally.deallocations;
    slab->waiting |= std::uint64_t{1} << allocation.index;
  }
  waiting_bytes_ += allocation.range.size;
  wait_for({slab, allocation.index, rest});
}

void SmallPool::wait_for(const Waiting& waiting) {
  waiting_[waiting.stamp.parts().front()].push_back(waiting);
  for (const time::StampPart& part : waiting.stamp.parts()) waiting_on_[part.timeline] += waiting.slab->shape().block;
}

void SmallPool::set_free(const Waiting& waiting) {
  Slab* slab = waiting.slab;
  waiting_bytes_ -= slab->shape().block;
  const SpinGuard guard(slab->shard->lock);
  slab->waiting &= ~(std::uint64_t{1} << waiting.index);
  slab->shard->set_free(slab, waiting.index);
}

void SmallPool::advance(const std::vector<time::StampPart>& done) {
  if (done.empty()) return;
  for (const time::StampPart& part : done) {
    spans_.advance(part.timeline, part.sequence);
    const auto first = waiting_.lower_bound({part.timeline, 0});
    const auto last = waiting_.upper_bound(part);
    std::vector<Waiting> ready;
    for (auto it = first; it != last; ++it) ready.insert(ready.end(), it->second.begin(), it->second.end());
    waiting_.erase(first, last);
    for (Waiting& waiting : ready) {
      for (const time::StampPart& was : waiting.stamp.parts()) waiting_on_[was.timeline] -= waiting.slab->shape().block;
      waiting.stamp = timelines_.reduce(waiting.stamp);
      if (waiting.stamp.is_complete()) {
        set_free(waiting);
      } else {
        wait_for(waiting);
      }
    }
    if (const auto on = waiting_on_.find(part.timeline); on != waiting_on_.end() && on->second == 0)
      waiting_on_.erase(on);
  }
  // Complete neighbours became one; a free range of a page is a whole arena.
  while (Region* free = spans_.best_fit(page_size_, kUnit, std::nullopt))
    if (!give_arena_if_idle(free)) break;
}

void SmallPool::end_slab(Slab* slab, const time::Stamp& stamp) {
  if (--slab->shard->slab_count == 0 && !slab->shard->timeline && slab->shard != any_)
    unused_shards_.push_back(slab->shard);
  most_live_ -= slab->shape().blocks;
  Region* span = slab->span;
  slabs_.give_back(slab);
  give_span(span, stamp);
}

void SmallPool::end_run(Region* run, const time::Stamp& stamp) {
  --most_live_;
  give_span(run, stamp);
}

void SmallPool::give_span(Region* span, const time::Stamp& stamp) {
  Arena& arena = arena_at(span->range.begin);
  const std::uint64_t first = arena.unit_of(span->range.begin);
  for (std::uint64_t unit = first; unit < first + span->range.size / kUnit; ++unit)
    arena.owners[unit].store(0, std::memory_order_relaxed);
  --arena.occupied;
  count_tenant(span->tenant.timeline, -1);
  give_arena_if_idle(spans_.release(span, timelines_.reduce(stamp)));
}

bool SmallPool::give_arena_if_idle(Region* free) {
  Arena& arena = arena_at(free->range.begin);
  if (free->range != arena.range) return false;
  const time::Stamp stamp = timelines_.reduce(free->stamp);
  spans_.attach_hole(spans_.detach(free, arena.range));
  spans_.remove_reservation(arena.range);
  if (PageEntry* entry = directory_.at(arena.range.begin); entry != nullptr)
    entry->owner.store(0, std::memory_order_relaxed);
  set_holder(*arena.page, nullptr);
  pool_.deallocate(arena.page, stamp);
  arena.page = nullptr;
  arenas_.give_back(&arena);
  --arena_count_;
  pages_.begin(page_size_, page_size_);
  --pages_.deallocations;
  return true;
}

}  // namespace vpmm::small
