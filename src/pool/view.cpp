// SPDX-License-Identifier: Apache-2.0
// pool: memory that one caller may use.
#include "pool/view.hpp"

#include <algorithm>

namespace vpmm::pool {

using region::Region;

bool View::is_waitable(const Region& free, std::optional<time::TimelineId> own) const {
  const auto parts = free.stamp.parts();
  return std::all_of(parts.begin(), parts.end(),
                     [&](const time::StampPart& part) VPMM_REQUIRES(pool_lock) {
                       return (own && part.timeline == *own) || timelines.is_waitable(part);
                     });
}

void View::for_each_giving(const Ask& ask, FunctionRef<bool(Region*)> visit) const {
  bool goes_on = true;
  const auto give = [&](Region* free) { return goes_on = visit(free); };
  if (tuning.order == Tuning::Order::smallest_first)
    index.for_each_fit(tuning.page_size, ask.own, ask.first(), give);
  else
    index.for_each_free_by_age(
        [&](Region* free) { return !is_usable(*free, ask.own) || give(free); });
  if (!goes_on || !ask.takes_waiting) return;
  index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
    return is_usable(*free, ask.own) || !is_waitable(*free, ask.own) || give(free);
  });
}

Vector<Part> View::parts_of(Region* first, AddressRange range) const {
  Vector<Part> parts;
  for (Region* region = first; region != nullptr && region->range.begin < range.end();
       region = region->next) {
    const DevicePtr begin = std::max(region->range.begin, range.begin);
    const DevicePtr end = std::min(region->range.end(), range.end());
    if (begin < end) parts.push_back({region, {begin, end - begin}, region->stamp});
  }
  return parts;
}

void View::add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own,
                     Vector<time::StampPart>& waits) {
  for (const time::StampPart& part : stamp.parts()) {
    if (own && part.timeline == *own) continue;
    const auto same = std::find_if(waits.begin(), waits.end(), [&](const time::StampPart& wait) {
      return wait.timeline == part.timeline;
    });
    if (same == waits.end())
      waits.push_back(part);
    else
      same->sequence = std::max(same->sequence, part.sequence);
  }
}

}  // namespace vpmm::pool
