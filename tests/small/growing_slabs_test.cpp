// SPDX-License-Identifier: Apache-2.0
// small: a stream with much memory of one size: slabs as large as pages, which nobody may notice.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// So much of the largest size that is a slab alone at first, that the last of it fills pages.
constexpr Bytes kBlock = 64 * kKiB;
constexpr Bytes kInPage = kPage / kBlock;
constexpr Bytes kBlocks = 50 * kInPage;

class GrowingSlabs : public SmallTest {
 protected:
  std::vector<DevicePtr> blocks;

  void SetUp() override {
    for (Bytes i = 0; i < kBlocks; ++i) blocks.push_back(world.allocate(requested(i), a));
  }
  static Bytes requested(Bytes i) { return kBlock - i; }
  // Blocks of the last slab, which a page is full of.
  std::vector<DevicePtr> late_page() const {
    return {blocks.end() - static_cast<std::ptrdiff_t>(kInPage), blocks.end()};
  }
};

TEST_P(GrowingSlabs, fill_pages_in_the_end_and_hold_hardly_more_than_is_live) {
  EXPECT_EQ(late_page().size(), kInPage);
  EXPECT_LE(world.statistics().mapped_bytes, (kBlocks + kBlocks / 16) * kBlock);
}

TEST_P(GrowingSlabs, every_block_is_known_by_all_its_addresses) {
  for (Bytes i = 0; i < kBlocks; ++i)
    for (const Bytes offset : {Bytes{0}, requested(i) - 1}) {
      const auto info = world.pool().query(blocks[i] + offset);
      ASSERT_TRUE(info.ok()) << i;
      EXPECT_EQ(info.value().begin, blocks[i]);
      EXPECT_EQ(info.value().requested, requested(i));
    }
  std::uint64_t live = 0;
  Bytes asked = 0;
  for (const auto& region : world.pool().reports().snapshot().regions) {
    live += region.small_allocations.value_or(0);
    asked += region.requested;
  }
  EXPECT_EQ(live, kBlocks);
  EXPECT_EQ(asked, world.statistics().live_bytes);
}

TEST_P(GrowingSlabs, a_warm_free_is_the_next_of_its_size) {
  for (const bool is_bound : {false, true}) {
    const auto bound = world.pool().bind(a);
    ASSERT_TRUE(bound.ok());
    const std::uint64_t calls = world.calls().count(Call::ctx_set_current);
    for (const DevicePtr block : late_page()) {
      if (is_bound) {
        ASSERT_TRUE(bound.value()->deallocate(block).ok());
        EXPECT_EQ(bound.value()->allocate(kBlock, 0).value(), block);
      } else {
        world.deallocate(block, a);
        EXPECT_EQ(world.allocate(kBlock, a), block);
      }
    }
    EXPECT_EQ(world.calls().count(Call::ctx_set_current), calls)
        << "none of them took the pool's lock";
  }
}

TEST_P(GrowingSlabs, uses_elsewhere_are_waited_for_block_by_block) {
  const std::vector<DevicePtr> last = late_page();
  order(world, a, b);
  ASSERT_TRUE(world.pool().record_use(last[3], b).ok());
  world.use(last[3], kBlock, b, kLongNs);
  world.use(last[4], kBlock, a, kLongNs);
  world.deallocate(last[3], a);
  world.deallocate(last[4], a);
  world.deallocate(last[5], b);
  EXPECT_EQ(world.allocate(kBlock, a), last[4]) << "the only one that nobody else used";
  std::set<DevicePtr> next;
  for (int i = 0; i < 3; ++i) {
    const DevicePtr ptr = world.allocate(kBlock, b);
    world.use(ptr, kBlock, b);
    next.insert(ptr);
  }
  EXPECT_EQ(next.size(), 3u);
}

TEST_P(GrowingSlabs, mistakes_are_told_as_for_any_other) {
  const DevicePtr block = late_page()[7];
  expect_error(world.pool().deallocate(block + 256, a), ErrorCode::invalid_pointer,
               {hex(block + 256)});
  world.deallocate(block, a);
  expect_error(world.pool().deallocate(block, a), ErrorCode::invalid_pointer, {hex(block)});
  EXPECT_EQ(world.allocate(kBlock, a), block);
}

// A page that one of them filled is cut anew.
TEST_P(GrowingSlabs, their_pages_serve_other_sizes_when_they_are_freed) {
  for (const DevicePtr block : blocks) world.deallocate(block, a);
  std::vector<std::pair<DevicePtr, Bytes>> live;
  for (Bytes i = 0; i < kBlocks / 2; ++i) {  // all of them, and some more
    const Bytes bytes = 100 * kKiB + i % 3 * 40 * kKiB;
    live.emplace_back(world.allocate(bytes, a), bytes);
  }
  for (const auto& [ptr, bytes] : live)
    for (const Bytes offset : {Bytes{0}, bytes - 1}) {
      const auto info = world.pool().query(ptr + offset);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, ptr);
      EXPECT_EQ(info.value().requested, bytes);
    }
  EXPECT_EQ(world.pool().reports().validate(), "");
  for (const auto& [ptr, bytes] : live)
    EXPECT_TRUE(world.pool().deallocate_if_ready(ptr, a)) << "warm as any other";
  EXPECT_EQ(world.statistics().live_bytes, 0u);
}

TEST_P(GrowingSlabs, nothing_stays_when_all_of_it_is_freed) {
  for (std::size_t step : {7u, 1u})
    for (std::size_t i = 0; i < blocks.size(); i += step)
      if (!is_null(blocks[i])) world.deallocate(std::exchange(blocks[i], DevicePtr{}), a);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, GrowingSlabs, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
