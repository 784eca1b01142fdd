// time: when a stream's frees are worth an event of their own, because others wait for proof of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/bytes.hpp"

namespace vpmm::time {

// Others that missed want events for this stream's frees: one for at least so many bytes, not sooner than that after
// the last, and only so many, so that a program in a steady state pays for none. Of many streams each has fewer: all of
// them together make at most eight in a millisecond. To look at the clock costs as much as a free, so whoever found it
// too early frees twice as much before it looks again.
//
// `misses`: how many requests found no memory so far, of all streams. Used under the lock of the stream's cache.
class EventPacing {
 public:
  static constexpr Bytes kBytesPerEvent = 8 * kMiB;
  static constexpr Bytes kMostBytesPerLook = 64 * kMiB;
  static constexpr std::uint64_t kIntervalNs = 500'000;  // of up to kStreamsPerInterval streams
  static constexpr std::uint64_t kStreamsPerInterval = 4;
  static constexpr std::uint64_t kEventsPerMiss = 64;

  // For a stream that owes nobody anything.
  void begin(std::uint64_t misses) {
    events_left_ = 0;
    misses_seen_ = misses;
    bytes_freed_ = bytes_per_look_ = 0;
  }
  // The stream itself missed: its own frees are of no use to it.
  void miss(std::uint64_t misses) { misses_seen_ = misses; }

  // Whether the free of so many bytes is the one to record an event behind. `now_ns` is asked for the time, seldom.
  template <typename Clock>
  bool is_due(Bytes freed, std::uint64_t misses, std::uint64_t streams, const Clock& now_ns) {
    if (misses_seen_ != misses) {
      misses_seen_ = misses;
      const bool was_satisfied = std::exchange(events_left_, kEventsPerMiss) == 0;
      if (was_satisfied) bytes_per_look_ = kBytesPerEvent;
    }
    if (events_left_ == 0) return false;
    bytes_freed_ += freed;
    if (bytes_freed_ < bytes_per_look_) return false;
    bytes_freed_ = 0;
    const std::uint64_t now = now_ns();
    if (now - closed_ns_ < kIntervalNs * std::max(kStreamsPerInterval, streams) / kStreamsPerInterval) {
      bytes_per_look_ = std::min(2 * bytes_per_look_, kMostBytesPerLook);
      return false;
    }
    bytes_per_look_ = kBytesPerEvent;
    closed_ns_ = now;
    --events_left_;
    return true;
  }

 private:
  std::uint64_t misses_seen_ = 0;
  std::uint64_t events_left_ = 0;  // that others still want
  std::uint64_t closed_ns_ = 0;    // when the last of them was asked for
  Bytes bytes_freed_ = 0;          // since somebody looked whether one is due
  Bytes bytes_per_look_ = 0;       // so many before the next look
};

}  // namespace vpmm::time
