// context: requests that share pages, and large frees that stay in the hand of the only stream.
#include <gtest/gtest.h>

#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::testing {
namespace {

constexpr Bytes kSlice = kPage / 8;

TEST(Slices, requests_just_above_two_pages_share_their_last_ones) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> all;
  for (int i = 0; i < 16; ++i) {
    all.push_back(world.allocate(2 * kPage + kSlice, stream));
    world.use(all.back(), 2 * kPage + kSlice, stream);
    EXPECT_TRUE(is_aligned(all.back(), kSlice));
  }
  EXPECT_EQ(world.statistics().mapped_bytes, 34 * kPage);
  for (const DevicePtr ptr : all) world.deallocate(ptr, stream);
}

TEST(Slices, an_aligned_request_and_a_page_for_small_ones_lie_between_them) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr uneven = world.allocate(2 * kPage + kSlice, stream);
  const DevicePtr even = world.allocate(2 * kPage + kSlice, stream, kPage);
  const DevicePtr small = world.allocate(100, stream);
  const DevicePtr last = world.allocate(2 * kPage + kSlice, stream);
  EXPECT_TRUE(is_aligned(even, kPage));
  for (const DevicePtr ptr : {uneven, even, last}) world.use(ptr, 2 * kPage + kSlice, stream);
  world.use(small, 100, stream);
  for (const DevicePtr ptr : {uneven, even, small, last}) world.deallocate(ptr, stream);
  expect_error(world.pool().deallocate(uneven + kSlice, stream), ErrorCode::invalid_pointer);
}

class LargeFrees : public ::testing::Test {
 protected:
  PoolWorld world{adaptive_world()};
  StreamHandle stream = world.stream();
  // Of two neighbours that are free, the first is asked for again after a smaller request.
  bool is_found_again() {
    const DevicePtr first = world.allocate(20 * kPage, stream);
    const DevicePtr second = world.allocate(40 * kPage, stream);
    world.deallocate(second, stream);
    world.deallocate(first, stream);
    const DevicePtr smaller = world.allocate(10 * kPage, stream);
    const DevicePtr again = world.allocate(20 * kPage, stream);
    world.deallocate(again, stream);
    world.deallocate(smaller, stream);
    return again == first;
  }
};

TEST_F(LargeFrees, stay_in_hand_while_one_stream_makes_the_pool_grow) { EXPECT_TRUE(is_found_again()); }

TEST_F(LargeFrees, are_the_pools_where_another_stream_could_use_them) {
  const StreamHandle other = world.stream();
  world.allocate(20 * kPage, other);
  EXPECT_FALSE(is_found_again());
}

// 2000 MiB in pieces of one size, and then of the next: what the sizes before left in hand is not what the program
// uses.
TEST_F(LargeFrees, in_hand_are_no_reason_to_grow) {
  for (const Bytes size : {14 * kMiB, 5 * kMiB, 6 * kMiB, 2 * kMiB}) {
    std::vector<DevicePtr> all;
    for (Bytes sum = 0; sum + size <= 2000 * kMiB; sum += size) {
      const auto made = world.pool().allocate({size, 0, stream});
      ASSERT_TRUE(made.ok());
      all.push_back(made.value());
    }
    for (const std::size_t first : {0u, 1u})
      for (std::size_t i = first; i < all.size(); i += 2) ASSERT_TRUE(world.pool().deallocate(all[i], stream).ok());
  }
  EXPECT_LE(world.statistics().peak_mapped_bytes, 2200 * kMiB);
}

}  // namespace
}  // namespace vpmm::testing
