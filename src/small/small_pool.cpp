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
constexpr std::uint64_t kShareOfSegments = 64;
constexpr std::uint64_t kSpareSlabs = 2;  // that a cache may cut without a call here

bool earlier(const time::StampPart& a, const time::StampPart& b) {
  return a.timeline != b.timeline ? a.timeline < b.timeline : a.sequence < b.sequence;
}

// Note [A segment is as complete as what it was cut from]
// That may be memory which only the caller's stream may use yet: then it must not leave the cache as if it were
// complete, even if nothing in it was ever used. 0: it is complete.
std::uint64_t number_of(const Region& free) {
  return free.stamp.is_complete() ? 0 : free.stamp.parts().front().sequence;
}

// The smallest class whose blocks all begin at `alignment`, which divides a unit; none: only a span does.
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
      caches_pages_(serving.caches_pages),
      page_unit_(pool.page_size()),
      page_size_(pool.page_size()),
      pagemap_(page_size_),
      units_(kUnit),
      any_(&caches_.emplace_back(page_size_)),
      waiting_(earlier) {}

void SmallPool::prepare() {
  for (const AddressRange& reservation : pool_.reservations()) pagemap_.cover(reservation);
  StreamCache& first = caches_.emplace_back(page_size_);
  first.is_unused = true;
  unused_caches_.push_back(&first);
}

// --- a request ------------------------------------------------------------------------------------------------------

DevicePtr SmallPool::take(Bytes bytes, Bytes alignment, const Caller& caller) {
  const Bytes aligned = std::max(alignment, kGrain);
  const std::optional<std::size_t> block = aligned <= kUnit ? aligned_class(bytes, aligned) : std::nullopt;
  return block ? take_block(*block, bytes, caller) : take_span(bytes, std::max(alignment, kUnit), caller);
}

pool::PageRequest SmallPool::page_for(Bytes bytes) const {
  return {page_size_, page_size_, pool_.page_alignment(), bytes};
}

bool SmallPool::should_cut_page(const Caller& caller) {
  const bool is_idle = idle_in_arenas_bytes() * kIdleDivisor > arena_bytes();
  return !is_idle && (pool_.can_find(page_for(0), caller) || flush_one(caller, page_size_));
}

StreamCache& SmallPool::cache_for(const Caller& caller) {
  return caller.timeline == nullptr ? *any_ : cache_of(*caller.timeline);
}

DevicePtr SmallPool::take_block(std::size_t slab_class, Bytes requested, const Caller& caller) {
  StreamCache& cache = cache_for(caller);
  for (;;) {
    provide_slabs(cache);  // every time: another thread of the stream may have cut them meanwhile
    std::uint64_t missing = 0;
    {
      const CacheGuard guard(cache);
      const DevicePtr block = cache.take_block(slab_class, requested);
      note(cache);
      if (!is_null(block)) return block;
      missing = least_slab(kShapes[slab_class], cache.slab_units[slab_class]).units;
    }
    if (!take_segments(missing, caller)) return {};
  }
}

DevicePtr SmallPool::take_span(Bytes requested, Bytes alignment, const Caller& caller) {
  StreamCache& cache = cache_for(caller);
  const std::uint64_t units = span_units(requested);
  while (alignment == kUnit) {
    {
      const CacheGuard guard(cache);
      const DevicePtr span = cache.take_span(requested);
      note(cache);
      if (!is_null(span)) return span;
    }
    if (!take_segments(units, caller)) return {};
  }
  Region* const free = units_.best_fit(units * kUnit, alignment, caller.own());
  if (free == nullptr) return {};
  const std::optional<DevicePtr> start = region::RegionIndex::aligned_start(*free, units * kUnit, alignment);
  VPMM_CHECK(start.has_value(), units_.picture());
  const std::uint64_t number = number_of(*free);
  Segment* const segment = cut_segment(free, {*start, units * kUnit}, caller);
  const CacheGuard guard(cache);
  cache.attach(segment, number);
  const DevicePtr span = cache.begin_span(*segment, cache.take_units(*segment, segment->find(units)), requested);
  note(cache);
  return span;
}

// Units that the caller may use at once come into its cache, its share of them if there are so many. False: none; the
// pool has to give another page.
bool SmallPool::take_segments(std::uint64_t units, const Caller& caller) {
  StreamCache& cache = cache_for(caller);
  const Bytes least = units * kUnit;
  const Bytes most = std::max(least, share_of(cache));
  bool crosses = false;
  {
    const CacheGuard guard(cache);
    crosses = cache.crosses_pages(units);
  }
  if (crosses) return take_whole_pages(least, cache, caller);
  Bytes taken = 0;
  while (most - taken >= least) {
    Region* const free = units_.best_fit(least, kUnit, caller.own());
    if (free == nullptr) break;
    const Bytes most_of_it = std::min(free->range.size, most - taken);
    const AddressRange part = within_a_page(free->range, least, most_of_it);
    const std::uint64_t number = number_of(*free);
    Segment* const segment = cut_segment(free, part, caller);
    taken += part.size;
    const CacheGuard guard(cache);
    cache.attach(segment, number);
  }
  return taken > 0;
}

// The same for spans that may cross pages: pages that nothing was cut from. They become one with pages of the stream
// that end there, so that the next span may begin in these.
bool SmallPool::take_whole_pages(Bytes least, StreamCache& cache, const Caller& caller) {
  const Bytes size = round_up(least, page_size_);
  Region* const free = units_.best_fit(size, pool_.page_alignment(), caller.own());
  if (free == nullptr) return false;
  const DevicePtr begin = *region::RegionIndex::aligned_start(*free, size, pool_.page_alignment());
  const AddressRange part{begin, round_down(free->range.end() - begin, page_size_)};
  const Arena& arena = arena_at(begin);
  const std::uint64_t number = number_of(*free);
  {
    // Found and grown under one hold: meanwhile other threads of the stream end slabs and cut them elsewhere.
    const CacheGuard guard(cache);
    if (Segment* const before = pages_until(arena, begin, cache)) {
      before->make_room(part.size / kUnit);  // it may throw, as the next may, so before anything changes
      cut_units(free, part, caller);
      segment_units_ += part.size / kUnit;
      cache.grow(*before, part.size / kUnit, number);
      return true;
    }
  }
  Segment* const segment = cut_segment(free, part, caller);
  const CacheGuard guard(cache);
  cache.attach(segment, number);
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

Bytes SmallPool::share_of(const StreamCache& cache) { return cache.segment_units / kShareOfSegments * kUnit; }

void SmallPool::cut_more_pages(const Caller& caller) {
  const Bytes share = share_of(cache_for(caller));
  for (Bytes taken = 2 * page_size_; taken <= share; taken += page_size_) {
    const std::optional<pool::Placed> page = pool_.find(page_for(page_size_), caller);
    if (!page) return;
    cut_page(*page, caller);
  }
}

Segment* SmallPool::cut_segment(Region* free, AddressRange range, const Caller& caller) {
  Segment* const segment = segments_.take();
  cut_units(free, range, caller);
  segment->enter(arena_at(range.begin), range);
  segment_units_ += segment->units;
  return segment;
}

void SmallPool::cut_units(Region* free, AddressRange range, const Caller& caller) {
  region::Owner owner;
  owner.requested = range.size;
  if (caller.timeline != nullptr) owner.timeline = caller.timeline->id;
  const std::optional<time::TimelineId> timeline = owner.timeline;
  units_.allocate(free, range, std::move(owner));
  count_reference(timeline, +1);
}

// Note [What is left of a page is as complete as the page was]
// The pool may have given memory that only the caller's stream may use yet. The rest of it then gets a number of that
// stream taken now, after the waits that the pool queued.
void SmallPool::cut_page(const pool::Placed& page, const Caller& caller) {
  const DevicePtr begin = page.begin;
  Region* const region = pool_.allocated_around(begin);
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
  Region* const flying = units_.detach(units_.hole_around(begin), {begin, page_size_});
  units_.attach_free(flying, stamp);
}

// Found or begun.
Arena& SmallPool::arena_around(DevicePtr page) {
  if (const auto after = arena_by_begin_.upper_bound(page); after != arena_by_begin_.begin())
    if (Arena* const arena = std::prev(after)->second; arena->range.contains(page)) return *arena;
  const Vector<AddressRange> reservations = pool_.reservations();
  const auto reservation = std::find_if(reservations.begin(), reservations.end(),
                                        [&](const AddressRange& range) { return range.contains(page); });
  VPMM_CHECK(reservation != reservations.end(), units_.picture());
  const bool is_alone = pool_.pages_stand_alone();
  const Bytes most = (is_alone ? 1 : kMostArenaPages) * page_size_;
  const DevicePtr whole = is_alone ? page : align_down(page, most);
  const DevicePtr begin = std::max(whole, reservation->begin);
  Arena* const arena = arenas_.take();
  ScopeExit give_back([&]() VPMM_REQUIRES(pool_lock) {  // it keeps its table
    arena_by_begin_.erase(begin);
    arenas_.give_back(arena);
  });
  if (arena->contents == nullptr)
    arena->contents = static_cast<std::atomic<Content>*>(
        unit_tables_.take(static_cast<std::size_t>(most / kUnit) * sizeof(std::atomic<Content>), kCacheLine));
  arena->range = {begin, std::min(whole + most, reservation->end()) - begin};
  arena->page_size = page_size_;
  pagemap_.cover(*reservation);
  arena->entries = pagemap_.at(begin);
  arena_by_begin_.emplace(begin, arena);
  units_.add_reservation(arena->range);
  give_back.dismiss();
  return *arena;
}

std::uint64_t SmallPool::most_live() const {
  return std::min(slab_count_ * kMostBlocks, segment_units_ * (kUnit / kGrain)) + segment_units_ / (kLeastSpan / kUnit);
}

void SmallPool::provide_slabs(StreamCache& cache) {
  const CacheGuard guard(cache);
  if (cache.spare_slabs != nullptr) return;
  for (std::uint64_t i = 0; i < kSpareSlabs; ++i) cache.add_spare(slabs_.take());
  cache.slab_count += kSpareSlabs;
  slab_count_ += kSpareSlabs;
}

StreamCache& SmallPool::cache_of(time::Timeline& timeline) {
  const auto found = by_timeline_.find(timeline.id);
  if (found != by_timeline_.end()) return *found->second;
  StreamCache* cache = nullptr;
  if (unused_caches_.empty()) {
    cache = &caches_.emplace_back(page_size_);
  } else {
    cache = unused_caches_.back();
    unused_caches_.pop_back();
    cache->is_unused = false;
  }
  by_timeline_.emplace(timeline.id, cache);
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
  cache->unproven.reset();
  const CacheGuard guard(*cache);
  cache->timeline = timeline.id;
  cache->pacing.begin(misses());
  cache->next_number.begin(timeline.last);
  timeline.next_number = &cache->next_number;
  cache->wants_attention.store(false, std::memory_order_relaxed);
  cache->stream.store(timeline.stream ? static_cast<std::uint64_t>(*timeline.stream) : 0, std::memory_order_relaxed);
  return *cache;
}

void SmallPool::count_reference(std::optional<time::TimelineId> timeline, int change) {
  time::Timeline* counted = timeline ? timelines_.find(*timeline) : nullptr;
  if (counted != nullptr) counted->references += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

// --- a free --------------------------------------------------------------------------------------------------------

void SmallPool::deallocate(const Allocation& ended, const time::Stamp& stamp) {
  forget_uses(ended.range.begin);
  StreamCache& cache = *ended.cache;
  const Waiting waiting{&cache, ended.slab, ended.index, ended.range.begin, ended.range.size, timelines_.reduce(stamp)};
  if (!waiting.stamp.is_complete() && !(ended.timeline && waiting.stamp.is_only_on(*ended.timeline))) {
    waiting_bytes_ += waiting.bytes;
    return wait_for(waiting);
  }
  {
    const CacheGuard guard(cache);
    set_free(waiting, cache.next_number.of_a_free());
    note(cache);
  }
  if (ended.timeline || &cache == any_) return;
  flush(cache, FreePages::all);  // of a stream that is no more: nobody takes from it
  retire_if_empty(cache);
}

void SmallPool::wait_for(const Waiting& waiting) {
  waiting_[waiting.stamp.parts().front()].push_back(waiting);
  for (const time::StampPart& part : waiting.stamp.parts()) waiting_on_[part.timeline] += waiting.bytes;
}

// `number`: of the free that ended it; 0: it is complete.
void SmallPool::set_free(const Waiting& waiting, std::uint64_t number) {
  StreamCache& cache = *waiting.cache;
  if (Slab* const slab = waiting.slab) {
    slab->set_waiting(waiting.index, false);
    slab->number = std::max(slab->number, number);
    return cache.set_free(slab, waiting.index);
  }
  Segment* const segment = segment_at(arena_at(waiting.begin), waiting.begin, cache);
  VPMM_CHECK(segment != nullptr, message_of("what waits at {:#x} is nobody's", to_integer(waiting.begin)));
  cache.give_units(*segment, segment->unit_of(waiting.begin), waiting.bytes / kUnit, number);
}

void SmallPool::advance(const Vector<time::StampPart>& done) {
  if (done.empty()) return;
  for (const time::StampPart& part : done) {
    units_.advance(part.timeline, part.sequence);
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
          const CacheGuard guard(*waiting.cache);
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
  while (Region* free = units_.best_fit(page_size_, pool_.page_alignment(), std::nullopt))
    if (!give_pages(free)) break;
}

// One that left its cache, all free.
void SmallPool::end_segment(Segment* segment, const time::Stamp& stamp) {
  segment->leave();
  segment_units_ -= segment->units;
  const AddressRange range = segment->range();
  segments_.give_back(segment);
  const auto split_at = [&](DevicePtr p) VPMM_REQUIRES(pool_lock) {
    Region* const part = units_.allocated_around(p);
    if (part == nullptr || part->range.begin == p) return;
    count_reference(part->owner.timeline, +1);
    units_.split_allocated(part, p);
  };
  split_at(range.begin);
  split_at(range.end());
  for (DevicePtr at = range.begin; at < range.end();) {
    Region* const part = units_.allocated_around(at);
    at = part->range.end();
    count_reference(part->owner.timeline, -1);
    give_pages(units_.release(part, timelines_.reduce(stamp)));
  }
}

// What of it is whole pages goes back to the pool. False: nothing.
bool SmallPool::give_pages(Region* free) {
  Arena& arena = arena_at(free->range.begin);
  const Bytes first = round_up(free->range.begin - arena.range.begin, page_size_);
  const Bytes end = round_down(free->range.end() - arena.range.begin, page_size_);
  if (first >= end) return false;
  const time::Stamp stamp = timelines_.reduce(free->stamp);
  const Region* const hole = units_.attach_hole(units_.detach(free, {arena.range.begin + first, end - first}));
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
  units_.remove_reservation(arena.range);
  arena_by_begin_.erase(arena.range.begin);
  arenas_.give_back(&arena);
  return true;
}

}  // namespace vpmm::small
