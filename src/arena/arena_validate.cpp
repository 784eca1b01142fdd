// SPDX-License-Identifier: Apache-2.0
// arena: checks the invariants of an arena, and draws it.
#include <fmt/format.h>

#include "arena/arena.hpp"
#include "base/message.hpp"

namespace vpmm::arena {

std::string Arena::validate() const {
  Bytes held = 0, allocated = 0, idle = 0;
  std::uint64_t live = 0, free = 0;
  for (const auto& [begin, stretch] : map_.stretches) {
    held += stretch.range.size;
    DevicePtr at = begin;
    std::uint64_t live_in_it = 0;
    const ArenaBlock* before = nullptr;
    for (auto entry = map_.blocks.find(begin);
         entry != map_.blocks.end() && entry->first < stretch.range.end(); ++entry) {
      const ArenaBlock& block = entry->second;
      const auto wrong = [&](const char* what) {
        return message_of("the block at {:#x} {}: {}", to_integer(block.range.begin), what,
                          picture(kGrain));
      };
      if (entry->first != at || block.range.begin != at || block.range.empty())
        return wrong("leaves a gap");
      if (block.stretch != &stretch || block.range.end() > stretch.range.end())
        return wrong("is of another stretch");
      if (!is_multiple(block.range.size, kGrain)) return wrong("is no whole multiple of the grain");
      if (block.is_live == (map_.free.count(order_of(block)) != 0))
        return wrong("is filed as what it is not");
      if (block.is_waiting && (block.is_live || block.stamp.is_complete()))
        return wrong("waits for nothing");
      if (before != nullptr && can_merge(*before, block))
        return wrong("could be one with the one before");
      if (is_merged_ && !block.is_live &&
          (!block.stamp.is_complete() || (before != nullptr && !before->is_live)))
        return wrong("is not merged");
      if (block.is_live) ++live_in_it, allocated += block.range.size;
      if (!block.is_live) ++free;
      at = block.range.end();
      before = &block;
    }
    if (at != stretch.range.end())
      return message_of("blocks end before their stretch: {}", picture(kGrain));
    if (stretch.live != live_in_it)
      return message_of("{} live blocks, {} counted", live_in_it, stretch.live);
    if (live_in_it == 0) idle += stretch.range.size;
    live += live_in_it;
  }
  if (live + free != map_.blocks.size())
    return message_of("{} blocks, {} in stretches", map_.blocks.size(), live + free);
  if (free != map_.free.size())
    return message_of("{} free blocks, {} filed", free, map_.free.size());
  if (idle != idle_) return message_of("{} bytes are idle, {} counted", idle, idle_);
  if (live != live_ || held != held_ || allocated != allocated_)
    return message_of("{} live of {} bytes in {} bytes, counted {} of {} in {}", live, allocated,
                      held, live_, allocated_, held_);
  return {};
}

std::string Arena::picture(Bytes unit) const {
  std::string out;
  for (const auto& [begin, stretch] : map_.stretches) {
    if (!out.empty()) out += ' ';
    for_each_block_in(stretch.range, [&](const ArenaBlock& block) {
      const char* const sign = block.is_live ? "" : block.is_waiting ? "~" : "-";
      out += is_multiple(block.range.size, unit)
                 ? fmt::format("[{}{}]", sign, block.range.size / unit)
                 : fmt::format("[{}{}B]", sign, block.range.size);
    });
  }
  return out.empty() ? "[]" : out;
}

}  // namespace vpmm::arena
