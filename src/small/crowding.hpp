// SPDX-License-Identifier: Apache-2.0
// small: how often a stream found the pool's lock taken.
#pragma once

#include <cstdint>

#include "base/mutex.hpp"

namespace vpmm::small {

// Note [Streams that crowd cut their own]
// Requests of a page and more are cut from the pool's memory, under its lock. Threads with sizes
// that seldom repeat wait for each other there. A stream *crowds* after it took that lock for up to
// kMostPages and found it taken four times more often than not. It then cuts such requests from
// pages of its own, like smaller ones, under the lock of its cache. Memory freed there merges with
// its neighbours, for any size. Pages that are all free go back as with smaller requests. A stream
// that crowds seldom takes the lock, and finds it taken even more seldom, so it stops crowding only
// after it was alone there many times.
constexpr std::uint32_t kAlone = 64;
struct Crowding {
  std::uint32_t hindered VPMM_GUARDED_BY(cache_lock) = 0;  // looks that found it taken, less others
  std::uint32_t alone VPMM_GUARDED_BY(cache_lock) = kAlone;  // looks that did not, since it crowds

  bool is_crowded() const VPMM_REQUIRES(cache_lock) { return alone < kAlone; }
  // Counts a request for pages that takes the pool's lock.
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
