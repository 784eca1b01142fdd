// SPDX-License-Identifier: Apache-2.0
// tests: that what a layout shows lies side by side, and where.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "context/context.hpp"

namespace vpmm::test {

// Begin to end, of runs side by side. Requires: added by ascending address.
class Runs {
 public:
  void add(AddressRange range) {
    if (!ends_.empty() && ends_.rbegin()->second == range.begin)
      ends_.rbegin()->second = range.end();
    else
      ends_[range.begin] = range.end();
  }
  friend bool operator==(const Runs&, const Runs&) = default;

 private:
  std::map<DevicePtr, DevicePtr> ends_;
};

// Blocks and chunks ascend and do not overlap, and what is free or allocated is what chunks back,
// to the byte, or all of `external`: memory that arenas were given, by address.
inline void expect_tiled(const report::Layout& layout,
                         const std::vector<AddressRange>& external = {}) {
  DevicePtr reached{};
  for (const report::LayoutBlock& block : layout.blocks) {
    EXPECT_GE(block.range.begin, reached);
    reached = block.range.end();
  }
  const auto is_external = [&](DevicePtr p) {
    for (const AddressRange& range : external)
      if (range.contains(p)) return true;
    return false;
  };
  Runs backed, used, given, external_used;
  for (const AddressRange& chunk : layout.chunks) backed.add(chunk);
  for (const AddressRange& range : external) given.add(range);
  for (const report::LayoutBlock& block : layout.blocks) {
    if (block.state != region::RegionState::free && block.state != region::RegionState::allocated)
      continue;
    (is_external(block.range.begin) ? external_used : used).add(block.range);
  }
  EXPECT_TRUE(used == backed);
  EXPECT_TRUE(external_used == given);
}

// The blocks of one arena.
inline std::vector<report::LayoutBlock> blocks_of(const report::Layout& layout,
                                                  pool::ArenaId arena) {
  std::vector<report::LayoutBlock> blocks;
  for (const report::LayoutBlock& block : layout.blocks)
    if (block.arena == static_cast<std::uint64_t>(arena)) blocks.push_back(block);
  return blocks;
}

}  // namespace vpmm::test
