// SPDX-License-Identifier: Apache-2.0
// region tests: pages, timelines and stamps in few words.
#pragma once

#include <cstdint>

#include "base/address.hpp"
#include "region/region_index.hpp"
#include "support/page_size.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

constexpr DevicePtr kStart{0x7f0000000000};

constexpr time::TimelineId A{1};
constexpr time::TimelineId B{2};
constexpr time::TimelineId C{3};

constexpr DevicePtr page(std::uint64_t number) { return kStart + number * kPage; }
constexpr AddressRange pages(std::uint64_t first, std::uint64_t count) {
  return {page(first), count * kPage};
}

inline time::Stamp complete() { return {}; }
inline time::Stamp on(time::TimelineId timeline, std::uint64_t sequence) {
  return time::Stamp(time::StampPart{timeline, sequence});
}
inline time::Stamp on(time::TimelineId a, std::uint64_t sequence_a, time::TimelineId b,
                      std::uint64_t sequence_b) {
  return {time::StampPart{a, sequence_a}, time::StampPart{b, sequence_b}};
}

// The region around page `number`, whatever its state; it must be reserved.
inline Region* region_at(const RegionIndex& index, std::uint64_t number) {
  const Region* found = nullptr;
  index.for_each([&](const Region& region) {
    if (region.range.contains(page(number))) found = &region;
  });
  return const_cast<Region*>(
      found);  // for_each shows const regions, but they are the index's own nodes
}

}  // namespace vpmm::region
