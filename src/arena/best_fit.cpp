// SPDX-License-Identifier: Apache-2.0
// arena: looks for free memory: in blocks of the caller's stream, in complete blocks, in runs.
#include "arena/best_fit.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace vpmm::arena {

namespace {

// Largest free stretch for a request without splitting, in sizes of the request.
constexpr Bytes kMostOfWish = 2;
// Splitting::small: a large request has at least so many pages, so whole pages waste a 32nd of it
// on average; most free bytes beyond one: 1/32.
constexpr Bytes kLargePages = 16;
constexpr Bytes kBeyondShare = 32;

}  // namespace

std::optional<AddressRange> BestFit::fit_in(AddressRange free, const Wish& wish) {
  const DevicePtr begin = align_up(free.begin, wish.alignment);
  if (begin > free.end() || free.end() - begin < wish.size) return std::nullopt;
  return AddressRange{begin, wish.size};
}

bool BestFit::may_serve(const ArenaBlock& block, StreamKey key) const {
  if (block.is_live || block.is_waiting) return false;
  return block.key == key || block.key == kEverybody ||
         (!rules_.is_pinned && block.stamp.is_complete());
}

// Tells if `wanted` bytes may be cut from a free piece of `size` bytes in the block's stretch.
bool BestFit::is_in_reach(const ArenaBlock& block, Bytes size, Bytes wanted) const {
  if (rules_.splitting == Splitting::no)
    return size <= kMostOfWish * std::max(wanted, page_size_ / kMostOfWish);
  if (rules_.reach == Reach::everywhere) return true;
  if (rules_.splitting == Splitting::small) {
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

std::optional<AddressRange> BestFit::in_block(const ArenaBlock& block, const Wish& wish) const {
  if (!is_in_reach(block, block.range.size, wish.size)) return std::nullopt;
  std::optional<AddressRange> part = fit_in(block.range, wish);
  if (part && rules_.splitting == Splitting::no && part->begin != block.range.begin)
    return std::nullopt;
  return part && rules_.splitting == Splitting::no ? block.range : part;
}

std::optional<AddressRange> BestFit::best_of(StreamKey owner, const Wish& wish) const {
  for (auto place = map_.free.lower_bound({false, owner, wish.size, DevicePtr{}});
       place != map_.free.end() && !place->is_waiting && place->key == owner; ++place)
    if (auto part = in_block(map_.blocks.find(place->begin)->second, wish)) return part;
  return std::nullopt;
}

// Finds a complete block of any stream. Linear in streams.
std::optional<AddressRange> BestFit::best_complete(const Wish& wish) const {
  constexpr DevicePtr kLast{std::numeric_limits<std::uint64_t>::max()};
  std::optional<AddressRange> best;
  std::pair<Bytes, DevicePtr> least{std::numeric_limits<Bytes>::max(), kLast};
  for (auto place = map_.free.begin(); place != map_.free.end() && !place->is_waiting;) {
    const StreamKey key = place->key;
    for (place = map_.free.lower_bound({false, key, wish.size, DevicePtr{}});
         place != map_.free.end() && !place->is_waiting && place->key == key; ++place) {
      const std::pair of{place->size, place->begin};
      if (least < of) break;
      const ArenaBlock& block = map_.blocks.find(place->begin)->second;
      if (!block.stamp.is_complete()) continue;
      if (auto part = in_block(block, wish)) {
        best = part;
        least = of;
      }
    }
    place = map_.free.upper_bound({false, key, std::numeric_limits<Bytes>::max(), kLast});
  }
  return best;
}

// Finds a run of neighbours with several keys or stamps. Linear in blocks.
std::optional<AddressRange> BestFit::best_run(const Wish& wish) const {
  std::optional<AddressRange> best;
  Bytes least = 0;
  for (auto block = map_.blocks.begin(); block != map_.blocks.end();) {
    const ArenaBlock& first = block->second;
    AddressRange run{first.range.begin, 0};
    for (; block != map_.blocks.end() && block->second.stretch == first.stretch &&
           may_serve(block->second, wish.key);
         ++block)
      run.size += block->second.range.size;
    if (run.empty()) ++block;
    if (run.size < wish.size || !is_in_reach(first, run.size, wish.size) ||
        (best && least <= run.size))
      continue;
    if (const auto part = fit_in(run, wish)) {
      best = part;
      least = run.size;
    }
  }
  return best;
}

std::optional<AddressRange> BestFit::find(const Wish& wish) const {
  std::optional<AddressRange> part = best_of(wish.key, wish);
  if (!part && wish.key != kEverybody) part = best_of(kEverybody, wish);
  if (!part && !rules_.is_pinned) part = best_complete(wish);
  if (!part && rules_.splitting != Splitting::no && !rules_.is_merged) part = best_run(wish);
  return part;
}

}  // namespace vpmm::arena
