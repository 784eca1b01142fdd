// SPDX-License-Identifier: Apache-2.0
// time: pace of events that a stream records for its frees, as others wait for proof of them.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm::time {

// A request that missed wants events for frees of other streams. So after a miss each stream
// records at most kEventsPerMiss: one per kBytesPerEvent, and all streams together one per
// kIntervalNs. A steady state misses seldom and pays for none.
//
// `misses`: requests of all streams that found no memory so far. Used under the lock of the
// stream's cache.
class EventPacing {
 public:
  // Halved: twice as many events and looks at the clock; doubled: others learn later that memory is
  // complete.
  static constexpr Bytes kBytesPerEvent = 8 * kMiB;
  static constexpr std::uint64_t kIntervalNs = 125'000;  // likewise
  // Halved: a program that misses now and then finds less memory freed by others; doubled: it pays
  // for more events.
  static constexpr std::uint64_t kEventsPerMiss = 64;

  // Starts without owed events.
  void begin(std::uint64_t misses) {
    events_left_ = 0;
    misses_seen_ = misses;
    bytes_freed_ = 0;
  }
  // Notes a miss of the stream itself: its own frees do not help it.
  void miss(std::uint64_t misses) { misses_seen_ = misses; }

  // Tells if an event is due for each `bytes_per_event`, where memory counts more than time.
  bool is_due(Bytes freed, Bytes bytes_per_event) {
    bytes_freed_ += freed;
    if (bytes_freed_ < bytes_per_event) return false;
    bytes_freed_ = 0;
    return true;
  }

  // Tells if an event is due behind the free of `freed` bytes. Calls `now_ns` seldom.
  template <typename Clock>
  bool is_due(Bytes freed, std::uint64_t misses, std::uint64_t streams, const Clock& now_ns) {
    if (misses_seen_ != misses) events_left_ = kEventsPerMiss;
    misses_seen_ = misses;
    if (events_left_ == 0) return false;
    bytes_freed_ += freed;
    if (bytes_freed_ < kBytesPerEvent) return false;
    bytes_freed_ = 0;
    const std::uint64_t now = now_ns();
    if (now - closed_ns_ < kIntervalNs * streams) return false;
    closed_ns_ = now;
    --events_left_;
    return true;
  }

 private:
  std::uint64_t misses_seen_ = 0;
  std::uint64_t events_left_ = 0;  // that others still want
  std::uint64_t closed_ns_ = 0;    // time of the last due event
  Bytes bytes_freed_ = 0;          // since the last look at the clock, or due event
};

}  // namespace vpmm::time
