// SPDX-License-Identifier: Apache-2.0
// small: how often a stream found the pool's lock taken.
#pragma once

#include <cstdint>

#include "base/mutex.hpp"

namespace vpmm::small {

// Note [Streams that crowd cut their own]
// Requests of a page and more are cut from the pool's memory, under its lock. Threads whose sizes
// seldom repeat meet there, where each waits for all others. So a stream that came there for up to
// kMostPages, and found the lock taken four times more often than not, cuts such requests from
// pages of its own as it cuts smaller ones, under the lock of its cache. The memory it frees there
// becomes one with its neighbours, for any size. Pages that are all free go back as they do with
// smaller requests. A stream that crowds seldom comes to the lock, and finds it taken more seldom
// still, so it crowds until it was alone there many times.
constexpr std::uint32_t kAlone = 64;
struct Crowding {
  std::uint32_t hindered VPMM_GUARDED_BY(cache_lock) = 0;  // looks that found it taken, less others
  std::uint32_t alone VPMM_GUARDED_BY(cache_lock) = kAlone;  // looks that did not, since it crowds

  bool is_crowded() const VPMM_REQUIRES(cache_lock) { return alone < kAlone; }
  // A request for pages comes to the pool's lock.
  void note(bool is_lock_taken, std::uint32_t crowded_after) VPMM_REQUIRES(cache_lock) {
    if (is_lock_taken) {
      ++hindered;
      if (hindered >= crowded_after) hindered = alone = 0;
      return;
    }
    if (hindered > 0) --hindered;
    if (alone < kAlone) ++alone;
  }
};

}  // namespace vpmm::small
