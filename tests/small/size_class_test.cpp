// SPDX-License-Identifier: Apache-2.0
// small: size classes, the shapes of slabs and the classes of spans, over every size there is.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <set>
#include <vector>

#include "driver/sim/sim_driver.hpp"
#include "small/serving.hpp"
#include "small/size_class.hpp"
#include "small/slab.hpp"
#include "support/page_size.hpp"

namespace vpmm::small {
namespace {

// What a request of `bytes` takes of a page.
Bytes taken(Bytes bytes) {
  return bytes <= kLargestBlock ? block_size(slab_class(bytes)) : span_units(bytes) * kUnit;
}

TEST(SizeClass, every_request_below_a_page_fits_and_wastes_at_most_an_eighth) {
  for (Bytes bytes = 1; bytes <= kPage; ++bytes) {
    const Bytes size = taken(bytes);
    ASSERT_GE(size, bytes);
    const Bytes waste = size - bytes;
    ASSERT_TRUE(bytes <= 2 * kKiB ? waste <= 255 : waste * 8 <= size) << bytes << " takes " << size;
  }
}

TEST(SizeClass, the_smallest_class_that_fits_is_taken_and_classes_grow_with_the_size) {
  std::size_t previous = 0;
  for (Bytes bytes = 1; bytes <= kLargestBlock; ++bytes) {
    const std::size_t c = slab_class(bytes);
    ASSERT_LT(c, kSlabClasses);
    ASSERT_TRUE(c == previous || c == previous + 1) << bytes;
    ASSERT_TRUE(c == 0 || block_size(c - 1) < bytes) << bytes;
    previous = c;
  }
  EXPECT_EQ(previous, kSlabClasses - 1) << "every class is the class of something";
}

TEST(SizeClass, classes_and_runs_meet_without_a_gap) {
  EXPECT_LT(kLargestBlock, kLeastSpan);
  EXPECT_EQ(span_units(kLargestBlock + 1), kLeastSpan / kUnit)
      << "the first span that is not a block";
}

TEST(SizeClass, every_block_begins_at_a_multiple_of_256) {
  for (std::size_t c = 0; c < kSlabClasses; ++c) EXPECT_EQ(block_size(c) % kGrain, 0u) << c;
  EXPECT_EQ(kUnit % kGrain, 0u) << "and so do slabs";
}

TEST(SlabShape, blocks_fit_into_whole_units_and_not_too_many_of_them) {
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    const SlabShape& shape = kShapes[c];
    SCOPED_TRACE(c);
    EXPECT_EQ(shape.block, block_size(c));
    EXPECT_GE(shape.blocks, 1u);
    EXPECT_LE(shape.blocks, kMostBlocks);
    EXPECT_GE(shape.units, 1u);
    EXPECT_LE(shape.units, kMostSlabUnits);
    EXPECT_LE(shape.blocks * shape.block, shape.units * kUnit);
  }
}

// A slab of 64 blocks of 256 bytes fills its unit, so the limit on the number of blocks costs
// nothing either.
TEST(SlabShape, at_most_a_thirty_second_of_a_slab_is_never_cut) {
  for (const SlabShape& shape : kShapes)
    EXPECT_LE((shape.units * kUnit - shape.blocks * shape.block) * 32, shape.units * kUnit)
        << shape.block;
}

// The compiler made the table; here it is made once more while the program runs.
TEST(SlabShape, is_the_first_that_is_nearly_cut_or_as_large_as_may_be) {
  const std::array<SlabShape, kSlabClasses> shapes = make_shapes();
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    const SlabShape& shape = shapes[c];
    SCOPED_TRACE(block_size(c));
    EXPECT_EQ(shape.block, block_size(c));
    EXPECT_EQ(shape.blocks, std::min(shape.units * kUnit / shape.block, kMostBlocks));
    EXPECT_GT(shape.blocks, 0u);
    EXPECT_LE((shape.units * kUnit - shape.blocks * shape.block) * 32, shape.units * kUnit);
    for (std::uint64_t fewer = 1; fewer < shape.units; ++fewer)
      EXPECT_GT((fewer * kUnit % shape.block) * 32, fewer * kUnit) << fewer << " units would do";
    EXPECT_EQ(shape.index_of(7 * shape.block), 7u);
    EXPECT_EQ(shape.index_of(8 * shape.block - 1), 7u);
    EXPECT_EQ(kShapes[c].units, shape.units);
    EXPECT_EQ(kShapes[c].blocks, shape.blocks);
    EXPECT_EQ(kShapes[c].inverse, shape.inverse);
  }
}

TEST(BlockSet, agrees_with_a_set_of_numbers) {
  std::mt19937_64 random(1);
  BlockSet blocks;
  std::set<std::uint64_t> expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t index = random() % kMostBlocks;
    if (expected.insert(index).second) {
      blocks.add(index);
    } else {
      blocks.remove(index);
      expected.erase(index);
    }
    ASSERT_EQ(blocks.contains(index), expected.contains(index));
    ASSERT_EQ(blocks.count(), expected.size());
    ASSERT_EQ(blocks.empty(), expected.empty());
    if (expected.empty()) continue;
    ASSERT_EQ(blocks.first(), *expected.begin());
  }
}

TEST(BlockSet, is_filled_from_the_first_on) {
  for (std::uint64_t count = 0; count <= kMostBlocks; ++count) {
    BlockSet blocks;
    blocks.fill(count);
    EXPECT_EQ(blocks.count(), count);
    EXPECT_TRUE(count == 0 || blocks.contains(count - 1)) << count;
  }
}

TEST(BlockSet, overlaps_where_one_block_is_in_both) {
  for (const std::uint64_t index :
       {std::uint64_t{0}, std::uint64_t{63}, std::uint64_t{64}, kMostBlocks - 1}) {
    BlockSet one, other;
    one.add(index);
    EXPECT_FALSE(one.overlaps(other));
    other.add(index ^ 1);
    EXPECT_FALSE(one.overlaps(other));
    other.add(index);
    EXPECT_TRUE(one.overlaps(other));
  }
}

TEST(Slab, knows_which_blocks_are_live) {
  Slab slab;
  slab.blocks = 100;
  slab.set_all_free();
  EXPECT_TRUE(slab.is_empty());
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(slab.take_first(), i);
  EXPECT_TRUE(slab.is_full());
  EXPECT_TRUE(slab.is_live(99));
  EXPECT_FALSE(slab.is_live(100));
  slab.set_waiting(70, true);
  slab.set_used_elsewhere(71, true);
  EXPECT_FALSE(slab.is_live(70));
  EXPECT_TRUE(slab.is_live(71));
  EXPECT_TRUE(slab.is_used_elsewhere(71));
  EXPECT_FALSE(slab.is_used_elsewhere(70));
  EXPECT_TRUE(slab.is_full()) << "what waits is not free";
  slab.set_waiting(70, false);
  slab.give(70);
  slab.set_used_elsewhere(71, false);
  EXPECT_FALSE(slab.has_exceptions);
  EXPECT_FALSE(slab.is_live(70));
  EXPECT_EQ(slab.take_first(), 70u);
}

// Its record may have served another stream, whose numbers are others.
TEST(Slab, is_complete_when_it_is_cut) {
  Slab slab;
  slab.blocks = 4;
  slab.number = 1000;
  slab.set_all_free();
  EXPECT_EQ(slab.number, 0u);
}

// What every call touches.
TEST(Slab, begins_with_one_line_of_the_cache) { EXPECT_EQ(offsetof(Slab, previous), 64u); }

TEST(SlabShape, the_index_of_every_offset_in_a_page_is_the_quotient) {
  for (const SlabShape& shape : kShapes) {
    SCOPED_TRACE(shape.block);
    std::uint64_t wrong = 0;
    for (Bytes begin = 0; begin < kMostBlocks * shape.block; begin += shape.block)
      for (const Bytes offset :
           {begin, begin + 1, begin + shape.block / 2, begin + shape.block - 1})
        wrong += shape.index_of(offset) == offset / shape.block ? 0 : 1;
    EXPECT_EQ(wrong, 0u);
  }
}

TEST(SlabSize, is_at_most_a_thirty_second_of_what_the_class_has_and_fits_a_page) {
  for (const Bytes page : {kLeastPage, kPage, 3 * kMiB}) {
    for (const SlabShape& shape : kShapes) {
      SCOPED_TRACE(shape.block);
      const SlabSize first = slab_size(shape, 0, page / kUnit);
      EXPECT_EQ(first.units, (shape.block + kUnit - 1) / kUnit)
          << "the first slab is the smallest there is";
      EXPECT_EQ(first.blocks, first.units * kUnit / shape.block) << "and no block is missing in it";
      EXPECT_EQ(slab_size(shape, 1, page / kUnit).units, shape.units) << "the second is nearly cut";
      std::uint64_t most = 0;
      for (std::uint64_t units = 1; units <= std::uint64_t{1} << 20; units = 2 * units + 1) {
        const SlabSize size = slab_size(shape, units, page / kUnit);
        EXPECT_LE(size.units, std::max(shape.units, units / kSlabShare)) << "of what there is";
        EXPECT_LE(size.units * kUnit, page);
        EXPECT_LE(size.blocks, kMostBlocks);
        EXPECT_LE(size.blocks * shape.block, size.units * kUnit);
        EXPECT_LE((size.units * kUnit - size.blocks * shape.block) * 32, size.units * kUnit)
            << "hardly any is not cut";
        EXPECT_GE(size.units, most) << "never less for more";
        most = size.units;
      }
      EXPECT_TRUE(most * 2 * kUnit > page || most * kUnit / shape.block * 2 > kMostBlocks)
          << "in the end nearly as many as there can be";
    }
  }
}

TEST(SlabSize, is_a_whole_page_where_that_is_a_sixteenth_and_hardly_any_is_not_cut) {
  for (std::uint64_t page = kLeastPage / kUnit; page <= 256; ++page)
    for (const SlabShape& shape : kShapes) {
      const std::uint64_t blocks = page * kUnit / shape.block;
      const Bytes rest = page * kUnit - blocks * shape.block;
      const bool fills_page = blocks <= kMostBlocks && rest * 32 <= page * kUnit;
      const SlabSize least = slab_size(shape, 16 * page - 1, page);
      const SlabSize whole = slab_size(shape, 16 * page, page);
      ASSERT_LE(least.units, std::max(shape.units, page - 1)) << shape.block << " " << page;
      if (!fills_page) continue;
      ASSERT_EQ(whole.units, page) << shape.block;
      ASSERT_EQ(whole.blocks, blocks) << shape.block << " " << page;
    }
}

TEST(RunClass, rounding_up_twice_changes_nothing_and_never_shrinks) {
  std::uint64_t previous = 0;
  for (Bytes bytes = kLeastSpan; bytes <= 4 * kPage; bytes += 1024) {
    const std::uint64_t units = span_units(bytes);
    ASSERT_EQ(span_units(units * kUnit), units) << bytes;
    ASSERT_GE(units, previous) << bytes;
    ASSERT_LE((units * kUnit - bytes) * 8, units * kUnit) << bytes;
    ASSERT_TRUE(bytes <= 256 * kKiB || (units * kUnit - bytes) * 16 <= units * kUnit) << bytes;
    previous = units;
  }
}

TEST(RunClass, there_are_at_most_sixteen_per_doubling_and_twice_as_many_beyond_2_mib) {
  for (Bytes low = kLeastSpan; low <= 32 * kMiB; low *= 2) {
    std::vector<std::uint64_t> classes;
    for (std::uint64_t units = low / kUnit + 1; units <= 2 * low / kUnit; ++units)
      if (classes.empty() || classes.back() != span_units(units * kUnit))
        classes.push_back(span_units(units * kUnit));
    EXPECT_LE(classes.size(), low < 2 * kMiB ? 16u : 32u) << low;
  }
}

TEST(Serving, serves_what_is_less_than_a_page_after_rounding_and_aligned_to_less) {
  for (Bytes bytes = 1; bytes < kPage; bytes += 511)
    EXPECT_EQ(Serving::is_below_a_page(bytes, 0, kPage), span_units(bytes) * kUnit < kPage)
        << bytes;
  EXPECT_FALSE(Serving::is_below_a_page(kPage, 0, kPage));
  EXPECT_FALSE(Serving::is_below_a_page(100, kPage, kPage)) << "aligned to a page is a page";
  EXPECT_FALSE(Serving::is_below_a_page(100, 2 * kPage, kPage));
  EXPECT_TRUE(Serving::is_below_a_page(100, kPage / 2, kPage));
}

TEST(Serving, takes_a_block_a_span_or_whole_pages_for_a_request) {
  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  const pool::Memory memory(sim, driver::ChunkProperties{}, settings::Config{}, kPage, timelines);
  const Serving serving(ServingOptions{}, memory);
  for (const Bytes bytes : {Bytes{1}, Bytes{256}, Bytes{257}, Bytes{5000}, kLargestBlock})
    EXPECT_EQ(serving.taken_for(bytes), block_size(slab_class(bytes))) << bytes;
  for (const Bytes bytes : {kLargestBlock + 1, 400 * kKiB, kMiB + 1})
    EXPECT_EQ(serving.taken_for(bytes), span_units(bytes) * kUnit) << bytes;
  for (const Bytes bytes : {kPage - 1, kPage, 3 * kPage + 1, 100 * kPage})
    EXPECT_EQ(serving.taken_for(bytes), serving.page_sizes().rounded(bytes)) << bytes;
  EXPECT_EQ(serving.taken_for(kPage), kPage);
}

TEST(Serving, cuts_pages_that_hold_at_least_two_of_the_largest_slabs) {
  EXPECT_TRUE(Serving::can_cut(kLeastPage));
  EXPECT_TRUE(Serving::can_cut(3 * kLeastPage)) << "a power of two or not";
  EXPECT_FALSE(Serving::can_cut(kLeastPage / 2));
  EXPECT_FALSE(Serving::can_cut(kLeastPage + kUnit / 2));
}

}  // namespace
}  // namespace vpmm::small
