// SPDX-License-Identifier: Apache-2.0
// small: memory that a stream's frees left, and that its next requests take.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/line_allocator.hpp"
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
};

constexpr std::uint64_t kNoHandle = ~std::uint64_t{0};

// The stream that a cache is in service for.
struct Service {
  std::atomic<std::uint64_t> stream{0};  // StreamId; 0: any-stream, or out of service
  // By which the stream called last, if it is one of the primary context.
  std::atomic<std::uint64_t> handle{kNoHandle};
  // None: any-stream, or out of service.
  std::optional<time::TimelineId> timeline VPMM_GUARDED_BY(cache_lock);
};

// Events that other streams want of a stream's frees.
struct FreeEvents {
  time::EventPacing pacing VPMM_GUARDED_BY(cache_lock);
  bool is_due VPMM_GUARDED_BY(cache_lock) = false;
};

// Whether a stream calls.
struct Activity {
  std::uint64_t locked_calls VPMM_GUARDED_BY(cache_lock) =
      0;                                                    // of the stream, with the pool's lock
  std::uint64_t seen VPMM_GUARDED_BY(cache_lock) = 0;       // calls at the last look
  std::uint64_t idle_looks VPMM_GUARDED_BY(pool_lock) = 0;  // since one that saw a call
};

// Note [Many streams keep a bounded amount]: any cache may keep the least that a stream can take of
// a page.
constexpr Bytes kAlwaysKept = kUnit;
struct Keeping {
  Bytes allowed VPMM_GUARDED_BY(pool_lock) = 0;            // beyond kAlwaysKept
  Bytes most VPMM_GUARDED_BY(cache_lock) = kAlwaysKept;    // kAlwaysKept + allowed
  Bytes wanted VPMM_GUARDED_BY(cache_lock) = kAlwaysKept;  // with a free that was too much
};

// Note [A cache is a stream's own]
// Work that is queued on a stream later may use memory that the stream freed, without any proof. So
// that memory stays in the stream's cache. Blocks are cut from slabs, slabs and spans from
// segments; the rest of a segment serves any size. Before the pool maps anything new, caches give
// back memory that no user has. From there on its stamp counts.
//
// Order of locks: the pool's first, then one cache's. A cache begins a line, so that two streams
// share none.
class alignas(kCacheLine) StreamCache {
 public:
  explicit StreamCache(Bytes page_size) : segments(page_size / kUnit), slabs(segments) {}

  SpinLock lock;  // CacheGuard takes it
  // The next call of the stream takes the pool's lock: for an event, or to give memory back.
  std::atomic<bool> wants_attention{false};
  bool is_unused VPMM_GUARDED_BY(pool_lock) = false;  // ready for another stream
  Service service;
  time::NextNumber next_number;
  std::optional<time::StampPart> unproven VPMM_GUARDED_BY(pool_lock);  // its memory waits for that
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
  // It changes under both locks.
  std::optional<time::TimelineId> timeline_now() const
      VPMM_REQUIRES(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS {
    return service.timeline;
  }
  // Pages, free segments and slabs without a live block.
  Bytes cached_bytes() const { return pages.bytes() + segments.free_bytes() + slabs.empty_bytes(); }

  // Whether it is in service for the stream, which is not asked to come to the pool's lock.
  bool serves(driver::StreamId id) const VPMM_REQUIRES(cache_lock) {
    return service.stream.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id) &&
           !wants_attention.load(std::memory_order_relaxed);
  }
  // True: `more` would be too much for it. Then the stream has asked for as much.
  bool refuse(Bytes more) VPMM_REQUIRES(cache_lock) {
    const Bytes kept = cached_bytes() + more;
    const bool is_too_much = kept > keeping.most;
    if (is_too_much) keeping.wanted = kept;
    return is_too_much;
  }
  // Whether the stream called since the last look. Frees by others and warm frees do not count.
  bool look_for_calls() VPMM_REQUIRES(cache_lock) {
    const std::uint64_t calls =
        activity.locked_calls + static_cast<std::uint64_t>(tally.requests());
    return std::exchange(activity.seen, calls) != calls;
  }

  // --- blocks ---
  // A block of the class for the stream's work; null: none cached.
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
  // The same, but no call may take it yet. Clears the mark of record_use.
  void end_block(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    tally.end(slab->requested(index), slab->block_bytes());
    slab->set_used_elsewhere(index, false);
    slab->set_waiting(index, true);
  }

  // --- spans ---
  // For `requested` bytes; null: none cached.
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
  // Requires: a live span begins at unit `first` of the segment, for `requested` bytes. Returns its
  // size in units.
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
  // Null: none of that size is cached.
  region::Region* take_pages(std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    if (pages.of(size).empty()) return nullptr;
    region::Region* const last = pages.take_last(size);
    set_holder(*last, nullptr);
    return last;
  }
  // `number`: of the free that ended them; 0: they are complete.
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
