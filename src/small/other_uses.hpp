// SPDX-License-Identifier: Apache-2.0
// small: streams that record_use named for blocks and spans.
#pragma once

#include <cstddef>
#include <new>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

class OtherUses {
 public:
  explicit OtherUses(time::Timelines& timelines) : timelines_(timelines) {}

  // Uses of the allocation that begins there.
  const Vector<time::TimelineId>& of(DevicePtr begin) const VPMM_REQUIRES(pool_lock) {
    // Static storage: a free takes no host memory. No destructor, so no exit handler.
    alignas(Vector<time::TimelineId>) static std::byte place[sizeof(Vector<time::TimelineId>)];
    static const auto& none = *::new (static_cast<void*>(place)) Vector<time::TimelineId>;
    const auto found = uses_.find(begin);
    return found == uses_.end() ? none : found->second;
  }
  void add(DevicePtr begin, time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    time::add_use(uses_[begin], timeline);
  }
  void forget(DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    const auto found = uses_.find(begin);
    if (found == uses_.end()) return;
    time::count_references(timelines_, std::nullopt, found->second, -1);
    uses_.erase(found);
  }

 private:
  time::Timelines& timelines_;
  Map<DevicePtr, Vector<time::TimelineId>> uses_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::small
