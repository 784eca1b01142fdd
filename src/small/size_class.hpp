// SPDX-License-Identifier: Apache-2.0
// small: sizes that requests are rounded to, and shapes of slabs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm::small {

// Note [Size classes]
// Up to 2 KiB every multiple of 256 bytes, the least alignment that is promised. From there to 128
// KiB eight classes per doubling, so that at most an eighth of a block is left over. These blocks
// are cut from slabs, at most 256 in one. From 128 KiB a request is a span of its own, of units of
// 16 KiB, sixteen classes per doubling: at most an eighth is left over below 256 KiB and a
// sixteenth above. Beyond 2 MiB there are 32, as in PageSizes. From 512 KiB a span begins at a
// multiple of 64 KiB.
constexpr Bytes kUnit = 16 * kKiB;
constexpr Bytes kGrain = 256;
constexpr Bytes kLeastSpan = 8 * kUnit;
constexpr std::size_t kSlabClasses = 55;
constexpr std::uint64_t kMostBlocks = 256;
constexpr std::uint64_t kMostSlabUnits = 16;              // of a stream's first slabs of a class
constexpr Bytes kLeastPage = 2 * kMostSlabUnits * kUnit;  // smaller pages are not cut

// Requires: 0 < bytes <= block_size(kSlabClasses - 1).
constexpr std::size_t slab_class(Bytes bytes) {
  const std::uint64_t last = (bytes - 1) / kGrain;  // grains - 1
  if (last < 8) return static_cast<std::size_t>(last);
  const auto shift = static_cast<std::uint64_t>(std::bit_width(last)) - 4;
  return static_cast<std::size_t>(8 + 8 * shift + ((last >> shift) - 8));
}

constexpr Bytes block_size(std::size_t slab_class) {
  if (slab_class < 8) return (slab_class + 1) * kGrain;
  const std::uint64_t shift = (slab_class - 8) / 8;
  return (((slab_class - 8) % 8 + 9) << shift) * kGrain;
}

constexpr Bytes kLargestBlock = block_size(kSlabClasses - 1);

struct SlabShape {
  Bytes block = 0;
  std::uint64_t units = 0;
  std::uint64_t blocks = 0;
  std::uint64_t inverse = 0;  // of `block`, times 2^44, rounded up: index = offset * inverse >> 44
  constexpr std::uint64_t index_of(Bytes offset) const { return offset * inverse >> 44; }
};

constexpr bool is_nearly_cut(std::uint64_t units, Bytes cut) {
  return (units * kUnit - cut) * 32 <= units * kUnit;
}

// Shape with the fewest units that leave at most a 32nd uncut.
constexpr SlabShape shape_of(Bytes block) {
  SlabShape best;
  for (std::uint64_t units = 1; units <= kMostSlabUnits; ++units) {
    const std::uint64_t fitting = units * kUnit / block;
    const std::uint64_t blocks = fitting < kMostBlocks ? fitting : kMostBlocks;
    if (blocks == 0) continue;
    best = {block, units, blocks, ((std::uint64_t{1} << 44) + block - 1) / block};
    if (is_nearly_cut(units, blocks * block)) break;
  }
  return best;
}

constexpr std::array<SlabShape, kSlabClasses> make_shapes() {
  std::array<SlabShape, kSlabClasses> shapes{};
  for (std::size_t i = 0; i < kSlabClasses; ++i) shapes[i] = shape_of(block_size(i));
  return shapes;
}

inline constexpr std::array<SlabShape, kSlabClasses> kShapes = make_shapes();

// Note [Slabs grow with what there is]
// Many streams may want one block of many classes each, so a stream's first slab of a class is the
// least that holds a block. The next has the fewest units that leave little uncut. With many slabs
// each record is a cache miss, and such a slab holds only a few large blocks. So a stream with much
// memory of a class cuts the next slab twice, four times ... as large, or a whole page: at most a
// 16th of its memory of the class, and 256 blocks.
constexpr std::uint64_t kSlabShare = 16;

struct SlabSize {
  std::uint64_t units = 0;
  std::uint64_t blocks = 0;
};

// Least size of the next slab for a stream with `units_of_class` units in slabs of the class.
constexpr SlabSize least_slab(const SlabShape& shape, std::uint64_t units_of_class) {
  if (units_of_class != 0) return {shape.units, shape.blocks};
  const std::uint64_t units = (shape.block + kUnit - 1) / kUnit;
  return {units, std::min(units * kUnit / shape.block, kMostBlocks)};
}

// Size of the next slab, if there is room.
constexpr SlabSize slab_size(const SlabShape& shape, std::uint64_t units_of_class,
                             std::uint64_t page_units) {
  const std::uint64_t most = units_of_class / kSlabShare;
  const std::uint64_t in_a_page = page_units * kUnit / shape.block;
  const bool fills_page =
      in_a_page <= kMostBlocks && is_nearly_cut(page_units, in_a_page * shape.block);
  if (page_units <= most && fills_page) return {page_units, in_a_page};
  SlabSize size = least_slab(shape, units_of_class);
  while (2 * size.blocks <= kMostBlocks && 2 * size.units <= std::min(most, page_units))
    size = {2 * size.units, 2 * size.blocks};
  return size;
}

// Units of a span for `bytes`, rounded up to a class.
constexpr std::uint64_t span_units(Bytes bytes) {
  const std::uint64_t units = (std::max(bytes, kLeastSpan) + kUnit - 1) / kUnit;
  const bool is_finer = units > 2 * kMiB / kUnit;
  const auto width = static_cast<std::uint64_t>(std::bit_width((units - 1) | 31));
  const std::uint64_t step = std::uint64_t{1} << (width - 5 - std::uint64_t{is_finer});
  return (units + step - 1) & ~(step - 1);
}

}  // namespace vpmm::small
