// small: what caches keep comes back, and what the figures are meanwhile.
#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/host_memory.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

// Less of what all caches together keep is not worth taking it from streams that will soon want it again: for whole
// pages, of what is mapped; for parts of pages, of what is cut.
constexpr Bytes kCachedDivisor = 256;
constexpr Bytes kCachedPartsDivisor = 16;
// Under the lock of the stream that has them.
constexpr std::uint64_t kMostSegmentsLookedAt = 64;

// Calls `visit(where it begins, what its user asked for)` for what is live.
template <typename Visit>
void for_each_live(const Segment& segment, Visit&& visit) VPMM_REQUIRES(cache_lock) {
  const std::uint64_t first = segment.arena->unit_of(segment.begin);
  for (std::uint64_t unit = 0; unit < segment.units && !segment.is_free();) {
    if (const Slab* const slab = content_in(segment.arena->contents[first + unit]).slab()) {
      for (std::uint64_t i = 0; i < slab->blocks; ++i)
        if (slab->is_live(i)) visit(slab->block(i), slab->requested(i));
      unit += slab->units;
      continue;
    }
    if (!segment.has_span_at(unit)) {
      ++unit;
      continue;
    }
    visit(segment.at(unit), segment.requested(unit));
    unit += span_units(segment.requested(unit));
  }
}

}  // namespace

// --- taking back ---------------------------------------------------------------------------------------------------

bool SmallPool::flush() { return flush(FreePages::all); }

bool SmallPool::flush(FreePages which) {
  peak_ = std::max(peak_, high_everywhere());  // while the pool's index still says what it said beside them
  const Bytes idle = given_back_bytes();
  const std::uint64_t pages = page_count_;
  for (StreamCache& cache : caches_) {
    flush(cache, which);
    retire_if_empty(cache);
  }
  give_idle_pages();
  return given_back_bytes() != idle || page_count_ != pages;
}

bool SmallPool::flush_for_pages(const Caller& caller) {
  return flush_for(caller, std::max(page_size_, pool_.mapped_bytes() / kCachedDivisor));
}

bool SmallPool::flush_for_parts(const Caller& caller) { return flush_for(caller, arena_bytes() / kCachedPartsDivisor); }

bool SmallPool::flush_for(const Caller& caller, Bytes worth) {
  const Bytes idle = given_back_bytes();
  if (caller.timeline != nullptr) flush(cache_of(*caller.timeline), FreePages::where_many);
  flush(*any_, FreePages::where_many);
  if (given_back_bytes() != idle) return true;
  Bytes cached = 0;
  for (const StreamCache& cache : caches_) {
    cached += cache.cached_bytes.load(std::memory_order_relaxed);
    if (cache.has_many_loose()) cached += cache.loose_units.load(std::memory_order_relaxed) * kUnit;
  }
  return cached > 0 && cached >= worth && flush(FreePages::where_many);
}

bool SmallPool::flush_one(const Caller& caller, Bytes size) {
  if (caller.timeline == nullptr) return false;
  StreamCache& cache = cache_of(*caller.timeline);
  Cached cached;
  {
    const CacheGuard guard(cache);
    const std::optional<std::uint64_t> pages = cache.pages.least_from(size / page_size_);
    if (!pages) return false;
    cached.number = cache.pages.of(*pages).back().number;
    cached.region = cache.take_pages(*pages);
    leave_cache(cache, cached);
    note(cache);
  }
  timelines_.claim(*caller.timeline, cached.number, cached.region->range.size);
  pool_.deallocate(cached.region, time::Stamp({caller.timeline->id, cached.number}));
  return true;
}

// Note [Half is stolen]
// Streams that work side by side would come here for every piece that wanders between them. So whoever keeps most is
// asked first, and of the pieces of a size half of the rest goes into the caller's cache; of pages that were cut, half
// of them into the pool, up to the caller's share.
bool SmallPool::steal(const Caller& caller, Bytes size) {
  struct Source {
    Bytes cached = 0;
    StreamCache* cache = nullptr;
    std::uint64_t complete = 0;  // of its timeline
  };
  Vector<Source> sources;
  for (const auto& [id, cache] : by_timeline_) {
    const time::Timeline* const timeline = timelines_.find(id);
    const Bytes cached = cache->cached_bytes.load(std::memory_order_relaxed);
    if (timeline != nullptr && timeline != caller.timeline && cached >= size)
      sources.push_back({cached, cache, timeline->complete});
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.cached > b.cached; });
  const auto any = [&](const auto& takes) VPMM_REQUIRES(pool_lock) {
    for (const Source& source : sources)
      if (takes(*source.cache, source.complete)) return true;
    return false;
  };
  if (size <= page_size_ && any([&](StreamCache& cache, std::uint64_t complete)
                                    VPMM_REQUIRES(pool_lock) { return steal_segments(cache, complete, caller); }))
    return true;
  return any([&](StreamCache& cache, std::uint64_t complete)
                 VPMM_REQUIRES(pool_lock) { return steal_pages(cache, complete, size, caller); });
}

// Those of the least size that is large enough and that the stream is done with, the first that was freed first: one,
// and half of the others if `with_half`.
Vector<Cached> SmallPool::take_complete_pages(StreamCache& cache, std::uint64_t at_least, std::uint64_t complete,
                                              bool with_half) {
  const CacheGuard guard(cache);
  std::optional<std::uint64_t> pages = cache.pages.least_from(at_least);
  while (pages && cache.pages.of(*pages).front().number > complete) pages = cache.pages.least_from(*pages + 1);
  if (!pages) return {};
  const CachedList& cached = cache.pages.of(*pages);
  const std::size_t most = with_half ? 1 + (cached.size() - 1) / 2 : 1;
  std::size_t count = 1;
  while (count < most && cached[count].number <= complete) ++count;
  Vector<Cached> taken = cache.take_oldest_pages(*pages, count);
  for (const Cached& each : taken) leave_cache(cache, each);
  note(cache);
  return taken;
}

bool SmallPool::steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size, const Caller& caller) {
  StreamCache* const own = caller.own() ? &cache_of(*caller.timeline) : nullptr;
  const Vector<Cached> taken = take_complete_pages(cache, size / page_size_, complete, own != nullptr);
  if (taken.empty()) return false;
  pool_.deallocate(taken.front().region, {});
  const auto others = std::span(taken).subspan(1);
  for (const Cached& other : others) {
    const Bytes bytes = round_up(other.region->owner.requested, page_size_);
    pool_.pass_on(other.region, {bytes, bytes, pool_.page_alignment()}, caller);
  }
  if (others.empty()) return true;
  const CacheGuard guard(*own);
  for (const Cached& other : others) {
    const Bytes bytes = other.region->owner.requested;
    own->tally.was_none(bytes, other.region->range.size);
    own->put_complete_pages(other.region, bytes / page_size_);
    enter(*other.region, bytes, *own);
  }
  note(*own);
  return true;
}

bool SmallPool::steal_segments(StreamCache& cache, std::uint64_t complete, const Caller& caller) {
  const std::uint64_t page_units = page_size_ / kUnit;
  Vector<Segment*> taken;
  {
    const Bytes share = caller.timeline == nullptr ? 0 : share_of(cache_of(*caller.timeline));
    const CacheGuard guard(cache);
    const std::uint64_t wanted = std::max<std::uint64_t>(share / page_size_, 1);
    std::uint64_t looked_at = 0;
    if (cache.has_many_loose()) part_free_pages(cache);
    cache.segments.for_each_from(page_units, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free() && segment->units >= page_units && segment->number <= complete) taken.push_back(segment);
      return taken.size() < 2 * wanted && ++looked_at < kMostSegmentsLookedAt;
    });
    taken.resize(std::min<std::uint64_t>(wanted, (taken.size() + 1) / 2));
    for (Segment* segment : taken) cache.detach(segment);
    note(cache);
  }
  for (Segment* segment : taken) end_segment(segment, {});
  return !taken.empty();
}

// Note [Free pages of segments in use]
// A stream whose spans may cross pages wants pages side by side, and what the pool has for one that went back is rarely
// that. So free pages of a segment that is otherwise in use stay where they are until they are a quarter of what the
// stream has, or somebody needs everything.

void SmallPool::part_free_pages(StreamCache& cache) {
  Vector<Segment*> several;
  cache.segments.for_each_from(cache.page_units, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
    if (segment->units > cache.page_units && !segment->is_free()) several.push_back(segment);
    return true;
  });
  for (Segment* segment : several)
    cache.part_free_pages(segment, [&]() VPMM_REQUIRES(pool_lock) { return segments_.take(); });
}

// The index counts them as allocated until the pool has them back.
void SmallPool::leave_cache(StreamCache& cache, const Cached& pages) {
  cache.tally.ended_none(pages.region->owner.requested, pages.region->range.size);
  if (PagemapEntry* entry = pagemap_.at(pages.region->range.begin)) entry->leave();
}

// Note [What leaves a cache is stamped as it was freed]
// Not later: an event that was recorded since the free proves it.
void SmallPool::flush(StreamCache& cache, FreePages which) {
  Vector<Cached> pages;
  Vector<std::pair<Segment*, std::uint64_t>> free;  // and their numbers
  std::optional<time::TimelineId> of_timeline;
  {
    const CacheGuard guard(cache);
    of_timeline = cache.timeline;
    for (SlabList& list : cache.open)
      if (list.first != nullptr && list.first->is_empty()) cache.end_slab(list.first);
    if (which == FreePages::all || cache.has_many_loose()) part_free_pages(cache);
    if (cache.cached_bytes.load(std::memory_order_relaxed) == 0) return;
    cache.segments.for_each([&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free()) free.emplace_back(segment, segment->number);
    });
    for (auto size = cache.pages.least_from(0); size; size = cache.pages.least_from(*size + 1)) {
      const CachedList& freed = cache.pages.of(*size);
      pages.insert(pages.end(), freed.begin(), freed.end());
    }
    for (const auto& [segment, number] : free) cache.detach(segment);
    for (const Cached& cached : pages) {
      cache.leave(cached);
      leave_cache(cache, cached);
    }
    cache.pages.clear();
    if (cache.timeline) cache.wants_attention.store(true, std::memory_order_relaxed);
    note(cache);
  }
  time::Timeline* const timeline = of_timeline ? timelines_.find(*of_timeline) : nullptr;
  std::uint64_t latest = 0;
  Bytes bytes = 0;
  const auto stamp_of = [&](std::uint64_t number) VPMM_REQUIRES(pool_lock) {
    if (number == 0) return time::Stamp{};
    if (timeline != nullptr) return time::Stamp({timeline->id, number});
    return cache.unproven ? timelines_.reduce(time::Stamp(*cache.unproven)) : time::Stamp{};
  };
  for (const Cached& cached : pages) {
    latest = std::max(latest, cached.number);
    bytes += cached.region->range.size;
  }
  for (const auto& [segment, number] : free) {
    latest = std::max(latest, number);
    bytes += segment->units * kUnit;
  }
  if (timeline != nullptr) timelines_.claim(*timeline, latest, bytes);
  for (const auto& [segment, number] : free) end_segment(segment, stamp_of(number));
  for (const Cached& cached : pages) pool_.deallocate(cached.region, stamp_of(cached.number));
}

void SmallPool::want_events(const time::Timeline* except) {
  const std::uint64_t count = misses_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (except == nullptr) return;
  const auto found = by_timeline_.find(except->id);
  if (found == by_timeline_.end()) return;
  const CacheGuard guard(*found->second);
  found->second->pacing.miss(count);
}

void SmallPool::retire_idle() {
  for (auto it = by_timeline_.begin(); it != by_timeline_.end();) {
    StreamCache& cache = *it->second;
    bool is_idle = false;
    {
      const CacheGuard guard(cache);
      is_idle = cache.activity == cache.activity_seen;
      cache.activity_seen = cache.activity;
    }
    time::Timeline* timeline = timelines_.find(it->first);
    const bool is_over = timeline == nullptr || timeline->is_over;
    if (timeline != nullptr && timeline->is_over)
      cache.unproven = timelines_.next(timelines_.every_stream(), cache.cached_bytes.load(std::memory_order_relaxed));
    if (is_over) end_cache(cache);
    if (is_idle || is_over) flush(cache, FreePages::all);
    retire_if_empty(cache);
    if (is_over && timeline != nullptr) timeline->next_number = nullptr;
    it = is_over ? by_timeline_.erase(it) : std::next(it);
  }
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
}

// Note [Caches at a reset]
// Others reset the context, and nobody who frees into a cache asks whether they did. So by the time it is noticed, work
// of the new context may use what was freed: by a stream with a handle that is used again, for one. What the cache has,
// and what its last blocks leave later, waits for an event behind all that is queued by then.

// No call finds it any more: its stream's context is gone, or nothing was left to do.
void SmallPool::end_cache(StreamCache& cache) {
  const CacheGuard guard(cache);
  cache.stream.store(0, std::memory_order_relaxed);
  cache.handle.store(kNoHandle, std::memory_order_relaxed);
  cache.timeline.reset();
}

// One that ended serves another stream when nothing live is left in it.
void SmallPool::retire_if_empty(StreamCache& cache) {
  const CacheGuard guard(cache);
  if (cache.is_unused || cache.timeline || &cache == any_ || cache.segment_count != 0) return;
  while (Slab* const slab = cache.spare_slabs) {
    cache.spare_slabs = slab->next;
    slab->next = nullptr;
    slab->set_cache(nullptr);  // as with segments
    slabs_.give_back(slab);
  }
  slab_count_ -= std::exchange(cache.slab_count, 0);
  cache.is_unused = true;
  unused_caches_.push_back(&cache);
}

// --- figures -------------------------------------------------------------------------------------------------------

Tally SmallPool::tally() {
  Tally sum = pages_;
  sum.requested_high = sum.requested;
  for (StreamCache& cache : caches_) {
    const CacheGuard guard(cache);
    sum.requested += cache.tally.requested;
    sum.allocated += cache.tally.allocated;
    sum.allocations += cache.tally.allocations;
    sum.deallocations += cache.tally.deallocations;
    sum.requested_high += cache.tally.requested_high;
  }
  return sum;
}

Bytes SmallPool::take_peak(const Caller& caller) {
  const auto found = caller.timeline == nullptr ? by_timeline_.end() : by_timeline_.find(caller.timeline->id);
  if (found != by_timeline_.end()) {
    const CacheGuard guard(*found->second);
    note_peak(*found->second);
  }
  const Bytes now = pool_.requested_bytes() + static_cast<Bytes>(pages_.requested + requested_noted_);
  return std::max(std::exchange(peak_, 0), now);
}

Bytes SmallPool::take_peak_everywhere() {
  const Bytes high = high_everywhere();
  return std::max(std::exchange(peak_, 0), high);
}

Bytes SmallPool::high_everywhere() {
  std::int64_t high = pages_.requested;
  for (StreamCache& cache : caches_) {
    const CacheGuard guard(cache);
    high += std::exchange(cache.tally.requested_high, cache.tally.requested);
    note(cache);
  }
  return pool_.requested_bytes() + static_cast<Bytes>(high);
}

void SmallPool::note(StreamCache& cache) {
  requested_noted_ += cache.tally.requested - std::exchange(cache.requested_noted, cache.tally.requested);
  const Bytes cached = cache.cached_bytes.load(std::memory_order_relaxed);
  cached_noted_ += cached - std::exchange(cache.cached_noted, cached);
  pool_.set_cached_bytes(cached_noted_);
}

// Before something of the cache ends through the pool's lock.
void SmallPool::note_peak(StreamCache& cache) {
  note(cache);
  const std::int64_t above = std::exchange(cache.tally.requested_high, cache.tally.requested) - cache.tally.requested;
  const std::int64_t high = pages_.requested + requested_noted_ + above;
  peak_ = std::max(peak_, pool_.requested_bytes() + static_cast<Bytes>(high));
}

Bytes SmallPool::cached_pages_bytes() const {
  Bytes bytes = 0;
  for (const StreamCache& cache : caches_) bytes += cache.cached_pages_bytes.load(std::memory_order_relaxed);
  return bytes;
}

// Without a cache's lock, so while others call it is about what they have.
Bytes SmallPool::idle_in_arenas_bytes() const {
  std::int64_t idle = -pages_.allocated - static_cast<std::int64_t>(cached_pages_bytes());
  for (const StreamCache& cache : caches_) idle -= cache.tally_now().allocated_now();
  return static_cast<Bytes>(std::max<std::int64_t>(0, idle));
}

HashMap<const Region*, SmallPool::Live> SmallPool::live_by_page() const {
  HashMap<const Region*, Live> pages;
  for (const Segment* segment : segments_.all()) {
    StreamCache* const cache = segment->cache();
    if (cache == nullptr) continue;
    const CacheGuard guard(*cache);
    for_each_live(*segment, [&](DevicePtr begin, Bytes requested) {
      Live& page = pages[segment->arena->pages[segment->arena->page_of(begin)]];
      ++page.allocations;
      page.requested += requested;
    });
  }
  return pages;
}

// What the pool's index calls allocated, less what is.
Bytes SmallPool::idle_bytes() { return static_cast<Bytes>(-tally().allocated); }

Bytes SmallPool::pending_bytes(time::TimelineId timeline) const {
  const auto found = waiting_on_.find(timeline);
  return (found == waiting_on_.end() ? 0 : found->second) + units_.pending_bytes(timeline);
}

}  // namespace vpmm::small
