// context: how many streams a pool remembers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/mutex.hpp"

namespace vpmm::context {

constexpr std::size_t kTimelinesKept = 64;  // more than this many, and idle ones may be forgotten

// Note [Streams that come and go, and streams in turn]
// A stream that ended says so to nobody, and looks like one that calls seldom. Forgetting costs the
// latter a call through the lock each time; remembering the former makes all work slower that goes
// through all streams. So the pool remembers few. A forgotten stream that calls again shows that
// these were too few, and the number doubles. It halves when as many were forgotten and none of
// them came back.
class StreamsKept {
 public:
  std::size_t most() const VPMM_REQUIRES(pool_lock) { return most_; }
  void came_back() VPMM_REQUIRES(pool_lock) {
    most_ = std::min(2 * most_, kMost);
    forgotten_ = 0;
  }
  void is_forgotten() VPMM_REQUIRES(pool_lock) {
    if (++forgotten_ < most_) return;
    most_ = std::max(most_ / 2, kTimelinesKept);
    forgotten_ = 0;
  }

 private:
  static constexpr std::size_t kMost = 4096;  // as many as StreamTable has places

  std::size_t most_ VPMM_GUARDED_BY(pool_lock) = kTimelinesKept;
  std::size_t forgotten_ VPMM_GUARDED_BY(pool_lock) = 0;  // since one came back
};

}  // namespace vpmm::context
