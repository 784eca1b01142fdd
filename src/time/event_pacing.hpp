// time: when a stream's frees are worth an event of their own, because others wait for proof of
// them.
#pragma once

#include <cstdint>
#include <utility>

#include "base/bytes.hpp"

namespace vpmm::time {

// A request that missed wants events for what other streams free. So after a miss each stream
// records kEventsPerMiss of them at most: one for at least kBytesPerEvent, and all streams together
// one in kIntervalNs. A program in a steady state misses seldom and pays for none.
//
// `misses`: how many requests found no memory so far, of all streams. Used under the lock of the
// stream's cache.
class EventPacing {
 public:
  // Halved: twice as many events and looks at the clock; doubled: others learn later that memory is
  // complete.
  static constexpr Bytes kBytesPerEvent = 8 * kMiB;
  static constexpr std::uint64_t kIntervalNs = 125'000;  // likewise
  // Halved: a program that misses now and then finds less of what others freed; doubled: it pays
  // for more events.
  static constexpr std::uint64_t kEventsPerMiss = 64;

  // For a stream that owes nobody anything.
  void begin(std::uint64_t misses) {
    events_left_ = 0;
    misses_seen_ = misses;
    bytes_freed_ = 0;
  }
  // The stream itself missed: its own frees are of no use to it.
  void miss(std::uint64_t misses) { misses_seen_ = misses; }

  // The same where memory counts more than time: one event for each `bytes_per_event`.
  bool is_due(Bytes freed, Bytes bytes_per_event) {
    bytes_freed_ += freed;
    if (bytes_freed_ < bytes_per_event) return false;
    bytes_freed_ = 0;
    return true;
  }

  // Whether the free of so many bytes is the one to record an event behind. `now_ns` is asked for
  // the time, seldom.
  template <typename Clock>
  bool is_due(Bytes freed, std::uint64_t misses, std::uint64_t streams, const Clock& now_ns) {
    if (std::exchange(misses_seen_, misses) != misses) events_left_ = kEventsPerMiss;
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
  std::uint64_t closed_ns_ = 0;    // when the last of them was asked for
  Bytes bytes_freed_ = 0;          // since somebody looked at the clock
};

}  // namespace vpmm::time
