// SPDX-License-Identifier: Apache-2.0
// arena: finding, cutting and merging blocks.
#include "arena/arena.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/check.hpp"

namespace vpmm::arena {

using time::Stamp;

namespace {

// Without splitting: largest free stretch for a request, in sizes of the request.
constexpr Bytes kMostOfWish = 2;
// Splitting::small: a large request has at least so many pages, so whole pages waste a 32nd of it
// on average; most free bytes beyond one: 1/32.
constexpr Bytes kLargePages = 16;
constexpr Bytes kBeyondShare = 32;

}  // namespace

// --- looking

std::optional<AddressRange> Arena::fit_in(AddressRange free, const Wish& wish) {
  const DevicePtr begin = align_up(free.begin, wish.alignment);
  if (begin > free.end() || free.end() - begin < wish.size) return std::nullopt;
  return AddressRange{begin, wish.size};
}

bool Arena::may_serve(const ArenaBlock& block, StreamKey key) const {
  if (block.is_live || block.is_waiting) return false;
  return block.key == key || block.key == kEverybody || (!is_pinned_ && block.stamp.is_complete());
}

// Tells if `wanted` bytes may be cut from a free piece of `size` bytes in the block's stretch.
bool Arena::is_in_room(const ArenaBlock& block, Bytes size, Bytes wanted, Reach room) const {
  if (!splits()) return size <= kMostOfWish * std::max(wanted, page_size_ / kMostOfWish);
  if (room == Reach::everywhere) return true;
  if (splitting_ == Splitting::small) {
    // In whole pages: a new stretch for the request must fit it.
    const Bytes large = kLargePages * page_size_;
    const Bytes pages = round_up(wanted, page_size_);
    const bool is_of_large = block.stretch->range.size >= large;
    if (pages >= large || is_of_large)
      return pages >= large && is_of_large && size <= pages + pages / kBeyondShare;
  }
  if (wanted > page_size_ / 2) return true;
  return size < page_size_ || block.stretch->range.size <= page_size_;
}

std::optional<AddressRange> Arena::in_block(const ArenaBlock& block, const Wish& wish,
                                            Reach room) const {
  if (!is_in_room(block, block.range.size, wish.size, room)) return std::nullopt;
  std::optional<AddressRange> part = fit_in(block.range, wish);
  if (part && !splits() && part->begin != block.range.begin) return std::nullopt;
  return part && !splits() ? block.range : part;
}

std::optional<AddressRange> Arena::best_of(StreamKey owner, const Wish& wish, Reach room) const {
  for (auto place = free_.lower_bound({false, owner, wish.size, DevicePtr{}});
       place != free_.end() && !place->is_waiting && place->key == owner; ++place)
    if (auto part = in_block(blocks_.find(place->begin)->second, wish, room)) return part;
  return std::nullopt;
}

// Finds a complete block of any stream. Linear in free blocks.
std::optional<AddressRange> Arena::best_complete(const Wish& wish, Reach room) const {
  std::optional<AddressRange> best;
  std::pair<Bytes, DevicePtr> least;
  for (const SortKey& place : free_) {
    if (place.is_waiting) break;
    const std::pair of{place.size, place.begin};
    if (place.size < wish.size || (best && least < of)) continue;
    const ArenaBlock& block = blocks_.find(place.begin)->second;
    if (!block.stamp.is_complete()) continue;
    if (auto part = in_block(block, wish, room)) {
      best = part;
      least = of;
    }
  }
  return best;
}

// Finds a run of neighbours with several keys or stamps. Linear in blocks.
std::optional<AddressRange> Arena::best_run(const Wish& wish, Reach room) const {
  std::optional<AddressRange> best;
  Bytes least = 0;
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const ArenaBlock& first = block->second;
    AddressRange run{first.range.begin, 0};
    for (; block != blocks_.end() && block->second.stretch == first.stretch &&
           may_serve(block->second, wish.key);
         ++block)
      run.size += block->second.range.size;
    if (run.empty()) ++block;
    if (run.size < wish.size || !is_in_room(first, run.size, wish.size, room) ||
        (best && least <= run.size))
      continue;
    if (const auto part = fit_in(run, wish)) {
      best = part;
      least = run.size;
    }
  }
  return best;
}

std::optional<AddressRange> Arena::find(const Wish& wish, Reach room) const {
  std::optional<AddressRange> part = best_of(wish.key, wish, room);
  if (!part && wish.key != kEverybody) part = best_of(kEverybody, wish, room);
  if (!part && !is_pinned_) part = best_complete(wish, room);
  if (!part && splits()) part = best_run(wish, room);
  return part;
}

Arena::Blocks::const_iterator Arena::around(DevicePtr p) const {
  const auto after = blocks_.upper_bound(p);
  if (after == blocks_.begin()) return blocks_.end();
  const auto block = std::prev(after);
  return block->second.range.contains(p) ? block : blocks_.end();
}

Arena::Blocks::iterator Arena::around(DevicePtr p) {
  return blocks_.erase(std::as_const(*this).around(p),
                       std::as_const(*this).around(p));  // empty range: removes the const
}

const ArenaBlock* Arena::block_around(DevicePtr p) const {
  const auto block = around(p);
  return block == blocks_.end() ? nullptr : &block->second;
}

const Stretch* Arena::stretch_around(DevicePtr p) const {
  const ArenaBlock* const block = block_around(p);
  return block == nullptr ? nullptr : block->stretch;
}

bool Arena::is_free(AddressRange part) const {
  auto block = around(part.begin);
  if (block == blocks_.end() || !block->second.stretch->range.contains(part)) return false;
  for (; block != blocks_.end() && block->first < part.end(); ++block)
    if (block->second.is_live) return false;
  return true;
}

bool Arena::has_pending_for(StreamKey key) const {
  return std::any_of(free_.begin(), free_.end(), [&](const SortKey& place) {
    const bool may_have_it = place.key == key || place.key == kEverybody || !is_pinned_;
    if (place.is_waiting) return may_have_it;
    return place.key != key && may_have_it &&
           !blocks_.find(place.begin)->second.stamp.is_complete();
  });
}

void Arena::for_each_live(FunctionRef<void(const ArenaBlock&)> visit) const {
  for (const auto& [begin, block] : blocks_)
    if (block.is_live) visit(block);
}

void Arena::for_each_block_in(AddressRange stretch,
                              FunctionRef<void(const ArenaBlock&)> visit) const {
  for (auto block = blocks_.find(stretch.begin);
       block != blocks_.end() && block->first < stretch.end(); ++block)
    visit(block->second);
}

void Arena::for_each_stretch(FunctionRef<void(const Stretch&)> visit) const {
  for (const auto& [begin, stretch] : stretches_) visit(stretch);
}

std::optional<Stamp> Arena::stamp_of(const Stretch& idle) const {
  std::optional<Stamp> all = Stamp{};
  for_each_block_in(idle.range, [&](const ArenaBlock& block) {
    if (all) all = joined(*all, block.stamp);
  });
  return all;
}

bool Arena::is_used_by(StreamKey key) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const auto& block) { return block.second.key == key; });
}

const Stretch* Arena::idle_stretch() const {
  if (idle_ == 0) return nullptr;
  const auto idle = std::find_if(stretches_.begin(), stretches_.end(),
                                 [](const auto& stretch) { return stretch.second.live == 0; });
  VPMM_CHECK(idle != stretches_.end(), picture(kGrain));
  return &idle->second;
}

AddressRange Arena::free_run(DevicePtr from) const {
  const auto continues = [](const ArenaBlock& front, const ArenaBlock& back) {
    return !front.is_live && !back.is_live && front.stretch == back.stretch;
  };
  auto block = blocks_.upper_bound(from);
  if (block != blocks_.begin()) --block;
  while (block != blocks_.begin() && continues(std::prev(block)->second, block->second)) --block;
  while (block != blocks_.end()) {
    const ArenaBlock& first = block->second;
    AddressRange run = first.range;
    for (++block; block != blocks_.end() && continues(first, block->second); ++block)
      run.size += block->second.range.size;
    const bool is_in_use = first.stretch->live != 0 && !first.stretch->is_suspended;
    if (!first.is_live && is_in_use && run.end() > from) return run;
  }
  return {};
}

Bytes Arena::pending_bytes(FunctionRef<Stamp(const Stamp&)> reduce) const {
  Bytes bytes = 0;
  for (const auto& [begin, block] : blocks_)
    if (!block.is_live && !reduce(block.stamp).is_complete()) bytes += block.range.size;
  return bytes;
}

// --- cutting and merging

template <typename Change>
void Arena::refile(ArenaBlock& block, Change&& change) {
  auto node = free_.extract(place_of(block));  // needs no memory
  VPMM_CHECK(!node.empty(), picture(kGrain));
  std::forward<Change>(change)();
  node.value() = place_of(block);
  free_.insert(std::move(node));
}

// Returns nullopt if they have more parts than a stamp holds.
std::optional<Stamp> Arena::joined(const Stamp& a, const Stamp& b) {
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

bool Arena::can_merge(const ArenaBlock& front, const ArenaBlock& back) {
  if (front.stretch != back.stretch || front.is_live || back.is_live) return false;
  if (front.is_waiting || back.is_waiting || front.key != back.key) return false;
  return joined(front.stamp, back.stamp).has_value();
}

Arena::Blocks::iterator Arena::split(Blocks::iterator block, DevicePtr at) {
  ArenaBlock& front = block->second;
  ArenaBlock back = front;
  back.range = {at, front.range.end() - at};
  const auto behind = blocks_.emplace_hint(std::next(block), at, std::move(back));
  free_.insert(place_of(behind->second));
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
  free_.erase(place_of(back));
  blocks_.erase(next);
}

Arena::Blocks::iterator Arena::merge(Blocks::iterator block) {
  if (block != blocks_.begin() && can_merge(std::prev(block)->second, block->second)) {
    --block;
    absorb_next(block);
  }
  if (const auto next = std::next(block);
      next != blocks_.end() && can_merge(block->second, next->second))
    absorb_next(block);
  return block;
}

// --- changing

void Arena::add(AddressRange range, StreamKey key) {
  VPMM_CHECK(!range.empty() && is_multiple(range.size, kGrain), picture(kGrain));
  Stretch& stretch = stretches_.try_emplace(range.begin, Stretch{range, 0}).first->second;
  ArenaBlock block;
  block.range = range;
  block.stretch = &stretch;
  block.key = key;
  blocks_.emplace(range.begin, std::move(block));
  free_.insert({false, key, range.size, range.begin});
  held_ += range.size;
  idle_ += range.size;
}

void Arena::remove(const Stretch& idle) {
  VPMM_CHECK(idle.live == 0, picture(kGrain));
  const AddressRange range = idle.range;
  for (auto block = blocks_.find(range.begin);
       block != blocks_.end() && block->first < range.end();) {
    free_.erase(place_of(block->second));
    block = blocks_.erase(block);
  }
  held_ -= range.size;
  idle_ -= range.size;
  stretches_.erase(range.begin);
}

void Arena::divide(DevicePtr at) {
  auto block = around(at);
  VPMM_CHECK(block != blocks_.end() && (block->first == at || !block->second.is_live),
             picture(kGrain));
  Stretch& front = *block->second.stretch;
  VPMM_CHECK(front.range.begin < at && is_multiple(at - front.range.begin, kGrain),
             picture(kGrain));
  if (block->first < at) block = split(block, at);
  const AddressRange behind{at, front.range.end() - at};
  Stretch& back = stretches_.try_emplace(at, Stretch{behind, 0, front.is_suspended}).first->second;
  if (front.live == 0) idle_ -= front.range.size;
  front.range.size -= behind.size;
  for (; block != blocks_.end() && block->first < behind.end(); ++block) {
    block->second.stretch = &back;
    if (block->second.is_live) ++back.live;
  }
  front.live -= back.live;
  for (const Stretch* const part : {&front, &back})
    if (part->live == 0) idle_ += part->range.size;
}

const ArenaBlock& Arena::take(AddressRange part, const BlockUse& use) {
  VPMM_CHECK(is_free(part) && is_multiple(part.size, kGrain), picture(kGrain));
  auto first = around(part.begin);
  if (first->first < part.begin) first = split(first, part.begin);
  for (auto block = first; block != blocks_.end() && block->first < part.end();) {
    if (block->second.range.end() > part.end()) split(block, part.end());
    free_.erase(place_of(block->second));
    block = block == first ? std::next(block) : blocks_.erase(block);
  }
  ArenaBlock& taken = first->second;
  taken.range = part;
  taken.key = use.key;
  taken.is_live = true;
  taken.is_waiting = false;
  taken.requested = use.requested;
  taken.timeline = use.timeline;
  taken.stamp = {};
  if (taken.stretch->live++ == 0) idle_ -= taken.stretch->range.size;
  ++live_;
  allocated_ += part.size;
  return taken;
}

void Arena::end(DevicePtr begin, const End& end) {
  const auto found = blocks_.find(begin);
  VPMM_CHECK(found != blocks_.end() && found->second.is_live, picture(kGrain));
  ArenaBlock& block = found->second;
  block.key = end.key;
  block.stamp = end.stamp;
  block.is_waiting = end.is_waiting && !end.stamp.is_complete();
  free_.insert(place_of(block));
  block.is_live = false;
  block.requested = 0;
  block.timeline.reset();
  block.other_uses.clear();
  if (--block.stretch->live == 0) idle_ += block.stretch->range.size;
  --live_;
  allocated_ -= block.range.size;
  merge(found);
}

bool Arena::record_use(DevicePtr begin, time::TimelineId timeline) {
  const auto found = blocks_.find(begin);
  VPMM_CHECK(found != blocks_.end() && found->second.is_live, picture(kGrain));
  Vector<time::TimelineId>& uses = found->second.other_uses;
  if (std::find(uses.begin(), uses.end(), timeline) != uses.end()) return false;
  uses.push_back(timeline);
  return true;
}

void Arena::refresh(FunctionRef<Stamp(const Stamp&)> reduce) {
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    ArenaBlock& block = at->second;
    if (block.is_live || block.stamp.is_complete()) continue;
    block.stamp = reduce(block.stamp);
    if (block.is_waiting && block.stamp.is_complete())
      refile(block, [&] { block.is_waiting = false; });
    at = merge(at);
  }
}

void Arena::rename(StreamKey from, StreamKey to) {
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
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
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    ArenaBlock& block = at->second;
    if (block.is_live) block.key = kEverybody;
    if (block.is_live || !block.stamp.is_complete()) continue;
    refile(block, [&] { block.key = kEverybody; });
    at = merge(at);
  }
}

}  // namespace vpmm::arena
