// SPDX-License-Identifier: Apache-2.0
// region: one reservation of address space.
#pragma once

#include <cstdint>

#include "base/page_unit.hpp"
#include "region/page_table.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// Has a fixed address while reserved.
struct Reservation {
  Reservation(AddressRange reserved, Region* hole, std::uint64_t pages)
      : range(reserved), first(hole), table(pages) {}

  AddressRange range;
  Region* first = nullptr;
  PageTable table;
};

// Number of a region's first page in its reservation.
inline std::uint64_t first_page(const Region& region, const PageUnit& unit) {
  return unit.pages(region.range.begin - region.reservation->range.begin);
}

}  // namespace vpmm::region
