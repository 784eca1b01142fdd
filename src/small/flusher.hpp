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

// Note [What leaves a cache is stamped as it was freed]
// Not later: an event that was recorded since the free proves it.
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

  // All that caches keep comes back. True: something did.
  bool flush() VPMM_REQUIRES(pool_lock) { return flush(FreePages::all); }
  void flush(StreamCache& cache) VPMM_REQUIRES(pool_lock) { flush(cache, FreePages::all); }
  // The memory that the caller's own cache keeps comes back, or else, if it is enough, that of all
  // others: for whole pages, or for parts of pages.
  bool flush_for_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool flush_for_parts(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Note [Streams that work side by side]
  // Each of them keeps the memory that it freed for its own next requests. If one takes it from
  // another, the other soon comes for it: every such call takes the pool's lock, and a call that
  // waits for it may sleep. So as far as early growth goes, a request that caches serve gets new
  // memory instead.
  bool may_grow_instead(const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // The whole pages that the caller's stream keeps come back before a request that no cache serves:
  // cached memory is missing where the best fit is looked for, so larger ranges would be cut
  // instead.
  void give_back_before(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // All of them.
  void give_back_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // One allocation of whole pages of the caller's own that is large enough comes back; the rest
  // stays cached. False: it keeps none.
  bool flush_one(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // The same of another stream's, which is known to be done with it, or whole pages that it cut;
  // more than one where that saves calls (Note [Half is stolen]).
  bool steal(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Caches of streams without a context give back all they keep, and end.
  void retire_dead() VPMM_REQUIRES(pool_lock);

 private:
  // Of a segment that is in use otherwise: they leave it only where there are many of them, or all
  // do.
  enum class FreePages { where_many, all };

  bool flush(FreePages which) VPMM_REQUIRES(pool_lock);
  void flush(StreamCache& cache, FreePages which) VPMM_REQUIRES(pool_lock);
  bool flush_for(const pool::Caller& caller, Bytes worth) VPMM_REQUIRES(pool_lock);
  bool steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size,
                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Of the least size that is large enough, those that the stream is done with, the oldest first:
  // one, and half of the others if `with_half`.
  CachedList take_complete_pages(StreamCache& cache, Bytes at_least, std::uint64_t complete,
                                 bool with_half) VPMM_REQUIRES(pool_lock);
  void take_over(StreamCache& own, region::Region& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Segments of whole pages, `size` at least.
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
  // Of many streams each would come again for the little that it keeps.
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
