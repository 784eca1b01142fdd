// region: what a RegionIndex holds; for its own source files.
#pragma once

#include <cstdint>

#include "base/host_memory.hpp"
#include "region/catalogue.hpp"
#include "region/region_index.hpp"
#include "region/region_slab.hpp"
#include "region/reservation.hpp"

namespace vpmm::region {

// Whether two neighbouring free regions, or holes, are one.
inline bool mergeable(const Region& a, const Region& b) {
  if (a.state != b.state) return false;
  if (a.state == RegionState::hole) return true;
  if (a.state != RegionState::free) return false;
  if (a.stamp.is_complete()) return b.stamp.is_complete();
  return a.stamp.is_single() && b.stamp.is_only_on(a.stamp.parts().front().timeline);
}

struct RegionIndex::Private {
  explicit Private(Bytes page) : catalogue(page) {}

  // The reservation around `p`; null when there is none.
  const Reservation* find_reservation(DevicePtr p) const;
  bool overlaps_reservation(AddressRange range) const;

  // Enters a free region, or a hole, that is linked and listed, as one with the neighbours it can
  // be one with.
  Region* merge_and_enter(Region* region);
  Region* merge_holes_and_enter(Region* hole);
  // Makes one of two free neighbours that are listed but not entered.
  void merge(Region* front);
  // Cuts `part` out of `region`, which is filed. The part is in no file, has the stamp and age of
  // the region, and is in `state` from now on. What is left is filed as the region was, and is the
  // region itself where anything is left.
  Region* cut(Region* region, AddressRange part, RegionState state);
  // Makes what `region` has before, or from, `at` a region of its own, in no file, with the same
  // state, stamp and age.
  Region* split_front(Region* region, DevicePtr at);
  Region* split_back(Region* region, DevicePtr at);
  // Puts the address space of `region`'s next neighbour, which is in no file, to `region`; the
  // neighbour ceases to be.
  void absorb_next(Region* region);

  Map<DevicePtr, Reservation> reservations;  // by where they begin
  RegionSlab regions;
  Catalogue catalogue;
  std::uint64_t last_age = 0;
};

}  // namespace vpmm::region
