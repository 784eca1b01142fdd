// small: what one stream has cached: memory that its own frees left, and that its next requests take.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/spin_lock.hpp"
#include "driver/types.hpp"
#include "region/region.hpp"
#include "small/cached_pages.hpp"
#include "small/segment.hpp"
#include "small/slab.hpp"
#include "time/event_pacing.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Sums over allocations made and ended in a cache. Against the sums of the pool's index, where cached memory still
// counts as allocated, they may be negative.
struct Tally {
  std::int64_t requested = 0;  // bytes
  std::int64_t allocated = 0;  // bytes, rounded up
  std::int64_t allocations = 0;
  std::int64_t deallocations = 0;
  std::int64_t requested_high = 0;  // largest `requested` since somebody last looked

  std::int64_t live() const { return allocations - deallocations; }
  void begin(Bytes asked, Bytes rounded) {
    requested += static_cast<std::int64_t>(asked);
    add_allocated(static_cast<std::int64_t>(rounded));
    ++allocations;
    requested_high = std::max(requested_high, requested);
  }
  void end(Bytes asked, Bytes rounded) {
    requested -= static_cast<std::int64_t>(asked);
    add_allocated(-static_cast<std::int64_t>(rounded));
    ++deallocations;
  }
  // What the index counts as an allocation that somebody made, or ended, and nobody did.
  void was_none(Bytes asked, Bytes rounded) {
    end(asked, rounded);
    --deallocations;
    --allocations;
  }
  void ended_none(Bytes asked, Bytes rounded) {
    begin(asked, rounded);
    --allocations;
    --deallocations;
  }
  // Any thread, without a lock.
  std::int64_t allocated_now() const {
    return std::atomic_ref(const_cast<std::int64_t&>(allocated)).load(std::memory_order_relaxed);
  }

 private:
  void add_allocated(std::int64_t change) {
    std::atomic_ref(allocated).store(allocated + change, std::memory_order_relaxed);
  }
};

class StreamCache;

// Holds the lock of a cache, with its role (Note [Locks by their roles]). Not analysed, like PoolLock.
class VPMM_SCOPED_LOCK CacheGuard {
 public:
  explicit CacheGuard(StreamCache& cache) noexcept VPMM_ACQUIRE(cache_lock);
  ~CacheGuard() VPMM_RELEASE();
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;

 private:
  SpinLock& lock_;
};

constexpr std::uint64_t kNoHandle = ~std::uint64_t{0};

// Note [A cache is a stream's own]
// What a stream freed may be used again by work queued on it later, without any proof: so it stays in the stream's
// cache. Blocks are cut from slabs, slabs and spans from segments; what is left of a segment serves any size. Before
// the pool maps anything new, caches give back what they keep and nobody uses, and from there on its stamp counts.
//
// Order of locks: the pool's first, then one cache's. On its own line, so that two streams share none.
class alignas(kCacheLine) StreamCache {
 public:
  explicit StreamCache(Bytes page_size) : page_units(page_size / kUnit) {}

  SpinLock lock;  // CacheGuard takes it
  // The next call of the stream takes the pool's lock: somebody needs an event, or memory back.
  std::atomic<bool> wants_attention{false};
  bool wants_event VPMM_GUARDED_BY(cache_lock) = false;  // one is due
  std::atomic<std::uint64_t> stream{0};                  // StreamId; 0: any-stream, or out of service
  // By which the stream called last, if it is one of the primary context.
  std::atomic<std::uint64_t> handle{kNoHandle};
  std::optional<time::TimelineId> timeline VPMM_GUARDED_BY(cache_lock);  // none: any-stream, or out of service
  bool is_unused VPMM_GUARDED_BY(pool_lock) = false;                     // waits for another stream
  std::uint64_t activity VPMM_GUARDED_BY(cache_lock) = 0;                // calls served here
  std::uint64_t activity_seen VPMM_GUARDED_BY(cache_lock) = 0;           // when somebody last looked
  time::NextNumber next_number;
  std::optional<time::StampPart> unproven VPMM_GUARDED_BY(pool_lock);  // what it has waits for that
  time::EventPacing pacing VPMM_GUARDED_BY(cache_lock);                // of events that others want of its frees
  Tally tally VPMM_GUARDED_BY(cache_lock);
  std::int64_t requested_noted VPMM_GUARDED_BY(pool_lock) = 0;            // of the tally
  Bytes cached_noted VPMM_GUARDED_BY(pool_lock) = 0;                      // of `cached_bytes`
  std::array<SlabList, kSlabClasses> open VPMM_GUARDED_BY(cache_lock){};  // with a free block; of several none is empty
  std::array<std::uint64_t, kSlabClasses> slab_units VPMM_GUARDED_BY(cache_lock){};  // in slabs of the class
  CachedPages pages VPMM_GUARDED_BY(cache_lock);
  SegmentLists segments VPMM_GUARDED_BY(cache_lock);
  const std::uint64_t page_units;
  Slab* spare_slabs VPMM_GUARDED_BY(cache_lock) = nullptr;      // linked by `next`
  std::uint64_t slab_count VPMM_GUARDED_BY(cache_lock) = 0;     // spare ones too
  std::uint64_t segment_count VPMM_GUARDED_BY(cache_lock) = 0;  // segments that name this cache
  std::uint64_t free_units VPMM_GUARDED_BY(cache_lock) = 0;     // of these, those of no slab or span
  std::uint64_t large_units VPMM_GUARDED_BY(cache_lock) = 0;    // in large spans
  // Written under the lock.
  std::atomic<Bytes> cached_bytes{0};           // pages, free segments, slabs without a live block
  std::atomic<Bytes> cached_pages_bytes{0};     // of these, whole pages
  std::atomic<std::uint64_t> segment_units{0};  // of all segments that name this cache
  std::atomic<std::uint64_t> loose_units{0};    // free pages of segments of several that are in use otherwise

  // Its sums, which are atomic where they are asked for so.
  const Tally& tally_now() const VPMM_NO_THREAD_SAFETY_ANALYSIS { return tally; }

  // Whether it is in service for the stream, and nobody asked that stream to come to the pool's lock.
  bool serves(driver::StreamId id) const VPMM_REQUIRES(cache_lock) {
    return stream.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id) &&
           !wants_attention.load(std::memory_order_relaxed);
  }

  // --- blocks ---
  // A block of the class for the stream's work; null: none cached.
  DevicePtr take_block(std::size_t slab_class, Bytes requested) VPMM_REQUIRES(cache_lock) {
    SlabList& list = open[slab_class];
    if (list.first == nullptr && !cut_slab(slab_class)) return {};
    Slab* const slab = list.first;
    if (slab->is_empty()) keep_bytes(-slab->bytes());
    const std::uint64_t index = slab->take_first();
    if (slab->is_full()) list.remove(slab);
    slab->slack[index] = static_cast<std::uint16_t>(slab->block_bytes() - requested);
    tally.begin(requested, slab->block_bytes());
    return slab->block(index);
  }
  // Requires: block `index` of `slab` is live.
  void give_block(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    tally.end(slab->requested(index), slab->block_bytes());
    slab->number = next_number.of_a_free();
    set_free(slab, index);
  }
  // The same, but nobody may take it before set_free(). Clears what record_use left.
  void end_block(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    tally.end(slab->requested(index), slab->block_bytes());
    slab->set_used_elsewhere(index, false);
    slab->set_waiting(index, true);
  }
  // The block may be taken from now on.
  void set_free(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    const bool was_full = slab->is_full();
    slab->give(index);
    SlabList& list = open[slab->slab_class];
    if (was_full) {
      if (list.first != nullptr && list.first->is_empty()) end_slab(list.first);
      list.push(slab);
    }
    if (!slab->is_empty()) return;
    keep_bytes(slab->bytes());
    // The only one stays, so that a loop does not cut it again and again.
    if (slab->next != nullptr || slab->previous != nullptr) end_slab(slab);
  }
  void add_spare(Slab* slab) VPMM_REQUIRES(cache_lock) {
    slab->next = spare_slabs;
    spare_slabs = slab;
  }
  // An open slab without a live block becomes units of its segment.
  void end_slab(Slab* slab) VPMM_REQUIRES(cache_lock) {
    keep_bytes(-slab->bytes());
    open[slab->slab_class].remove(slab);
    Segment& segment = *slab->segment;
    slab_units[slab->slab_class] -= slab->units;
    segment.arena->set_content(slab->begin, slab->units, segment);
    give_units(segment, segment.unit_of(slab->begin), slab->units, slab->number);
    add_spare(slab);
  }

  // --- spans ---
  // For `requested` bytes; null: none cached.
  DevicePtr take_span(Bytes requested) VPMM_REQUIRES(cache_lock) {
    const std::uint64_t units = span_units(requested);
    const auto [segment, place] = segments.find(units);
    return segment == nullptr ? DevicePtr{} : begin_span(*segment, take_units(*segment, place), requested);
  }
  // Of units that were taken from the segment.
  DevicePtr begin_span(Segment& segment, std::uint64_t first, Bytes requested) VPMM_REQUIRES(cache_lock) {
    segment.begin_span(first, requested);
    const std::uint64_t units = span_units(requested);
    tally.begin(requested, units * kUnit);
    count_large(units, +1);
    return segment.at(first);
  }
  // Requires: a live span begins at unit `first` of the segment, for `requested` bytes. Returns its size in units.
  std::uint64_t end_span(Segment& segment, std::uint64_t first, Bytes requested) VPMM_REQUIRES(cache_lock) {
    segment.end_span(first);
    const std::uint64_t units = span_units(requested);
    tally.end(requested, units * kUnit);
    count_large(units, -1);
    return units;
  }
  void give_span(Segment& segment, std::uint64_t first, Bytes requested) VPMM_REQUIRES(cache_lock) {
    const std::uint64_t units = end_span(segment, first, requested);
    give_units(segment, first, units, next_number.of_a_free());
  }

  // More than half a page.
  bool is_large(std::uint64_t units) const { return 2 * units > page_units; }
  // Whether spans of so many units may begin in one page and end in the next (Note [Small requests may cross pages]).
  bool crosses_pages(std::uint64_t units) const VPMM_REQUIRES(cache_lock) {
    return is_large(units) && 4 * large_units >= 3 * (segment_units.load(std::memory_order_relaxed) - free_units);
  }

  // Begun (1) or ended (-1).
  void count_large(std::uint64_t units, std::int64_t change) VPMM_REQUIRES(cache_lock) {
    large_units += units * static_cast<std::uint64_t>(change * is_large(units));
  }

  // --- segments ---
  // One whose units are all free. `number`: as complete as they are.
  void attach(Segment* segment, std::uint64_t number) VPMM_REQUIRES(pool_lock, cache_lock) {
    segment->set_all_free();
    segment->number = number;
    segment->set_cache(this);
    ++segment_count;
    add(segment_units, segment->units);
    free_units += segment->units;
    keep_bytes(segment->units * kUnit);
    segments.file(segment);
  }
  void detach(Segment* segment) VPMM_REQUIRES(pool_lock, cache_lock) {
    segments.remove(segment, segment->longest());
    segment->set_cache(nullptr);  // whoever found it for an address of old turns away under this lock
    --segment_count;
    add(segment_units, -std::uint64_t{segment->units});
    free_units -= segment->units;
    keep_bytes(-(segment->units * kUnit));
  }
  std::uint64_t take_units(Segment& segment, const FreeStretches::Place& place) VPMM_REQUIRES(cache_lock) {
    const std::uint32_t longest = segment.longest();
    if (segment.is_free()) keep_loosely(segment);
    const Stretch from = segment.take(place);
    loosen(-segment.paged_units(from, {from.first, place.wanted}, page_units));
    free_units -= place.wanted;
    segments.refile(&segment, longest);
    return from.first;
  }
  // They may be taken from now on. `number`: of the free that ended what was there last; 0: it is complete.
  void give_units(Segment& segment, std::uint64_t first, std::uint64_t units, std::uint64_t number)
      VPMM_REQUIRES(cache_lock) {
    const std::uint32_t longest = segment.longest();
    const Stretch now = segment.give(first, units);
    loosen(segment.paged_units(now, {first, units}, page_units));
    if (segment.is_free()) keep_whole(segment);
    free_units += units;
    segment.number = std::max(segment.number, number);
    segments.refile(&segment, longest);
  }
  // Nobody's pages behind the segment become part of it, all free. `number`: as complete as they are. Requires: the
  // segment has made room.
  void grow(Segment& segment, std::uint64_t units, std::uint64_t number) VPMM_REQUIRES(pool_lock, cache_lock) {
    const std::uint64_t first = segment.units;
    if (segment.is_free()) keep_loosely(segment);
    const std::uint64_t loose = segment.paged_units(page_units);
    segment.grow(units);
    loosen(segment.paged_units(page_units) - loose);
    add(segment_units, units);
    give_units(segment, first, units, number);
  }
  // Free pages of a segment that is in use become segments of their own, which can leave.
  template <typename MakeSegment>
  void part_free_pages(Segment* segment, MakeSegment&& make_segment) VPMM_REQUIRES(pool_lock, cache_lock) {
    while (segment != nullptr) {
      Segment* back = nullptr;
      if (const std::uint64_t at = segment->first_border(page_units)) {
        back = make_segment();
        const std::uint32_t longest = segment->longest();
        segment->split(at, *back);
        ++segment_count;
        segments.refile(segment, longest);
        segments.file(back);
      }
      if (segment->is_free()) {
        loosen(-std::uint64_t{segment->units});
        keep_bytes(segment->units * kUnit);
      }
      segment = back;
    }
  }
  // Whether there are so many that they should (Note [Free pages of segments in use]).
  bool has_many_loose() const {
    return kLooseDivisor * loose_units.load(std::memory_order_relaxed) > segment_units.load(std::memory_order_relaxed);
  }

  // --- whole pages ---
  // Null: none of that many pages cached.
  region::Region* take_pages(std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    if (pages.of(size).empty()) return nullptr;
    const Cached last = pages.take_last(size);
    leave(last);
    return last.region;
  }
  // The first that were freed. Requires: there are so many of that many pages.
  Vector<Cached> take_oldest_pages(std::uint64_t size, std::size_t count) VPMM_REQUIRES(cache_lock) {
    Vector<Cached> oldest = pages.take_first(size, count);
    for (const Cached& cached : oldest) leave(cached);
    return oldest;
  }
  // Of pages that were cached.
  void leave(const Cached& cached) VPMM_REQUIRES(cache_lock) {
    keep_page_bytes(-cached.region->range.size);
    set_holder(*cached.region, nullptr);
  }
  void put_pages(region::Region* region, std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    keep(region, size, next_number.of_a_free());
  }
  // Nobody uses them any more.
  void put_complete_pages(region::Region* region, std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    keep(region, size, 0);
  }

 private:
  // False: no units, or no record for another slab, cached.
  bool cut_slab(std::size_t slab_class) VPMM_REQUIRES(cache_lock) {
    if (spare_slabs == nullptr) return false;
    const SlabShape& shape = kShapes[slab_class];
    SlabSize size = slab_size(shape, slab_units[slab_class], page_units);
    SegmentLists::Found found = segments.find(size.units);
    if (found.segment == nullptr) {
      size = least_slab(shape, slab_units[slab_class]);
      found = segments.find(size.units);
    }
    if (found.segment == nullptr) return false;
    Segment* const segment = found.segment;
    Slab* const slab = std::exchange(spare_slabs, spare_slabs->next);
    slab->slab_class = static_cast<std::uint8_t>(slab_class);
    slab->units = static_cast<std::uint16_t>(size.units);
    slab->blocks = static_cast<std::uint16_t>(size.blocks);
    slab->set_all_free();
    slab->set_cache(this);
    slab->segment = segment;
    slab->begin = segment->at(take_units(*segment, found.place));
    slab_units[slab_class] += size.units;
    segment->arena->set_content(*slab);
    open[slab_class].push(slab);
    keep_bytes(slab->bytes());
    return true;
  }
  void keep(region::Region* region, std::uint64_t size, std::uint64_t number) VPMM_REQUIRES(cache_lock) {
    pages.add(size, {region, number});
    keep_page_bytes(region->range.size);
    set_holder(*region, this);
  }
  static constexpr std::uint64_t kLooseDivisor = 4;

  static void add(std::atomic<Bytes>& sum, Bytes change) {
    sum.store(sum.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void keep_bytes(Bytes change) { add(cached_bytes, change); }
  void loosen(std::uint64_t change) { add(loose_units, change); }
  // A segment that is all free, and one whose pages all are, become each other.
  void keep_loosely(const Segment& segment) VPMM_REQUIRES(cache_lock) {
    keep_bytes(-(segment.units * kUnit));
    if (segment.units > page_units) loosen(segment.units);
  }
  void keep_whole(const Segment& segment) VPMM_REQUIRES(cache_lock) {
    keep_bytes(segment.units * kUnit);
    if (segment.units > page_units) loosen(-std::uint64_t{segment.units});
  }
  void keep_page_bytes(Bytes change) VPMM_REQUIRES(cache_lock) {
    add(cached_bytes, change);
    add(cached_pages_bytes, change);
  }
};

inline CacheGuard::CacheGuard(StreamCache& cache) noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS : lock_(cache.lock) {
  lock_.lock();
}
inline CacheGuard::~CacheGuard() VPMM_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

}  // namespace vpmm::small
