// SPDX-License-Identifier: Apache-2.0
// small: of many streams each keeps a bounded amount, and an idle one nothing.
#pragma once

#include <cstddef>

#include "pool/pool.hpp"
#include "small/cut_pages.hpp"
#include "small/flusher.hpp"
#include "small/stream_caches.hpp"

namespace vpmm::small {

// Note [Many streams keep a bounded amount]
// A few streams keep all they free. Many idle streams would keep more than the others use. So every
// cache may keep kAlwaysKept, and more up to its allowance. A free beyond the allowance takes the
// pool's lock and asks for more there. All allowances together are at most half of live and cached
// memory, or a little where that is less. Warm calls leave that sum as it is. So caches keep at
// most as much as is live, in any order of frees, and little when nothing is live.
//
// Bounds: n caches keep n kAlwaysKept + allowed, and allowed <= (live + cached - n kAlwaysKept) / 2
// after each call through the lock.
class CacheBounds {
 public:
  CacheBounds(pool::Pool& pool, const CutPages& cut_pages, StreamCaches& caches, Flusher& flusher)
      : pool_(pool), cut_pages_(cut_pages), caches_(caches), flusher_(flusher) {}

  // Keeps caches within their bounds while there are many streams.
  void keep(bool are_many, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Allows the cache as much as it keeps or wants to keep; flushes it if that breaks the bound.
  void keep(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  // Memory of users, rounded up, of caches, and of frees that wait to come back to a cache: warm
  // calls do not change the sum.
  Bytes live_and_cached_bytes() const VPMM_REQUIRES(pool_lock);
  // Tells if the stream made no call since the last look. After kLooksUntilIdle such looks its
  // cache is flushed.
  bool look_at(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Takes back all memory that the stream's cache keeps.
  void give_back(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Ends the cache of a timeline that is about to be forgotten.
  void retire(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);

 private:
  Bytes most_allowed() const VPMM_REQUIRES(pool_lock);
  void take_back(StreamCache& cache) VPMM_REQUIRES(pool_lock);

  pool::Pool& pool_;
  const CutPages& cut_pages_;
  StreamCaches& caches_;
  Flusher& flusher_;
  std::size_t turn_ VPMM_GUARDED_BY(pool_lock) = 0;  // the cache that take_back() comes to next
};

}  // namespace vpmm::small
