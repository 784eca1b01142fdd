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
// Each of a few streams keeps all it freed. Of many, those that are idle would keep more than the
// others use. So every cache may keep kAlwaysKept, and more as far as it is allowed to. A free that
// would leave more takes the pool's lock, and asks there. All that is allowed is half of live and
// cached memory at most, or a little where that is less. Warm calls do not change that sum. So
// whatever is freed in whatever order, caches keep at most as much as is live, and hardly anything
// when nothing is.
//
// Bounds: n caches keep n kAlwaysKept + allowed, and allowed <= (live + cached - n kAlwaysKept) / 2
// after each call through the lock.
class CacheBounds {
 public:
  CacheBounds(pool::Pool& pool, const CutPages& cut_pages, StreamCaches& caches, Flusher& flusher)
      : pool_(pool), cut_pages_(cut_pages), caches_(caches), flusher_(flusher) {}

  // While there are many streams, caches keep within their bound after the call.
  void keep(bool are_many, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Allows the cache as much as it keeps or wants to keep; beyond the bound it gives back.
  void keep(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  // Memory of users, rounded up, of caches, and of frees that wait to come back to a cache: warm
  // calls do not change the sum.
  Bytes live_and_cached_bytes() const VPMM_REQUIRES(pool_lock);
  // Looks whether the stream called since the last look. One that is idle for long gives back all
  // that it keeps. True: it did not call.
  bool look_at(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // All that its stream keeps comes back.
  void give_back(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Its cache ends: the timeline is about to be forgotten.
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
