// region: what a RegionIndex holds; for its own source files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "region/catalogue.hpp"
#include "region/owner_table.hpp"
#include "region/region_index.hpp"
#include "region/region_slab.hpp"

namespace vpmm::region {

// Stays where it is as long as it is reserved.
struct Reservation {
  Reservation(AddressRange reserved, Region* hole, std::uint64_t pages) : range(reserved), first(hole), owners(pages) {}

  AddressRange range;
  Region* first = nullptr;  // head of the list of regions, by address
  OwnerTable owners;
};

// Whether two neighbouring free regions, or holes, are one.
inline bool mergeable(const Region& a, const Region& b) {
  if (a.state != b.state) return false;
  if (a.state == RegionState::hole) return true;
  if (a.state != RegionState::free) return false;
  if (a.stamp.is_complete()) return b.stamp.is_complete();
  return a.stamp.is_single() && b.stamp.is_only_on(a.stamp.parts().front().timeline);
}

struct RegionIndex::Private {
  explicit Private(Bytes page) : page_size(page) {}

  // The reservation around `p`; null when there is none.
  const Reservation* find_reservation(DevicePtr p) const;
  bool overlaps_reservation(AddressRange range) const;

  // In the catalogue and, if allocated, in the owner table.
  void file(Region* region);
  void unfile(Region* region);
  // Files `region`, which is linked but not filed, as one with the neighbours it can be one with.
  Region* merge_and_file(Region* region);
  // Takes `region` out of the files and reduces it to `part`, in no file; what is left before and behind it becomes new
  // neighbours, filed as the region was. `state`: what the part is from now on.
  void cut(Region* region, AddressRange part, RegionState state);
  // A new neighbour with state, stamp and age of `region`, in no file.
  Region* insert_before(Region* region, AddressRange range);
  Region* insert_behind(Region* region, AddressRange range);
  // Puts the address space of `region`'s next neighbour, which is in no file, to `region`; the neighbour ceases to be.
  void absorb_next(Region* region);

  Bytes page_size;
  std::map<DevicePtr, Reservation> reservations;  // by where they begin
  RegionSlab regions;
  Catalogue catalogue;
  std::uint64_t last_age = 0;
};

}  // namespace vpmm::region
