// SPDX-License-Identifier: Apache-2.0
// context: the number of streams that a pool remembers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/mutex.hpp"

namespace vpmm::context {

constexpr std::size_t kTimelinesKept = 64;  // above this number idle ones may be forgotten

// Note [Streams that come and go, and streams in turn]
// A stream that ended looks like one that calls seldom. Forgetting the latter costs it a call
// through the lock; remembering the former slows all loops over streams. So the pool remembers few.
// The number doubles when a forgotten stream calls again, and halves after as many were forgotten
// and none came back.
class StreamsKept {
 public:
  std::size_t most() const VPMM_REQUIRES(pool_lock) { return most_; }
  void came_back() VPMM_REQUIRES(pool_lock) {
    most_ = std::min(2 * most_, kMost);
    forgotten_ = 0;
  }
  void is_forgotten() VPMM_REQUIRES(pool_lock) {
    ++forgotten_;
    if (forgotten_ < most_) return;
    most_ = std::max(most_ / 2, kTimelinesKept);
    forgotten_ = 0;
  }

 private:
  static constexpr std::size_t kMost = 4096;  // half the places of StreamTable

  std::size_t most_ VPMM_GUARDED_BY(pool_lock) = kTimelinesKept;
  std::size_t forgotten_ VPMM_GUARDED_BY(pool_lock) = 0;  // since one came back
};

}  // namespace vpmm::context
