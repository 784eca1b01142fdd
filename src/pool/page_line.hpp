// pool: number of pages that lie side by side in the same way in every reservation.
#pragma once

#include "base/bytes.hpp"
#include "pool/config.hpp"

namespace vpmm::pool {

// Alignment, in pages, of stretches that the small path cuts and of reservations.
constexpr Bytes kPagesInLine = 16;

// Tells if pages stand alone: where chunks are pages, so that each goes back with its last request
// (the specification's policy), and where the page size is no power of two, as addresses then do
// not show a page's begin.
inline bool pages_stand_alone(const Config& config, Bytes page_size) {
  return config.page_chunks || !is_power_of_two(page_size);
}

}  // namespace vpmm::pool
