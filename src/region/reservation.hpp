// SPDX-License-Identifier: Apache-2.0
// region: one reservation of address space.
#pragma once

#include <cstdint>

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

}  // namespace vpmm::region
