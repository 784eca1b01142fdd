// SPDX-License-Identifier: Apache-2.0
// small: memory that a stream freed, for its next requests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/line_allocator.hpp"
#include "base/no_host_memory.hpp"
#include "base/spin_lock.hpp"
#include "driver/types.hpp"
#include "region/region.hpp"
#include "small/cached_pages.hpp"
#include "small/crowding.hpp"
#include "small/stream_segments.hpp"
#include "small/stream_slabs.hpp"
#include "small/tally.hpp"
#include "time/event_pacing.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

class StreamCache;

// Holds the lock of a cache, with its role (Note [Locks by their roles]). Not analysed, like
// PoolLock.
class VPMM_SCOPED_LOCK CacheGuard {
 public:
  explicit CacheGuard(StreamCache& cache) noexcept VPMM_ACQUIRE(cache_lock);
  ~CacheGuard() VPMM_RELEASE();
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;

 private:
  SpinLock& lock_;
  [[no_unique_address]] NoHostMemory no_host_memory_;
};

constexpr std::uint64_t kNoHandle = ~std::uint64_t{0};

// Stream that a cache is in service for.
struct Service {
  std::atomic<std::uint64_t> stream{0};  // StreamId; 0: any-stream, or out of service
  // Handle of the stream's last call, for a stream of the primary context.
  std::atomic<std::uint64_t> handle{kNoHandle};
  // nullopt: any-stream, or out of service.
  std::optional<time::TimelineId> timeline VPMM_GUARDED_BY(cache_lock);
};

// Events behind a stream's frees, wanted by other streams.
struct FreeEvents {
  time::EventPacing pacing VPMM_GUARDED_BY(cache_lock);
  bool is_due VPMM_GUARDED_BY(cache_lock) = false;
};

// Calls of a stream, to find idle ones.
struct Activity {
  std::uint64_t locked_calls VPMM_GUARDED_BY(cache_lock) =
      0;                                                    // of the stream, with the pool's lock
  std::uint64_t seen VPMM_GUARDED_BY(cache_lock) = 0;       // calls at the last look
  std::uint64_t idle_looks VPMM_GUARDED_BY(pool_lock) = 0;  // since one that saw a call
};

// Kept by any cache (Note [Many streams keep a bounded amount]): the least part of a page that a
// stream can take.
constexpr Bytes kAlwaysKept = kUnit;
struct Keeping {
  Bytes allowed VPMM_GUARDED_BY(pool_lock) = 0;            // beyond kAlwaysKept
  Bytes most VPMM_GUARDED_BY(cache_lock) = kAlwaysKept;    // kAlwaysKept + allowed
  Bytes wanted VPMM_GUARDED_BY(cache_lock) = kAlwaysKept;  // with a free that was too much
};

// Note [A cache is a stream's own]
// Later work of a stream may use memory that the stream freed, without proof. So that memory stays
// in the stream's cache. Blocks are cut from slabs, slabs and spans from segments; the rest of a
// segment serves any size. Before the pool maps new memory, caches give back their idle memory.
// From then on its stamp counts.
//
// Lock order: the pool's lock, then one cache's. Aligned to a line, so that streams share none.
class alignas(kCacheLine) StreamCache {
 public:
  explicit StreamCache(Bytes page_size) : segments(page_size / kUnit), slabs(segments) {}

  SpinLock lock;  // CacheGuard takes it
  // Sends the next call of the stream to the pool's lock: for an event, or to give memory back.
  std::atomic<bool> wants_attention{false};
  bool is_unused VPMM_GUARDED_BY(pool_lock) = false;  // ready for another stream
  Service service;
  time::NextNumber next_number;
  std::optional<time::StampPart> unproven VPMM_GUARDED_BY(pool_lock);  // its memory waits for this
  FreeEvents events;
  Tally tally VPMM_GUARDED_BY(cache_lock);
  Activity activity;
  Keeping keeping;
  Crowding crowding;
  CachedPages pages;
  StreamSegments segments;
  StreamSlabs slabs;

  // Any thread, without a lock.
  Tally tally_now() const VPMM_NO_THREAD_SAFETY_ANALYSIS { return tally.now(); }
  // Needs one lock: the field changes under both.
  std::optional<time::TimelineId> timeline_now() const
      VPMM_REQUIRES(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS {
    return service.timeline;
  }
  // Pages, free segments and slabs without a live block.
  Bytes cached_bytes() const { return pages.bytes() + segments.free_bytes() + slabs.empty_bytes(); }

  // Tells if the cache serves this stream and its next call need not take the pool's lock.
  bool serves(driver::StreamId id) const VPMM_REQUIRES(cache_lock) {
    return service.stream.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id) &&
           !wants_attention.load(std::memory_order_relaxed);
  }
  // Tells if `more` bytes exceed the bound; if so, notes the amount as wanted.
  bool refuse(Bytes more) VPMM_REQUIRES(cache_lock) {
    const Bytes kept = cached_bytes() + more;
    const bool is_too_much = kept > keeping.most;
    if (is_too_much) keeping.wanted = kept;
    return is_too_much;
  }
  // Tells if the stream called since the last look; warm frees and frees by others do not count.
  bool look_for_calls() VPMM_REQUIRES(cache_lock) {
    const std::uint64_t calls =
        activity.locked_calls + static_cast<std::uint64_t>(tally.requests());
    return std::exchange(activity.seen, calls) != calls;
  }

  // --- blocks ---
  // Takes a block of the class; null if none is cached.
  DevicePtr take_block(std::size_t slab_class, Bytes requested) VPMM_REQUIRES(cache_lock) {
    const DevicePtr block = slabs.take(slab_class, requested, this);
    if (!is_null(block)) tally.begin(requested, kShapes[slab_class].block);
    return block;
  }
  // Requires: block `index` of `slab` is live.
  void give_block(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    tally.end(slab->requested(index), slab->block_bytes());
    slab->number = next_number.of_a_free();
    slabs.give(slab, index);
  }
  // Ends the block; no call may take it yet. Clears the mark of record_use.
  void end_block(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    tally.end(slab->requested(index), slab->block_bytes());
    slab->set_used_elsewhere(index, false);
    slab->set_waiting(index, true);
  }

  // --- spans ---
  // Takes a span for `requested` bytes; null if none is cached.
  DevicePtr take_span(Bytes requested) VPMM_REQUIRES(cache_lock) {
    const auto [segment, place] = segments.find(span_units(requested));
    return segment == nullptr ? DevicePtr{} : begin_span(*segment, place, requested);
  }
  DevicePtr begin_span(Segment& segment, const FreeStretches::UnitPlace& place, Bytes requested)
      VPMM_REQUIRES(cache_lock) {
    const std::uint64_t first = segments.take(segment, place);
    segment.begin_span(first, requested);
    tally.begin(requested, place.wanted.units * kUnit);
    segments.count_span(place.wanted.units, +1);
    return segment.at(first);
  }
  // Ends the span; returns its units. Requires: a live span for `requested` bytes begins at
  // `first`.
  std::uint64_t end_span(Segment& segment, std::uint64_t first, Bytes requested)
      VPMM_REQUIRES(cache_lock) {
    segment.end_span(first);
    const std::uint64_t units = span_units(requested);
    tally.end(requested, units * kUnit);
    segments.count_span(units, -1);
    return units;
  }
  void give_span(Segment& segment, std::uint64_t first, Bytes requested) VPMM_REQUIRES(cache_lock) {
    const std::uint64_t units = end_span(segment, first, requested);
    segments.give(segment, first, units, next_number.of_a_free());
  }

  // --- whole pages ---
  // Takes pages of that size; null if none are cached.
  region::Region* take_pages(std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    if (pages.of(size).empty()) return nullptr;
    region::Region* const last = pages.take_last(size);
    set_holder(*last, nullptr);
    return last;
  }
  // Caches pages. `number`: of the free that ended them; 0: complete.
  void put_pages(region::Region* region, std::uint64_t size, std::uint64_t number)
      VPMM_REQUIRES(cache_lock) {
    pages.add(size, region, number);
    set_holder(*region, this);
  }
};

inline CacheGuard::CacheGuard(StreamCache& cache) noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS
    : lock_(cache.lock) {
  lock_.lock();
}
inline CacheGuard::~CacheGuard() VPMM_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

}  // namespace vpmm::small
