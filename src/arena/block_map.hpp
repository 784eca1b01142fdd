// SPDX-License-Identifier: Apache-2.0
// arena: blocks of one arena by address, and its free blocks by use and size.
#pragma once

#include <compare>
#include <iterator>
#include <optional>
#include <utility>

#include "arena/block.hpp"
#include "base/host_memory.hpp"

namespace vpmm::arena {

// Place of a free block among all.
struct FreeOrder {
  bool is_waiting = false;
  StreamKey key{};
  Bytes size = 0;
  DevicePtr begin{};
  // NOLINTNEXTLINE(modernize-use-nullptr): clang 14 takes the 0 of <=> for a pointer
  friend auto operator<=>(const FreeOrder&, const FreeOrder&) = default;
};
inline FreeOrder order_of(const ArenaBlock& block) {
  return {block.is_waiting, block.key, block.range.size, block.range.begin};
}

struct BlockMap {
  using Blocks = Map<DevicePtr, ArenaBlock>;

  Map<DevicePtr, Stretch> stretches;
  Blocks blocks;
  Set<FreeOrder> free;  // waiting blocks last

  Blocks::const_iterator around(DevicePtr p) const {  // end(): none
    const auto after = blocks.upper_bound(p);
    if (after == blocks.begin()) return blocks.end();
    const auto block = std::prev(after);
    return block->second.range.contains(p) ? block : blocks.end();
  }
  Blocks::iterator around(DevicePtr p) {
    const auto block = std::as_const(*this).around(p);
    return blocks.erase(block, block);  // empty range: removes the const
  }
};

// Joins two stamps. Returns nullopt if they have more parts than a stamp holds.
std::optional<time::Stamp> joined(const time::Stamp& a, const time::Stamp& b);
// Tells if two neighbours must be one block.
bool can_merge(const ArenaBlock& front, const ArenaBlock& back);

}  // namespace vpmm::arena
