// SPDX-License-Identifier: Apache-2.0
// small: memory that caches keep comes back.
#pragma once

#include <cstdint>

#include "pool/pool.hpp"
#include "small/cut_pages.hpp"
#include "small/ownership.hpp"
#include "small/serving.hpp"
#include "small/stream_caches.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Note [Memory that leaves a cache is stamped as it was freed]
// The stamp has the number of the free, and no later one: an event recorded since the free proves
// it.
//
// Memory leaves a cache in steps of one hold of its lock each. Only calls under the pool's lock
// move pages and segments from one cache to another or to the pool, so a page or segment that was
// seen under an earlier hold is still the cache's.
class Flusher {
 public:
  Flusher(pool::Pool& pool, time::Timelines& timelines, const Serving& serving, CutPages& cut_pages,
          StreamCaches& caches, Ownership& ownership)
      : pool_(pool),
        timelines_(timelines),
        serving_(serving),
        cut_pages_(cut_pages),
        caches_(caches),
        ownership_(ownership) {}

  // Takes back all memory that caches keep; true if there was any.
  bool flush() VPMM_REQUIRES(pool_lock) { return flush(FreePages::all); }
  void flush(StreamCache& cache) VPMM_REQUIRES(pool_lock) { flush(cache, FreePages::all); }
  // Takes back the memory of the caller's own cache; if it keeps none, that of all others, if they
  // keep enough. For whole pages, or for parts of pages.
  bool flush_for_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool flush_for_parts(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Note [Streams that work side by side]
  // Each keeps the memory that it freed for its own next requests. A stream that loses memory to
  // another soon takes it back. Every such call takes the pool's lock, and a call that waits for
  // that lock may sleep. So within early growth, a request that caches serve gets new memory
  // instead.
  bool may_grow_instead(const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Takes back the whole pages of the caller's cache before a request that no cache serves: the
  // best fit does not see cached memory, so larger ranges would be cut.
  void give_back_before(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Takes back all whole pages of the caller's cache.
  void give_back_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Takes back one sufficient allocation of whole pages of the caller's cache; false if none.
  bool flush_one(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Takes complete pages, or complete whole pages that were cut, from another stream's cache; more
  // than one where that saves calls (Note [Half is stolen]). False if there are none.
  bool steal(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Flushes and ends caches of streams without a context.
  void retire_dead() VPMM_REQUIRES(pool_lock);

 private:
  // Free pages of a segment in use: they leave if there are many, or always.
  enum class FreePages { where_many, all };

  bool flush(FreePages which) VPMM_REQUIRES(pool_lock);
  void flush(StreamCache& cache, FreePages which) VPMM_REQUIRES(pool_lock);
  bool flush_for(const pool::Caller& caller, Bytes worth) VPMM_REQUIRES(pool_lock);
  bool steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size,
                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Takes complete allocations of the least sufficient size, oldest first: one, and half of the
  // others if `with_half`.
  CachedList take_complete_pages(StreamCache& cache, Bytes at_least, std::uint64_t complete,
                                 bool with_half) VPMM_REQUIRES(pool_lock);
  void take_over(StreamCache& own, region::Region& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Takes complete segments of whole pages, of `size` or more.
  bool steal_segments(StreamCache& cache, std::uint64_t complete, Bytes size,
                      const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  static bool has_many_free_pages(StreamCache& cache);
  // Note [Free pages of segments in use]
  void part_free_pages(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  void part_free_pages(StreamCache& cache, Segment* segment) VPMM_REQUIRES(pool_lock);
  void leave_cache(StreamCache& cache, region::Region& pages) VPMM_REQUIRES(pool_lock, cache_lock);
  Bytes given_back_bytes() const VPMM_REQUIRES(pool_lock) {
    return cut_pages_.free_bytes() + pool_.memory().idle_bytes();
  }
  // Tells if the cache keeps so little that its stream, one of many, would soon take it again.
  bool is_left_alone(const StreamCache& cache) const {
    return caches_.are_bounded() && cache.cached_bytes() <= kAlwaysKept;
  }

  pool::Pool& pool_;
  time::Timelines& timelines_;
  const Serving& serving_;
  CutPages& cut_pages_;
  StreamCaches& caches_;
  Ownership& ownership_;
};

}  // namespace vpmm::small
