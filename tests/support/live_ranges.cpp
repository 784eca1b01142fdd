// SPDX-License-Identifier: Apache-2.0
// tests: the search for a live range that overlaps a new one.
#include "support/live_ranges.hpp"

#include <fmt/format.h>

namespace vpmm::test {
namespace {

std::string to_text(AddressRange range) {
  return fmt::format("[{:#x}, {:#x}) of {} bytes", to_integer(range.begin), to_integer(range.end()),
                     range.size);
}

}  // namespace

std::string LiveRanges::add(AddressRange range) {
  const std::lock_guard lock(mutex_);
  // Live ranges do not overlap, so only the last one that begins below our end can reach into ours.
  const auto beyond = live_.lower_bound(range.end());
  if (beyond != live_.begin()) {
    const AddressRange& before = std::prev(beyond)->second;
    if (before.overlaps(range))
      return to_text(range) + " was handed out while " + to_text(before) + " is live";
  }
  live_.emplace(range.begin, range);
  return "";
}

void LiveRanges::remove(DevicePtr begin) {
  const std::lock_guard lock(mutex_);
  live_.erase(begin);
}

}  // namespace vpmm::test
