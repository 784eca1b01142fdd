// SPDX-License-Identifier: Apache-2.0
// small: blocks and spans that were freed while streams other than their own may still use them.
#pragma once

#include "base/host_memory.hpp"
#include "small/allocation.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

class WaitingFrees {
 public:
  explicit WaitingFrees(time::Timelines& timelines) : timelines_(timelines) {}

  // Keeps the allocation until `stamp` is complete. Requires: the stamp is pending.
  void add(const Allocation& ended, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock) {
    bytes_ += ended.range.size;
    file({ended, stamp});
  }
  // Completes the numbers of the timeline up to that one. Calls `is_over` for each allocation with
  // a complete stamp.
  template <typename Visit>
  void advance(const time::StampPart& done, Visit&& is_over) VPMM_REQUIRES(pool_lock) {
    ByPart ready(earlier);
    const auto last = by_part_.upper_bound(done);
    for (auto it = by_part_.lower_bound({done.timeline, 0}); it != last;)
      ready.insert(by_part_.extract(it++));
    for (auto& [part, list] : ready)
      for (WaitingFree& waiting : list) {
        for (const time::StampPart& was : waiting.stamp.parts())
          subtract(waiting.ended.range.size, was.timeline);
        waiting.stamp = timelines_.reduce(waiting.stamp);
        if (!waiting.stamp.is_complete()) {
          file(waiting);
          continue;
        }
        bytes_ -= waiting.ended.range.size;
        is_over(waiting.ended);
      }
  }
  Bytes bytes() const VPMM_REQUIRES(pool_lock) { return bytes_; }
  Bytes bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    const auto found = bytes_on_.find(timeline);
    return found == bytes_on_.end() ? 0 : found->second;
  }
  // Tells if `bytes` is the sum, of all and of each timeline.
  bool is_counted() const VPMM_REQUIRES(pool_lock) {
    Bytes sum = 0;
    Map<time::TimelineId, Bytes> sums;
    for (const auto& [of, list] : by_part_)
      for (const WaitingFree& waiting : list) {
        sum += waiting.ended.range.size;
        for (const time::StampPart& part : waiting.stamp.parts())
          sums[part.timeline] += waiting.ended.range.size;
      }
    return sum == bytes_ && sums == bytes_on_;
  }

 private:
  struct WaitingFree {
    Allocation ended;
    time::Stamp stamp;
  };
  static bool earlier(const time::StampPart& a, const time::StampPart& b) {
    return a.timeline != b.timeline ? a.timeline < b.timeline : a.sequence < b.sequence;
  }
  using ByPart = Map<time::StampPart, Vector<WaitingFree>,
                     bool (*)(const time::StampPart&, const time::StampPart&)>;

  void file(const WaitingFree& waiting) VPMM_REQUIRES(pool_lock) {
    by_part_[waiting.stamp.parts().front()].push_back(waiting);
    for (const time::StampPart& part : waiting.stamp.parts())
      bytes_on_[part.timeline] += waiting.ended.range.size;
  }

  // Removes a timeline without bytes, as it may never advance again.
  void subtract(Bytes bytes, time::TimelineId timeline) VPMM_REQUIRES(pool_lock) {
    const auto on = bytes_on_.find(timeline);
    on->second -= bytes;
    if (on->second == 0) bytes_on_.erase(on);
  }

  time::Timelines& timelines_;
  ByPart by_part_ VPMM_GUARDED_BY(pool_lock){earlier};  // by the first part of their stamps
  Map<time::TimelineId, Bytes> bytes_on_ VPMM_GUARDED_BY(pool_lock);  // that wait for a timeline
  Bytes bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::small
