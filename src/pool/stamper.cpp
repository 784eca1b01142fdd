// SPDX-License-Identifier: Apache-2.0
// pool: stamping memory that is freed.
#include "pool/stamper.hpp"

#include <algorithm>

namespace vpmm::pool {

// Note [A repeated free may lack its stream]
// A free that named a stream may be refused by the driver, or for want of host memory. The pool, or
// the program, then defers it, or frees without a stream; nothing tells such a free from others. So
// from the first refusal on, frees without a stream wait for all streams.
//
// Note [Free on which stream]
// The stream of the call, the streams that record_use named, and the stream of the allocation,
// since its queued work may use the memory too. More than two streams are "all streams now".
time::Stamp Stamper::stamp_of(const Uses& uses, const pool::Caller& caller) {
  Vector<time::Timeline*> timelines;
  const auto add = [&](std::optional<time::TimelineId> id) VPMM_REQUIRES(pool_lock) {
    time::Timeline* timeline = id ? timelines_.find(*id) : nullptr;
    if (timeline != nullptr && !timeline->is_over &&
        std::find(timelines.begin(), timelines.end(), timeline) == timelines.end())
      timelines.push_back(timeline);
  };
  const time::Timeline* const owner = uses.owner ? timelines_.find(*uses.owner) : nullptr;
  const bool is_unnamed = !caller.stream && !has_refused_.load(std::memory_order_relaxed);
  const bool names_owner = is_unnamed &&
                           unnamed_free_ == settings::UnnamedFree::allocating_stream &&
                           owner != nullptr && !owner->is_over;
  if (caller.timeline == nullptr && !names_owner)
    return time::Stamp((is_unnamed && uses.others.empty() ? timelines_.any_stream() : all_streams())
                           .next(uses.bytes));
  if (caller.timeline != nullptr) add(caller.timeline->id);
  add(uses.owner);
  for (const time::TimelineId other : uses.others) add(other);
  if (timelines.size() > 2) return stamp_of_all(uses.bytes);
  const time::StampPart first = timelines[0]->next(uses.bytes);
  if (timelines.size() == 1) return time::Stamp(first);
  timelines[1]->wanted = true;
  return time::Stamp(first, timelines[1]->next(0));
}

time::Stamp Stamper::stamp_of_all(Bytes bytes) { return time::Stamp(all_streams().next(bytes)); }

time::Timeline& Stamper::all_streams() {
  return any_stream_ == settings::AnyStreamOrder::legacy ? timelines_.every_stream()
                                                         : timelines_.any_stream();
}

}  // namespace vpmm::pool
