// SPDX-License-Identifier: Apache-2.0
// region: RegionIndex::validate, which finds the first broken invariant.
#include <fmt/format.h>

#include "base/host_memory.hpp"

#include "region/region_index_private.hpp"

namespace vpmm::region {
namespace {

std::string at(const Region& region, const char* what) {
  return fmt::format("region at {:#x} {}", to_integer(region.range.begin), what);
}

std::string broken_fields(const Region& region) {
  const bool stamped = has_stamp(region.state);
  const bool in_flight = region.state == RegionState::in_flight;
  if (!stamped && !in_flight && !region.stamp.is_complete())
    return at(region, "has a stamp that means nothing");
  if (region.state == RegionState::hole && region.age() != 0)
    return at(region, "has an age that means nothing");
  if (region.state == RegionState::allocated) return "";
  if (region.holder != nullptr) return at(region, "is not allocated but has a holder");
  const Owner& owner = region.owner;
  if (owner.requested != 0 || owner.timeline || !owner.other_uses.empty() || owner.capture != 0)
    return at(region, "is not allocated but has an owner");
  return "";
}

// `position`: end of the regions before.
std::string broken_place(const Reservation& reservation, const Region& region, DevicePtr position,
                         Bytes page_size) {
  if (region.range.begin != position)
    return at(region, "leaves a gap or overlaps the one before it");
  if (region.range.empty() || !is_multiple(region.range.size, page_size))
    return at(region, "is not whole pages");
  if (!reservation.range.contains(region.range))
    return at(region, "reaches out of its reservation");
  if (region.reservation != &reservation) return at(region, "belongs to another reservation");
  if (region.next == nullptr) return "";
  if (region.next->previous != &region) return at(region, "is not the previous of its next");
  if (mergeable(region, *region.next)) return at(region, "should be one with the next");
  return "";
}

std::string broken_reservation(const Reservation& reservation, Bytes page_size) {
  if (reservation.first == nullptr || reservation.first->previous != nullptr)
    return fmt::format("reservation at {:#x} has no first region",
                       to_integer(reservation.range.begin));
  DevicePtr position = reservation.range.begin;
  for (const Region* region = reservation.first; region != nullptr; region = region->next) {
    if (auto broken = broken_place(reservation, *region, position, page_size); !broken.empty())
      return broken;
    if (auto broken = broken_fields(*region); !broken.empty()) return broken;
    position = region->range.end();
  }
  if (position != reservation.range.end())
    return fmt::format("reservation at {:#x} is not tiled to its end",
                       to_integer(reservation.range.begin));
  return "";
}

}  // namespace

std::string RegionIndex::validate() const {
  Vector<const Region*> regions;
  const Reservation* before = nullptr;
  for (const auto& [begin, reservation] : private_->reservations) {
    if (begin != reservation.range.begin) return "a reservation is not filed where it begins";
    if (before != nullptr && before->range.end() > reservation.range.begin)
      return "reservations are not in order";
    before = &reservation;
    if (auto broken = broken_reservation(reservation, page_size_); !broken.empty()) return broken;
    for (const Region* region = reservation.first; region != nullptr; region = region->next)
      regions.push_back(region);
  }
  if (auto found = private_->catalogue.difference(regions); !found.empty()) return found;
  return private_->junctions.difference(regions);
}

}  // namespace vpmm::region
