// SPDX-License-Identifier: Apache-2.0
// pool: number of pages that lie side by side in the same way in every reservation.
#pragma once

#include "base/bytes.hpp"
#include "settings/config.hpp"

namespace vpmm::pool {

// Alignment, in pages, of stretches that the small path cuts and of reservations.
constexpr Bytes kPagesInLine = 16;

// Pages stand alone where chunks are pages, so that each goes back with the last request in it, as
// the specification's policy has it, and those of another size than a power of two, whose addresses
// have no alignment that tells where one begins.
inline bool pages_stand_alone(const settings::Config& config, Bytes page_size) {
  return config.page_chunks || !is_power_of_two(page_size);
}

}  // namespace vpmm::pool
