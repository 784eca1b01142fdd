// SPDX-License-Identifier: Apache-2.0
// region: start of an aligned request in a range.
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.hpp"

namespace vpmm::region {

// Lowest aligned address in `range` with `size` bytes behind it; nullopt if they do not fit.
inline std::optional<DevicePtr> aligned_start(const AddressRange& range, Bytes size,
                                              Bytes alignment) {
  const std::uint64_t begin = to_integer(range.begin);
  const DevicePtr start{is_power_of_two(alignment) ? (begin + alignment - 1) & ~(alignment - 1)
                                                   : round_up(begin, alignment)};
  if (start > range.end() || range.end() - start < size) return std::nullopt;
  return start;
}

}  // namespace vpmm::region
