// SPDX-License-Identifier: Apache-2.0
// small: where a request lies: alignments, no overlap, and who gets what a stream freed.
#include <algorithm>
#include <random>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

class Placement : public SmallTest {};

TEST_P(Placement, every_alignment_up_to_a_page_is_kept_for_every_size) {
  for (Bytes alignment = 1; alignment <= kPage; alignment *= 2)
    for (const Bytes bytes : {Bytes{1}, Bytes{300}, Bytes{5000}, 100 * kKiB, 200 * kKiB, kMiB}) {
      const DevicePtr ptr = world.allocate(bytes, a, alignment);
      EXPECT_TRUE(is_aligned(ptr, std::max(alignment, Bytes{256}))) << bytes << " at " << alignment;
      EXPECT_EQ(world.pool().query(ptr).value().requested, bytes);
      world.use(ptr, bytes, a);
      if (alignment % 3 != 0) world.deallocate(ptr, a);
    }
}

// Whatever lies before them: where a smaller one ends is no multiple of 64 KiB.
TEST_P(Placement, large_requests_below_a_page_begin_at_64_kib) {
  for (const Bytes bytes : {512 * kKiB, 513 * kKiB, 800 * kKiB, kMiB, kPage - 64 * kKiB})
    for (int i = 0; i < 4; ++i) {
      world.allocate(40 * kKiB, a);
      EXPECT_TRUE(is_aligned(world.allocate(bytes, a), 64 * kKiB)) << bytes;
    }
}

// Note [Shared pages go low]
TEST(PlacementOfPages, that_are_cut_is_at_the_lowest_address_where_memory_is_idle) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr low = world.allocate(9 * kPage, stream);
  const DevicePtr between = world.allocate(5 * kPage, stream);
  const DevicePtr high = world.allocate(6 * kPage, stream);
  world.allocate(5 * kPage, stream);
  ASSERT_LT(low, high);
  for (const DevicePtr ptr : {low, high}) world.deallocate(ptr, stream);
  world.wait();
  EXPECT_EQ(world.allocate(1000, stream), low) << "the smaller range would fit as well";
  EXPECT_EQ(world.allocate(5 * kPage, stream), high) << "where pages of a request are its own";
  world.deallocate(between, stream);
}

// A warm call takes what is cached, aligned to 256 bytes and no more: a larger alignment must not
// be served from it.
TEST_P(Placement, memory_in_hand_does_not_serve_an_alignment_it_has_not) {
  for (const Bytes bytes : {Bytes{256}, Bytes{768}, 100 * kKiB, 144 * kKiB}) {
    std::vector<DevicePtr> next_number;
    for (int i = 0; i < 9; ++i) next_number.push_back(world.allocate(bytes, a));
    for (const DevicePtr ptr : next_number) world.deallocate(ptr, a);
    for (const Bytes alignment : {512 * kKiB, 64 * kKiB, 32 * kKiB, 4 * kKiB, Bytes{512}})
      for (int i = 0; i < 9; ++i)
        ASSERT_TRUE(is_aligned(world.allocate(bytes, a, alignment), alignment))
            << bytes << " at " << alignment;
  }
}

TEST_P(Placement, live_allocations_never_overlap) {
  std::mt19937_64 random(7);
  struct Live {
    AddressRange range;
    StreamHandle stream;
  };
  std::vector<Live> live;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() > 150 || (!live.empty() && random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(world.pool().deallocate(live.back().range.begin, live.back().stream).ok());
      live.pop_back();
      continue;
    }
    const StreamHandle stream = random() % 2 == 0 ? a : b;
    const Bytes bytes = 1 + random() % (Bytes{1} << (random() % 23));
    const auto made = world.pool().allocate({bytes, Bytes{1} << (random() % 18), stream});
    ASSERT_TRUE(made.ok());
    const AddressRange range{made.value(), world.pool().query(made.value()).value().usable};
    for (const Live& other : live) ASSERT_FALSE(range.overlaps(other.range));
    live.push_back({range, stream});
    world.use(range.begin, range.size, stream);
  }
  for (const Live& one : live) world.deallocate(one.range.begin, one.stream);
}

TEST_P(Placement, a_stream_gets_back_what_it_freed_last) {
  for (const Bytes bytes : kSizes) {
    warm(bytes, a);
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, a);
    EXPECT_EQ(world.allocate(bytes, a), ptr) << bytes;
    world.use(ptr, bytes, a);
  }
}

TEST_P(Placement, requests_without_a_stream_share_blocks_among_themselves_only_when_complete) {
  for (const Bytes bytes : {Bytes{100}, Bytes{5000}, 200 * kKiB, kMiB}) {
    const DevicePtr first = world.allocate(bytes, std::nullopt);
    world.use(first, bytes, a, kLongNs);
    world.deallocate(first, std::nullopt);
    const DevicePtr second = world.allocate(bytes, std::nullopt);
    EXPECT_NE(second, first) << "stream a may still use it";
    world.use(second, bytes, b);
    world.deallocate(second, std::nullopt);
    world.wait();
    const DevicePtr third = world.allocate(bytes, std::nullopt);
    world.use(third, bytes, b);
    world.deallocate(third, std::nullopt);
  }
}

TEST_P(Placement, a_request_of_a_page_less_one_byte_gets_a_whole_page) {
  const DevicePtr ptr = world.allocate(kPage - 1, a);
  EXPECT_TRUE(is_aligned(ptr, kPage));
  EXPECT_EQ(world.pool().query(ptr).value().usable, kPage);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
}

TEST_P(Placement, requests_that_begin_at_a_page_get_whole_pages_and_others_parts_of_one) {
  for (const Bytes bytes : {Bytes{1}, small::kLargestBlock, 200 * kKiB, kPage - kMiB / 2})
    for (const Bytes alignment : {Bytes{256}, Bytes{512}, kPage / 2, kPage, 2 * kPage}) {
      const DevicePtr ptr = world.allocate(bytes, a, alignment);
      EXPECT_TRUE(is_aligned(ptr, alignment));
      EXPECT_EQ(world.statistics().small_bytes, alignment < kPage ? kPage : 0)
          << bytes << " at " << alignment;
      world.deallocate(ptr, a);
      world.wait();
      ASSERT_EQ(world.statistics().small_bytes, 0u);
    }
}

TEST_P(Placement, pages_of_other_sizes_are_cut_too) {
  for (const Bytes page : {2 * kPage, 3 * kPage, 32 * kPage}) {
    WorldOptions options = options_of(GetParam());
    options.config.page_size = page;
    PoolWorld large(options);
    const StreamHandle stream = large.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 40; ++i)
      for (const Bytes bytes :
           {Bytes{100}, Bytes{55000}, 300 * kKiB, page / 2, page - kMiB, page}) {
        live.push_back(large.allocate(bytes, stream));
        EXPECT_EQ(large.pool().query(live.back() + bytes / 2).value().begin, live.back());
        large.use(live.back(), bytes, stream);
      }
    for (const DevicePtr ptr : live) large.deallocate(ptr, stream);
    large.wait();
    ASSERT_TRUE(large.pool().limits().trim(0).ok());
    EXPECT_EQ(large.statistics().mapped_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Placement, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
