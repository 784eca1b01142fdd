// SPDX-License-Identifier: Apache-2.0
// region: members of RegionIndex, for its own source files.
#pragma once

#include <cstdint>

#include "base/host_memory.hpp"
#include "region/catalogue.hpp"
#include "region/junctions.hpp"
#include "region/region_index.hpp"
#include "region/region_slab.hpp"
#include "region/reservation.hpp"

namespace vpmm::region {

// Tells if two neighbouring regions are to be one: free ones, or holes.
inline bool mergeable(const Region& a, const Region& b) {
  if (a.state != b.state) return false;
  if (a.state == RegionState::hole) return true;
  if (a.state != RegionState::free) return false;
  if (a.stamp.is_complete()) return b.stamp.is_complete();
  return a.stamp.is_single() && b.stamp.is_only_on(a.stamp.parts().front().timeline);
}

struct RegionIndex::Private {
  explicit Private(Bytes page) : catalogue(page), junctions(catalogue.unit()) {}

  // Reservation around `p`; null if none.
  const Reservation* find_reservation(DevicePtr p) const;
  bool overlaps_reservation(AddressRange range) const;
  // Tells if `part` lies in `region` and is whole pages.
  bool is_part(const Region& region, AddressRange part) const;

  // Enter a linked (if free, also listed) region, merged with its neighbours where possible.
  Region* merge_and_enter(Region* region);
  Region* merge_holes_and_enter(Region* hole);
  // Merges a free region with the next. Requires: both listed, not entered.
  void merge(Region* front);
  // Cuts `part` out of the filed `region`. The part is unfiled, with the region's stamp and age, in
  // `state`. Rests are filed as before; `region` is a rest if there is one.
  Region* cut(Region* region, AddressRange part, RegionState state);
  // Make the bytes before, or from, `at` an unfiled region of the same state, stamp and age.
  Region* split_front(Region* region, DevicePtr at);
  Region* split_back(Region* region, DevicePtr at);
  // Ends the flight; the region is in `state`, but not filed.
  void land(Region* in_flight, RegionState state);
  // Adds the address space of the next neighbour, unfiled, to `region`; recycles the neighbour.
  void absorb_next(Region* region);

  Map<DevicePtr, Reservation> reservations;  // by begin
  RegionSlab regions;
  Catalogue catalogue;
  Junctions junctions;
  std::uint64_t last_age = 0;
};

}  // namespace vpmm::region
