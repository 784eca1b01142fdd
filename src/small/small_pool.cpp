// small: the way of a request below a page, and of its free.
#include "small/small_pool.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

constexpr Bytes kIdleDivisor = 4;
// A stream that has much takes a share of that at once, so that it seldom has to ask; one that has little takes what it
// needs, so that many of them share a page.
constexpr std::uint64_t kShareOfExtents = 64;
constexpr std::uint64_t kSpareSlabs = 2;  // that a shard may cut without a call here

bool earlier(const time::StampPart& a, const time::StampPart& b) {
  return a.timeline != b.timeline ? a.timeline < b.timeline : a.sequence < b.sequence;
}

// Note [An extent is as complete as what it was cut from]
// That may be memory which only the caller's stream may use yet: then it must not leave the hand as if it were
// complete, even if nothing in it was ever used. 0: it is complete.
std::uint64_t number_of(const Region& free) {
  return free.stamp.is_complete() ? 0 : free.stamp.parts().front().sequence;
}

// The smallest class whose blocks all begin at `alignment`, which divides a unit; none: only a run does.
std::optional<std::size_t> aligned_class(Bytes bytes, Bytes alignment) {
  if (bytes > kLargestBlock) return std::nullopt;
  for (std::size_t c = slab_class(bytes); c < kSlabClasses; ++c)
    if (is_multiple(block_size(c), alignment)) return c;
  return std::nullopt;
}

}  // namespace

SmallPool::SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines, const Serving& serving)
    : pool_(pool),
      timelines_(timelines),
      driver_(driver),
      observer_(driver.memory_observer()),
      below_a_page_(serving.below_a_page),
      keeps_pages_(serving.keeps_pages),
      page_unit_(pool.page_size()),
      page_size_(pool.page_size()),
      directory_(page_size_),
      spans_(kUnit),
      any_(&shards_.emplace_back(page_size_)),
      waiting_(earlier) {}

void SmallPool::prepare() {
  for (const AddressRange& reservation : pool_.reservations()) directory_.cover(reservation);
  Shard& first = shards_.emplace_back(page_size_);
  first.is_unused = true;
  unused_shards_.push_back(&first);
}

// --- a request ------------------------------------------------------------------------------------------------------

DevicePtr SmallPool::take(Bytes bytes, Bytes alignment, const Caller& caller) {
  const Bytes aligned = std::max(alignment, kGrain);
  const std::optional<std::size_t> block = aligned <= kUnit ? aligned_class(bytes, aligned) : std::nullopt;
  return block ? take_block(*block, bytes, caller) : take_run(bytes, std::max(alignment, kUnit), caller);
}

pool::PageRequest SmallPool::page_for(Bytes bytes) const {
  return {page_size_, page_size_, pool_.page_alignment(), bytes};
}

bool SmallPool::should_cut_page(const Caller& caller) {
  const bool is_idle = idle_in_arenas_bytes() * kIdleDivisor > arena_bytes();
  return !is_idle && (pool_.can_find(page_for(0), caller) || recall_one(caller, page_size_));
}

Shard& SmallPool::shard_for(const Caller& caller) {
  return caller.timeline == nullptr ? *any_ : shard_of(*caller.timeline);
}

DevicePtr SmallPool::take_block(std::size_t slab_class, Bytes requested, const Caller& caller) {
  Shard& shard = shard_for(caller);
  for (;;) {
    provide_slabs(shard);  // every time: another thread of the stream may have cut them meanwhile
    std::uint64_t missing = 0;
    {
      const CacheGuard guard(shard);
      const DevicePtr block = shard.take_block(slab_class, requested);
      note(shard);
      if (!is_null(block)) return block;
      missing = least_slab(kShapes[slab_class], shard.slab_units[slab_class]).units;
    }
    if (!take_extents(missing, caller)) return {};
  }
}

DevicePtr SmallPool::take_run(Bytes requested, Bytes alignment, const Caller& caller) {
  Shard& shard = shard_for(caller);
  const std::uint64_t units = run_units(requested);
  while (alignment == kUnit) {
    {
      const CacheGuard guard(shard);
      const DevicePtr run = shard.take_run(requested);
      note(shard);
      if (!is_null(run)) return run;
    }
    if (!take_extents(units, caller)) return {};
  }
  Region* const free = spans_.best_fit(units * kUnit, alignment, caller.own());
  if (free == nullptr) return {};
  const std::optional<DevicePtr> start = region::RegionIndex::aligned_start(*free, units * kUnit, alignment);
  VPMM_CHECK(start.has_value(), spans_.picture());
  const std::uint64_t number = number_of(*free);
  Extent* const extent = cut_extent(free, {*start, units * kUnit}, caller);
  const CacheGuard guard(shard);
  shard.attach(extent, number);
  const DevicePtr run = shard.begin_run(*extent, shard.take_units(*extent, extent->find(units)), requested);
  note(shard);
  return run;
}

// Units that the caller may use at once come into its hand, its share of them if there are so many. False: none; the
// pool has to give another page.
bool SmallPool::take_extents(std::uint64_t units, const Caller& caller) {
  Shard& shard = shard_for(caller);
  const Bytes least = units * kUnit;
  const Bytes most = std::max(least, share_of(shard));
  bool crosses = false;
  {
    const CacheGuard guard(shard);
    crosses = shard.crosses_pages(units);
  }
  if (crosses) return take_whole_pages(least, shard, caller);
  Bytes taken = 0;
  while (most - taken >= least) {
    Region* const free = spans_.best_fit(least, kUnit, caller.own());
    if (free == nullptr) break;
    const Bytes most_of_it = std::min(free->range.size, most - taken);
    const AddressRange part = within_a_page(free->range, least, most_of_it);
    const std::uint64_t number = number_of(*free);
    Extent* const extent = cut_extent(free, part, caller);
    taken += part.size;
    const CacheGuard guard(shard);
    shard.attach(extent, number);
  }
  return taken > 0;
}

// The same for runs that may cross pages: pages that nothing was cut from. They become one with pages of the stream
// that end there, so that the next run may begin in these.
bool SmallPool::take_whole_pages(Bytes least, Shard& shard, const Caller& caller) {
  const Bytes size = round_up(least, page_size_);
  Region* const free = spans_.best_fit(size, pool_.page_alignment(), caller.own());
  if (free == nullptr) return false;
  const DevicePtr begin = *region::RegionIndex::aligned_start(*free, size, pool_.page_alignment());
  const AddressRange part{begin, round_down(free->range.end() - begin, page_size_)};
  const Arena& arena = arena_at(begin);
  const std::uint64_t number = number_of(*free);
  {
    // Found and grown under one hold: meanwhile other threads of the stream end slabs and cut them elsewhere.
    const CacheGuard guard(shard);
    if (Extent* const before = pages_until(arena, begin, shard)) {
      before->make_room(part.size / kUnit);  // it may throw, as the next may, so before anything changes
      cut_span(free, part, caller);
      extent_units_ += part.size / kUnit;
      shard.grow(*before, part.size / kUnit, number);
      return true;
    }
  }
  Extent* const extent = cut_extent(free, part, caller);
  const CacheGuard guard(shard);
  shard.attach(extent, number);
  return true;
}

// As much of `room`, up to `most`, as lies in one page, or, where the least needed lies in none, that.
AddressRange SmallPool::within_a_page(AddressRange room, Bytes least, Bytes most) const {
  const Arena& arena = arena_at(room.begin);
  const DevicePtr border = arena.range.begin + (arena.page_of(room.begin) + 1) * page_size_;
  if (room.end() <= border) return {room.begin, most};
  if (border - room.begin >= least) return {room.begin, std::min(border - room.begin, most)};
  const Bytes behind = std::min(room.end() - border, page_size_);
  return behind >= least ? AddressRange{border, std::min(behind, most)} : AddressRange{room.begin, least};
}

Bytes SmallPool::share_of(const Shard& shard) { return shard.extent_units / kShareOfExtents * kUnit; }

void SmallPool::cut_more_pages(const Caller& caller) {
  const Bytes share = share_of(shard_for(caller));
  for (Bytes taken = 2 * page_size_; taken <= share; taken += page_size_) {
    const std::optional<pool::Placed> page = pool_.find(page_for(page_size_), caller);
    if (!page) return;
    cut_page(*page, caller);
  }
}

Extent* SmallPool::cut_extent(Region* free, AddressRange range, const Caller& caller) {
  Extent* const extent = extents_.take();
  cut_span(free, range, caller);
  extent->enter(arena_at(range.begin), range);
  extent_units_ += extent->units;
  return extent;
}

void SmallPool::cut_span(Region* free, AddressRange range, const Caller& caller) {
  region::Tenant tenant;
  tenant.requested = range.size;
  if (caller.timeline != nullptr) tenant.timeline = caller.timeline->id;
  const std::optional<time::TimelineId> timeline = tenant.timeline;
  spans_.allocate(free, range, std::move(tenant));
  count_tenant(timeline, +1);
}

// Note [What is left of a page is as complete as the page was]
// The pool may have given memory that only the caller's stream may use yet. The rest of it then gets a number of that
// stream taken now, after the waits that the pool queued.
void SmallPool::cut_page(const pool::Placed& page, const Caller& caller) {
  const DevicePtr begin = page.begin;
  Region* const region = pool_.owner(begin);
  pool_.disown(region);
  const time::Stamp stamp = page.is_complete ? time::Stamp{} : time::Stamp(timelines_.next(*caller.timeline, 0));
  ScopeExit give_back([&]() VPMM_REQUIRES(pool_lock) {  // short of host memory for the tables of a new arena
    pool_.deallocate(region, stamp);
  });
  Arena& arena = arena_around(begin);
  give_back.dismiss();
  const std::size_t at = arena.page_of(begin);
  arena.pages[at] = region;
  set_arena_in(*region, arena);
  if (arena.entries != nullptr) arena.entries[at].enter(arena, at);
  ++page_count_;
  pages_.was_none(page_size_, page_size_);
  Region* const flying = spans_.detach(spans_.hole_around(begin), {begin, page_size_});
  spans_.attach_free(flying, stamp);
}

// Found or begun.
Arena& SmallPool::arena_around(DevicePtr page) {
  if (const auto after = arena_by_begin_.upper_bound(page); after != arena_by_begin_.begin())
    if (Arena* const arena = std::prev(after)->second; arena->range.contains(page)) return *arena;
  const Vector<AddressRange> reservations = pool_.reservations();
  const auto reservation = std::find_if(reservations.begin(), reservations.end(),
                                        [&](const AddressRange& range) { return range.contains(page); });
  VPMM_CHECK(reservation != reservations.end(), spans_.picture());
  const bool is_alone = pool_.pages_stand_alone();
  const Bytes most = (is_alone ? 1 : kMostArenaPages) * page_size_;
  const DevicePtr whole = is_alone ? page : align_down(page, most);
  const DevicePtr begin = std::max(whole, reservation->begin);
  Arena* const arena = arenas_.take();
  ScopeExit give_back([&]() VPMM_REQUIRES(pool_lock) {  // it keeps its table
    arena_by_begin_.erase(begin);
    arenas_.give_back(arena);
  });
  if (arena->owners == nullptr)
    arena->owners = static_cast<std::atomic<Owner>*>(
        unit_tables_.take(static_cast<std::size_t>(most / kUnit) * sizeof(std::atomic<Owner>), kCacheLine));
  arena->range = {begin, std::min(whole + most, reservation->end()) - begin};
  arena->page_size = page_size_;
  directory_.cover(*reservation);
  arena->entries = directory_.at(begin);
  arena_by_begin_.emplace(begin, arena);
  spans_.add_reservation(arena->range);
  give_back.dismiss();
  return *arena;
}

std::uint64_t SmallPool::most_live() const {
  return std::min(slab_count_ * kMostBlocks, extent_units_ * (kUnit / kGrain)) + extent_units_ / (kLeastRun / kUnit);
}

void SmallPool::provide_slabs(Shard& shard) {
  const CacheGuard guard(shard);
  if (shard.spare_slabs != nullptr) return;
  for (std::uint64_t i = 0; i < kSpareSlabs; ++i) shard.add_spare(slabs_.take());
  shard.slab_count += kSpareSlabs;
  slab_count_ += kSpareSlabs;
}

Shard& SmallPool::shard_of(time::Timeline& timeline) {
  const auto found = by_timeline_.find(timeline.id);
  if (found != by_timeline_.end()) return *found->second;
  Shard* shard = nullptr;
  if (unused_shards_.empty()) {
    shard = &shards_.emplace_back(page_size_);
  } else {
    shard = unused_shards_.back();
    unused_shards_.pop_back();
    shard->is_unused = false;
  }
  by_timeline_.emplace(timeline.id, shard);
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
  shard->unproven.reset();
  const CacheGuard guard(*shard);
  shard->timeline = timeline.id;
  shard->pacing.begin(misses());
  shard->in_hand.begin(timeline.last);
  timeline.in_hand = &shard->in_hand;
  shard->wants_attention.store(false, std::memory_order_relaxed);
  shard->stream.store(timeline.stream ? static_cast<std::uint64_t>(*timeline.stream) : 0, std::memory_order_relaxed);
  return *shard;
}

void SmallPool::count_tenant(std::optional<time::TimelineId> timeline, int change) {
  time::Timeline* counted = timeline ? timelines_.find(*timeline) : nullptr;
  if (counted != nullptr) counted->tenants += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

// --- a free --------------------------------------------------------------------------------------------------------

void SmallPool::deallocate(const Allocation& ended, const time::Stamp& stamp) {
  forget_uses(ended.range.begin);
  Shard& shard = *ended.shard;
  const Waiting waiting{&shard, ended.slab, ended.index, ended.range.begin, ended.range.size, timelines_.reduce(stamp)};
  if (!waiting.stamp.is_complete() && !(ended.timeline && waiting.stamp.is_only_on(*ended.timeline))) {
    waiting_bytes_ += waiting.bytes;
    return wait_for(waiting);
  }
  {
    const CacheGuard guard(shard);
    set_free(waiting, shard.in_hand.of_a_free());
    note(shard);
  }
  if (ended.timeline || &shard == any_) return;
  recall(shard, FreePages::all);  // of a stream that is no more: nobody takes from it
  retire_if_empty(shard);
}

void SmallPool::wait_for(const Waiting& waiting) {
  waiting_[waiting.stamp.parts().front()].push_back(waiting);
  for (const time::StampPart& part : waiting.stamp.parts()) waiting_on_[part.timeline] += waiting.bytes;
}

// `number`: of the free that ended it; 0: it is complete.
void SmallPool::set_free(const Waiting& waiting, std::uint64_t number) {
  Shard& shard = *waiting.shard;
  if (Slab* const slab = waiting.slab) {
    slab->set_waiting(waiting.index, false);
    slab->number = std::max(slab->number, number);
    return shard.set_free(slab, waiting.index);
  }
  Extent* const extent = extent_at(arena_at(waiting.begin), waiting.begin, shard);
  VPMM_CHECK(extent != nullptr, message_of("what waits at {:#x} is nobody's", to_integer(waiting.begin)));
  shard.give_units(*extent, extent->unit_of(waiting.begin), waiting.bytes / kUnit, number);
}

void SmallPool::advance(const Vector<time::StampPart>& done) {
  if (done.empty()) return;
  for (const time::StampPart& part : done) {
    spans_.advance(part.timeline, part.sequence);
    const auto first = waiting_.lower_bound({part.timeline, 0});
    const auto last = waiting_.upper_bound(part);
    Map<time::StampPart, Vector<Waiting>, bool (*)(const time::StampPart&, const time::StampPart&)> ready(earlier);
    for (auto it = first; it != last;) ready.insert(waiting_.extract(it++));
    for (auto& [number, list] : ready)
      for (Waiting& waiting : list) {
        for (const time::StampPart& was : waiting.stamp.parts()) waiting_on_[was.timeline] -= waiting.bytes;
        waiting.stamp = timelines_.reduce(waiting.stamp);
        if (waiting.stamp.is_complete()) {
          waiting_bytes_ -= waiting.bytes;
          const CacheGuard guard(*waiting.shard);
          set_free(waiting, 0);
        } else {
          wait_for(waiting);
        }
      }
    if (const auto on = waiting_on_.find(part.timeline); on != waiting_on_.end() && on->second == 0)
      waiting_on_.erase(on);
  }
  give_idle_pages();
}

// Complete neighbours became one, or a new page was not needed after all.
void SmallPool::give_idle_pages() {
  while (Region* free = spans_.best_fit(page_size_, pool_.page_alignment(), std::nullopt))
    if (!give_pages(free)) break;
}

// One that left its shard, all free.
void SmallPool::end_extent(Extent* extent, const time::Stamp& stamp) {
  extent->leave();
  extent_units_ -= extent->units;
  const AddressRange range = extent->range();
  extents_.give_back(extent);
  const auto split_at = [&](DevicePtr p) VPMM_REQUIRES(pool_lock) {
    Region* const span = spans_.owner(p);
    if (span == nullptr || span->range.begin == p) return;
    count_tenant(span->tenant.timeline, +1);
    spans_.split_allocated(span, p);
  };
  split_at(range.begin);
  split_at(range.end());
  for (DevicePtr at = range.begin; at < range.end();) {
    Region* const span = spans_.owner(at);
    at = span->range.end();
    count_tenant(span->tenant.timeline, -1);
    give_pages(spans_.release(span, timelines_.reduce(stamp)));
  }
}

// What of it is whole pages goes back to the pool. False: nothing.
bool SmallPool::give_pages(Region* free) {
  Arena& arena = arena_at(free->range.begin);
  const Bytes first = round_up(free->range.begin - arena.range.begin, page_size_);
  const Bytes end = round_down(free->range.end() - arena.range.begin, page_size_);
  if (first >= end) return false;
  const time::Stamp stamp = timelines_.reduce(free->stamp);
  const Region* const hole = spans_.attach_hole(spans_.detach(free, {arena.range.begin + first, end - first}));
  const bool is_last = hole->range == arena.range;
  for (Bytes at = first; at < end; at += page_size_) {
    const auto page = static_cast<std::size_t>(at / page_size_);
    if (arena.entries != nullptr) arena.entries[page].leave();
    Region* const region = std::exchange(arena.pages[page], nullptr);
    set_holder(*region, nullptr);
    pool_.deallocate(region, stamp);
    --page_count_;
    pages_.ended_none(page_size_, page_size_);
  }
  if (!is_last) return true;
  spans_.remove_reservation(arena.range);
  arena_by_begin_.erase(arena.range.begin);
  arenas_.give_back(&arena);
  return true;
}

}  // namespace vpmm::small
