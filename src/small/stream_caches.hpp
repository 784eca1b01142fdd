// SPDX-License-Identifier: Apache-2.0
// small: the caches of all streams.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/stable_store.hpp"
#include "pool/pool.hpp"
#include "small/stream_cache.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

class StreamCaches {
 public:
  explicit StreamCaches(Bytes page_size)
      : page_size_(page_size), any_(caches_.emplace_back(page_size)) {}

  // Makes a cache for the first stream.
  void prepare() VPMM_REQUIRES(pool_lock);
  // Cache of a stream, found or begun.
  StreamCache& of(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  StreamCache& of(const pool::Caller& caller) VPMM_REQUIRES(pool_lock) {
    return caller.timeline == nullptr ? any_ : of(*caller.timeline);
  }
  // Cache of a timeline; null if none.
  StreamCache* find(const time::Timeline* timeline) VPMM_REQUIRES(pool_lock);
  // Cache of users that name no stream.
  StreamCache& any() { return any_; }
  // All caches, in service or not.
  Deque<StreamCache>& all() VPMM_REQUIRES(pool_lock) { return caches_; }
  const Deque<StreamCache>& all() const VPMM_REQUIRES(pool_lock) { return caches_; }
  const HashMap<time::TimelineId, StreamCache*>& by_timeline() const VPMM_REQUIRES(pool_lock) {
    return by_timeline_;
  }
  // Provides records for the next few slabs of the cache.
  void provide_slabs(StreamCache& cache) VPMM_REQUIRES(pool_lock);

  // Takes a cache out of service: its context is gone, or the stream is idle.
  void end(time::TimelineId timeline) VPMM_REQUIRES(pool_lock);
  // Makes a cache out of service ready for another stream, if nothing live is left in it.
  void retire_if_empty(StreamCache& cache) VPMM_REQUIRES(pool_lock);

  // Counts a miss: for a while the frees of every other stream are worth an event.
  void want_events(const time::Timeline* except) VPMM_REQUIRES(pool_lock);
  // Number of misses, and of streams with a cache. Any thread, without a lock.
  std::uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  std::uint64_t stream_count() const { return stream_count_.load(std::memory_order_relaxed); }
  // Note [Many streams keep a bounded amount]. Any thread, without a lock.
  bool are_bounded() const { return are_bounded_.load(std::memory_order_relaxed); }
  void set_bounded(bool are_bounded) VPMM_REQUIRES(pool_lock) { are_bounded_.store(are_bounded); }
  // Allows the cache `bytes` beyond kAlwaysKept.
  void allow(StreamCache& cache, Bytes bytes) VPMM_REQUIRES(pool_lock);
  Bytes allowed() const VPMM_REQUIRES(pool_lock) { return allowed_; }  // to all of them

  // --- sums over all caches, read without their locks: approximate while others call ---
  Tally tally() const VPMM_REQUIRES(pool_lock);
  Bytes cached_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes cached_pages_bytes() const VPMM_REQUIRES(pool_lock);
  std::uint64_t slab_count() const VPMM_REQUIRES(pool_lock) {
    return slab_count_;
  }  // spare ones too

 private:
  const Bytes page_size_;
  Deque<StreamCache> caches_ VPMM_GUARDED_BY(pool_lock);
  Vector<StreamCache*> unused_ VPMM_GUARDED_BY(pool_lock);
  HashMap<time::TimelineId, StreamCache*> by_timeline_ VPMM_GUARDED_BY(pool_lock);
  StreamCache& any_;
  StableStore<Slab> slabs_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t slab_count_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes allowed_ VPMM_GUARDED_BY(pool_lock) = 0;
  // Every free reads these, so nothing else is written on their line.
  alignas(kCacheLine) std::atomic<std::uint64_t> misses_{0};
  std::atomic<std::uint64_t> stream_count_{0};
  std::atomic<bool> are_bounded_{false};
};

}  // namespace vpmm::small
