// SPDX-License-Identifier: Apache-2.0
// arena: cutting and merging blocks.
#include "arena/arena.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/check.hpp"

namespace vpmm::arena {

using time::Stamp;

// --- looking

std::optional<AddressRange> Arena::find(const Wish& wish, Reach reach) const {
  return BestFit(map_, page_size_, {splitting_, is_pinned_, is_merged_, reach}).find(wish);
}

const ArenaBlock* Arena::block_around(DevicePtr p) const {
  const auto block = map_.around(p);
  return block == map_.blocks.end() ? nullptr : &block->second;
}

const Stretch* Arena::stretch_around(DevicePtr p) const {
  const ArenaBlock* const block = block_around(p);
  return block == nullptr ? nullptr : block->stretch;
}

bool Arena::is_free(AddressRange part) const {
  auto block = map_.around(part.begin);
  if (block == map_.blocks.end() || !block->second.stretch->range.contains(part)) return false;
  for (; block != map_.blocks.end() && block->first < part.end(); ++block)
    if (block->second.is_live) return false;
  return true;
}

bool Arena::has_pending_for(StreamKey key, Bytes bytes) const {
  if (is_merged_) return false;
  const Stretch* stretch = nullptr;
  Bytes run = 0;
  bool is_pending = false;
  for (const auto& [begin, block] : map_.blocks) {
    const bool may_have_it =
        !block.is_live && (block.key == key || block.key == kEverybody || !is_pinned_);
    if (!may_have_it || block.stretch != stretch) {
      stretch = block.stretch;
      run = 0;
      is_pending = false;
    }
    if (!may_have_it) continue;
    run += block.range.size;
    if (block.is_waiting || (block.key != key && !block.stamp.is_complete())) is_pending = true;
    if (is_pending && run >= bytes) return true;
  }
  return false;
}

void Arena::for_each_live(FunctionRef<void(const ArenaBlock&)> visit) const {
  for (const auto& [begin, block] : map_.blocks)
    if (block.is_live) visit(block);
}

void Arena::for_each_block_in(AddressRange stretch,
                              FunctionRef<void(const ArenaBlock&)> visit) const {
  for (auto block = map_.blocks.find(stretch.begin);
       block != map_.blocks.end() && block->first < stretch.end(); ++block)
    visit(block->second);
}

void Arena::for_each_stretch(FunctionRef<void(const Stretch&)> visit) const {
  for (const auto& [begin, stretch] : map_.stretches) visit(stretch);
}

std::optional<Stamp> Arena::stamp_of(const Stretch& idle) const {
  std::optional<Stamp> all = Stamp{};
  for_each_block_in(idle.range, [&](const ArenaBlock& block) {
    if (all) all = joined(*all, block.stamp);
  });
  return all;
}

bool Arena::is_used_by(StreamKey key) const {
  return std::any_of(map_.blocks.begin(), map_.blocks.end(),
                     [&](const auto& block) { return block.second.key == key; });
}

const Stretch* Arena::idle_stretch(DevicePtr from) const {
  if (idle_ == 0) return nullptr;
  const auto idle = std::find_if(map_.stretches.lower_bound(from), map_.stretches.end(),
                                 [](const auto& stretch) { return stretch.second.live == 0; });
  return idle == map_.stretches.end() ? nullptr : &idle->second;
}

AddressRange Arena::free_run(DevicePtr from) const {
  const auto continues = [](const ArenaBlock& front, const ArenaBlock& back) {
    return !front.is_live && !back.is_live && front.stretch == back.stretch;
  };
  auto block = map_.blocks.upper_bound(from);
  if (block != map_.blocks.begin()) --block;
  while (block != map_.blocks.begin() && continues(std::prev(block)->second, block->second))
    --block;
  while (block != map_.blocks.end()) {
    const ArenaBlock& first = block->second;
    AddressRange run = first.range;
    for (++block; block != map_.blocks.end() && continues(first, block->second); ++block)
      run.size += block->second.range.size;
    const bool is_in_use = first.stretch->live != 0 && !first.stretch->is_suspended;
    if (!first.is_live && is_in_use && run.end() > from) return run;
  }
  return {};
}

Bytes Arena::pending_bytes(FunctionRef<Stamp(const Stamp&)> reduce) const {
  Bytes bytes = 0;
  if (is_merged_) return bytes;
  for (const auto& [begin, block] : map_.blocks)
    if (!block.is_live && !reduce(block.stamp).is_complete()) bytes += block.range.size;
  return bytes;
}

// --- cutting and merging

template <typename Change>
void Arena::refile(ArenaBlock& block, Change&& change) {
  auto node = map_.free.extract(order_of(block));  // needs no memory
  VPMM_CHECK(!node.empty(), picture(kGrain));
  std::forward<Change>(change)();
  node.value() = order_of(block);
  map_.free.insert(std::move(node));
}

std::optional<Stamp> joined(const Stamp& a, const Stamp& b) {
  std::array<time::StampPart, 4> parts;
  std::size_t count = 0;
  for (const Stamp* const stamp : {&a, &b})
    for (const time::StampPart& part : stamp->parts()) {
      const auto end = parts.begin() + static_cast<std::ptrdiff_t>(count);
      const auto same = std::find_if(parts.begin(), end, [&](const time::StampPart& known) {
        return known.timeline == part.timeline;
      });
      if (same == end)
        parts[count++] = part;
      else
        same->sequence = std::max(same->sequence, part.sequence);
    }
  if (count > 2) return std::nullopt;
  if (count == 0) return Stamp{};
  return count == 1 ? Stamp(parts[0]) : Stamp(parts[0], parts[1]);
}

bool can_merge(const ArenaBlock& front, const ArenaBlock& back) {
  if (front.stretch != back.stretch || front.is_live || back.is_live) return false;
  if (front.is_waiting || back.is_waiting || front.key != back.key) return false;
  return joined(front.stamp, back.stamp).has_value();
}

Arena::Blocks::iterator Arena::split(Blocks::iterator block, DevicePtr at) {
  ArenaBlock& front = block->second;
  ArenaBlock back = front;
  back.range = {at, front.range.end() - at};
  const auto behind = map_.blocks.emplace_hint(std::next(block), at, std::move(back));
  map_.free.insert(order_of(behind->second));
  refile(front, [&] { front.range.size = at - front.range.begin; });
  return behind;
}

void Arena::absorb_next(Blocks::iterator block) {
  const auto next = std::next(block);
  ArenaBlock& front = block->second;
  const ArenaBlock& back = next->second;
  refile(front, [&] {
    front.stamp = *joined(front.stamp, back.stamp);
    front.range.size += back.range.size;
  });
  map_.free.erase(order_of(back));
  map_.blocks.erase(next);
}

// Tells if a free block is complete, between live blocks or ends of its stretch.
bool Arena::is_merged(Blocks::iterator free) const {
  const auto is_free_neighbour = [&](const ArenaBlock& other) {
    return !other.is_live && other.stretch == free->second.stretch;
  };
  const auto next = std::next(free);
  return free->second.stamp.is_complete() &&
         (free == map_.blocks.begin() || !is_free_neighbour(std::prev(free)->second)) &&
         (next == map_.blocks.end() || !is_free_neighbour(next->second));
}

Arena::Blocks::iterator Arena::merge(Blocks::iterator block) {
  if (block != map_.blocks.begin() && can_merge(std::prev(block)->second, block->second)) {
    --block;
    absorb_next(block);
  }
  if (const auto next = std::next(block);
      next != map_.blocks.end() && can_merge(block->second, next->second))
    absorb_next(block);
  return block;
}

// --- changing

void Arena::add(AddressRange range, StreamKey key) {
  VPMM_CHECK(!range.empty() && is_multiple(range.size, kGrain), picture(kGrain));
  Stretch& stretch = map_.stretches.try_emplace(range.begin, Stretch{range, 0}).first->second;
  ArenaBlock block;
  block.range = range;
  block.stretch = &stretch;
  block.key = key;
  map_.blocks.emplace(range.begin, std::move(block));
  map_.free.insert({false, key, range.size, range.begin});
  held_ += range.size;
  idle_ += range.size;
}

void Arena::remove(const Stretch& idle) {
  VPMM_CHECK(idle.live == 0, picture(kGrain));
  const AddressRange range = idle.range;
  for (auto block = map_.blocks.find(range.begin);
       block != map_.blocks.end() && block->first < range.end();) {
    map_.free.erase(order_of(block->second));
    block = map_.blocks.erase(block);
  }
  held_ -= range.size;
  idle_ -= range.size;
  map_.stretches.erase(range.begin);
}

void Arena::divide(DevicePtr at) {
  auto block = map_.around(at);
  VPMM_CHECK(block != map_.blocks.end() && (block->first == at || !block->second.is_live),
             picture(kGrain));
  Stretch& front = *block->second.stretch;
  VPMM_CHECK(front.range.begin < at && is_multiple(at - front.range.begin, kGrain),
             picture(kGrain));
  if (block->first < at) block = split(block, at);
  const AddressRange behind{at, front.range.end() - at};
  Stretch& back =
      map_.stretches.try_emplace(at, Stretch{behind, 0, front.is_suspended}).first->second;
  if (front.live == 0) idle_ -= front.range.size;
  front.range.size -= behind.size;
  for (; block != map_.blocks.end() && block->first < behind.end(); ++block) {
    block->second.stretch = &back;
    if (block->second.is_live) ++back.live;
  }
  front.live -= back.live;
  for (const Stretch* const part : {&front, &back})
    if (part->live == 0) idle_ += part->range.size;
}

void Arena::take(AddressRange part, const BlockUse& use) {
  VPMM_CHECK(is_free(part) && is_multiple(part.size, kGrain), picture(kGrain));
  auto first = map_.around(part.begin);
  if (first->first < part.begin) first = split(first, part.begin);
  for (auto block = first; block != map_.blocks.end() && block->first < part.end();) {
    if (block->second.range.end() > part.end()) split(block, part.end());
    map_.free.erase(order_of(block->second));
    block = block == first ? std::next(block) : map_.blocks.erase(block);
  }
  ArenaBlock& taken = first->second;
  taken.range = part;
  taken.key = use.key;
  taken.is_live = true;
  taken.is_waiting = false;
  taken.requested = use.requested;
  taken.timeline = use.timeline;
  taken.stamp = {};
  if (taken.stretch->live == 0) idle_ -= taken.stretch->range.size;
  ++taken.stretch->live;
  ++live_;
  allocated_ += part.size;
}

void Arena::end(DevicePtr begin, const End& end) {
  const auto found = map_.blocks.find(begin);
  VPMM_CHECK(found != map_.blocks.end() && found->second.is_live, picture(kGrain));
  ArenaBlock& block = found->second;
  block.key = end.key;
  block.stamp = end.stamp;
  block.is_waiting = end.is_waiting && !end.stamp.is_complete();
  map_.free.insert(order_of(block));
  block.is_live = false;
  block.requested = 0;
  block.timeline.reset();
  block.other_uses.clear();
  --block.stretch->live;
  if (block.stretch->live == 0) idle_ += block.stretch->range.size;
  --live_;
  allocated_ -= block.range.size;
  const auto merged = merge(found);
  is_merged_ = is_merged_ && is_merged(merged);
}

bool Arena::record_use(DevicePtr begin, time::TimelineId timeline) {
  const auto found = map_.blocks.find(begin);
  VPMM_CHECK(found != map_.blocks.end() && found->second.is_live, picture(kGrain));
  Vector<time::TimelineId>& uses = found->second.other_uses;
  if (std::find(uses.begin(), uses.end(), timeline) != uses.end()) return false;
  uses.push_back(timeline);
  return true;
}

void Arena::refresh(FunctionRef<Stamp(const Stamp&)> reduce) {
  if (is_merged_) return;
  is_merged_ = true;
  for (auto at = map_.blocks.begin(); at != map_.blocks.end(); ++at) {
    ArenaBlock& block = at->second;
    if (block.is_live) continue;
    if (!block.stamp.is_complete()) {
      block.stamp = reduce(block.stamp);
      if (block.is_waiting && block.stamp.is_complete())
        refile(block, [&] { block.is_waiting = false; });
      at = merge(at);
    }
    is_merged_ = is_merged_ && is_merged(at);
  }
}

void Arena::rename(StreamKey from, StreamKey to) {
  for (auto at = map_.blocks.begin(); at != map_.blocks.end(); ++at) {
    ArenaBlock& block = at->second;
    if (block.key != from) continue;
    if (block.is_live) {
      block.key = to;
      continue;
    }
    refile(block, [&] { block.key = to; });
    at = merge(at);
  }
}

void Arena::forget_streams() {
  for (auto at = map_.blocks.begin(); at != map_.blocks.end(); ++at) {
    ArenaBlock& block = at->second;
    if (block.is_live) block.key = kEverybody;
    if (block.is_live || !block.stamp.is_complete()) continue;
    refile(block, [&] { block.key = kEverybody; });
    at = merge(at);
  }
}

}  // namespace vpmm::arena
