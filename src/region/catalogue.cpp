// SPDX-License-Identifier: Apache-2.0
// region: files regions and finds them again.
#include "region/catalogue.hpp"

#include <algorithm>
#include <utility>

#include "base/function_ref.hpp"
#include "region/aligned_start.hpp"
#include "region/reservation.hpp"

namespace vpmm::region {
namespace {

const Fit& smaller(const Fit& a, const Fit& b) {
  if (a.region == nullptr || b.region == nullptr) return a.region == nullptr ? b : a;
  if (a.size != b.size) return a.size < b.size ? a : b;
  return a.begin < b.begin ? a : b;
}

bool is_fit(const Fit& fit, Bytes size, Bytes alignment) {
  return fit.region == nullptr || aligned_start({fit.begin, fit.size}, size, alignment);
}

}  // namespace

// --- by age and sequence ---

OrderedList<AgeLinks>* Catalogue::list_of(RegionState state) {
  switch (state) {
    case RegionState::free: return &free_by_age_;
    case RegionState::zombie: return &zombies_;
    default: return nullptr;
  }
}

void Catalogue::enlist(Region* region) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->add(region, region->age());
  timelines_.enlist(region);
}

void Catalogue::delist(Region* region) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->remove(region);
  delist_parts(region);
}

void Catalogue::enlist_behind(Region* region, Region* behind) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->add_behind(region, behind);
  enlist_parts_behind(region, behind);
}

void Catalogue::unite(Region* front, Region* back) {
  if (back->age() < front->age()) {
    free_by_age_.remove(front);
    free_by_age_.replace(back, front);
  } else {
    free_by_age_.remove(back);
  }
  if (!front->stamp.is_complete()) unite_parts(front, back);
}

// --- by all else ---

void Catalogue::enter(Region* region) {
  StateSum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes += region->range.size;
  ++sum.count;
  switch (region->state) {
    case RegionState::hole: holes_.add(region); break;
    case RegionState::free: enter_free(region); break;
    case RegionState::allocated:
      requested_bytes_ += region->owner.requested;
      region->reservation->table.add_owner(first_page(*region, unit_), region);
      break;
    case RegionState::zombie: break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::leave(Region* region) {
  StateSum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes -= region->range.size;
  --sum.count;
  switch (region->state) {
    case RegionState::hole: holes_.remove(region); break;
    case RegionState::free: leave_free(region); break;
    case RegionState::allocated:
      requested_bytes_ -= region->owner.requested;
      region->reservation->table.remove_owner(first_page(*region, unit_));
      break;
    case RegionState::zombie: break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::enter_free(Region* region) {
  free_by_size(*region).add(region);
  flip_free(*region);
  if (region->stamp.is_complete()) return;
  pending_bytes_ += region->range.size;
  for (const auto& part : region->parts)
    if (part.file != nullptr) part.file->pending_bytes += region->range.size;
}

void Catalogue::leave_free(Region* region) {
  free_by_size(*region).remove(region);
  flip_free(*region);
  if (region->stamp.is_complete()) return;
  pending_bytes_ -= region->range.size;
  for (const auto& part : region->parts)
    if (part.file != nullptr) part.file->pending_bytes -= region->range.size;
}

void Catalogue::flip_free(const Region& region) {
  const std::uint64_t first = first_page(region, unit_);
  region.reservation->table.flip_free(first, first + unit_.pages(region.range.size));
}

SizeIndex& Catalogue::free_by_size(const Region& region) {
  if (region.stamp.is_complete()) return complete_by_size_;
  if (region.stamp.is_single()) return region.parts[filed_part(region)].file->single_by_size;
  return two_part_by_size_;
}

// --- looking ---

// Takes the smallest region that is large enough: nearly always it has the alignment.
Region* Catalogue::best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                            bool own_first) const {
  const SizeIndex& pending = timelines_.single_on(own);
  if (own_first) {
    const Fit fit = pending.first_fit(size, alignment);
    return fit.region != nullptr ? fit.region : complete_by_size_.first_fit(size, alignment).region;
  }
  const Fit smallest = smaller(complete_by_size_.at_least(size), pending.at_least(size));
  if (is_fit(smallest, size, alignment)) return smallest.region;
  return smaller(complete_by_size_.first_fit(size, alignment), pending.first_fit(size, alignment))
      .region;
}

Region* Catalogue::lowest_fit(Bytes size, Bytes alignment,
                              std::optional<time::TimelineId> own) const {
  const Fit complete = complete_by_size_.lowest_fit(size, alignment);
  const Fit pending = timelines_.single_on(own).lowest_fit(size, alignment);
  if (complete.region == nullptr || pending.region == nullptr)
    return complete.region == nullptr ? pending.region : complete.region;
  return complete.begin < pending.begin ? complete.region : pending.region;
}

void Catalogue::for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const {
  for (SizeIndex::Ascent holes(holes_, size); holes.region() != nullptr; holes.next())
    if (!visit(holes.region())) return;
}

void Catalogue::for_each_fit(Bytes size, std::optional<time::TimelineId> own, bool own_first,
                             FunctionRef<bool(Region*)> visit) const {
  SizeIndex::Ascent complete(complete_by_size_, size);
  SizeIndex::Ascent pending(timelines_.single_on(own), size);
  for (;;) {
    Region* const a = complete.region();
    Region* const b = pending.region();
    if (a == nullptr && b == nullptr) return;
    const bool is_a = b == nullptr || (a != nullptr && !own_first &&
                                       std::pair(a->range.size, a->range.begin) <
                                           std::pair(b->range.size, b->range.begin));
    if (!visit(is_a ? a : b)) return;
    (is_a ? complete : pending).next();
  }
}

Bytes Catalogue::largest_free() const {
  return std::max(
      {complete_by_size_.largest(), two_part_by_size_.largest(), timelines_.largest_single()});
}

}  // namespace vpmm::region
