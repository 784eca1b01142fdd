// SPDX-License-Identifier: Apache-2.0
// small: many streams hoard nothing: what one has left serves the next, and streams that are gone
// leave nothing behind.
#include <algorithm>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// One request of every class: every block size, and spans up to a page.
std::vector<Bytes> one_of_every_class() {
  std::vector<Bytes> sizes;
  for (std::size_t c = 0; c < small::kSlabClasses; ++c) sizes.push_back(small::block_size(c));
  for (std::uint64_t units = small::kLeastSpan / small::kUnit; units * small::kUnit < kPage;
       ++units)
    if (small::span_units(units * small::kUnit) == units) sizes.push_back(units * small::kUnit);
  return sizes;
}

std::vector<Bytes> one_of_every_block_class() {
  std::vector<Bytes> sizes;
  for (std::size_t c = 0; c < small::kSlabClasses; ++c) sizes.push_back(small::block_size(c));
  return sizes;
}

class Hoarding : public SmallTest {
 protected:
  // All live at once, used, and freed.
  void burst(const std::vector<Bytes>& sizes, StreamHandle stream) {
    std::vector<DevicePtr> live;
    for (const Bytes bytes : sizes) {
      const auto made = world.pool().allocate({bytes, 0, stream});
      ASSERT_TRUE(made.ok());
      live.push_back(made.value());
      world.use(live.back(), bytes, stream, 1000);
    }
    for (const DevicePtr ptr : live) ASSERT_TRUE(world.pool().deallocate(ptr, stream).ok());
  }
  Bytes mapped() { return world.statistics().mapped_bytes; }
};

// The GPU keeps pace: what a stream freed is complete when the next one asks.
TEST_P(Hoarding, a_hundred_streams_one_after_another_need_hardly_more_than_one) {
  for (const auto& sizes : {one_of_every_block_class(), one_of_every_class()}) {
    PoolWorld alone(options_of(GetParam()));
    const StreamHandle only = alone.stream();
    std::vector<DevicePtr> live;
    for (const Bytes bytes : sizes) live.push_back(alone.allocate(bytes, only));
    const Bytes needed = alone.statistics().mapped_bytes;
    for (int i = 0; i < 100; ++i) {
      burst(sizes, world.stream());
      world.sim().advance_host_ns(1'000'000);
    }
    EXPECT_LE(mapped(), needed + needed / 2 + 6 * kPage)
        << sizes.size() << " classes, of which one stream needs " << needed / kPage
        << " pages; 100 streams hold " << mapped() / kPage;
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(mapped(), 0u);
  }
}

class AtOnce : public Hoarding {
 protected:
  std::vector<StreamHandle> streams;
  std::vector<std::pair<DevicePtr, StreamHandle>> live;
  Bytes cut() { return world.statistics().small_bytes; }

  void SetUp() override {
    for (int i = 0; i < 100; ++i) streams.push_back(world.stream());
  }
  // One block of each class from every stream, live at once.
  void allocate_everywhere() {
    for (const StreamHandle stream : streams)
      for (const Bytes bytes : one_of_every_block_class()) {
        const auto made = world.pool().allocate({bytes, 0, stream});
        ASSERT_TRUE(made.ok());
        live.emplace_back(made.value(), stream);
        world.use(live.back().first, bytes, stream, 1000);
      }
  }
  void free_all_but(std::size_t left) {
    for (; live.size() > left; live.pop_back())
      ASSERT_TRUE(world.pool().deallocate(live.back().first, live.back().second).ok());
  }
  // Calls that find out what is complete by now.
  void pass_by() {
    world.sim().advance_host_ns(1'000'000);
    for (int i = 0; i < 10; ++i) world.deallocate(world.allocate(kPage, streams[0]), std::nullopt);
  }
};

TEST_P(AtOnce, a_hundred_streams_hold_hardly_more_than_is_live) {
  allocate_everywhere();
  EXPECT_LE(mapped(), world.statistics().live_bytes / 4 * 5 + 6 * kPage);
}

TEST_P(AtOnce, a_hundred_streams_that_freed_all_hold_a_few_pages) {
  allocate_everywhere();
  const Bytes most = mapped();
  free_all_but(0);
  EXPECT_GT(cut(), most / 2) << "nothing is complete yet, so nothing could go back";
  pass_by();
  EXPECT_LE(cut(), 8 * kPage);
  for (int round = 0; round < 3; ++round)
    for (const StreamHandle stream : streams) burst(one_of_every_block_class(), stream);
  EXPECT_LE(mapped(), most + 6 * kPage);
}

// They are live in few pages, since every stream's first are cut beside one another.
TEST_P(AtOnce, a_few_blocks_that_stay_hold_few_pages) {
  allocate_everywhere();
  std::stable_partition(live.begin(), live.end(),
                        [&](const auto& each) { return each.second == streams[0]; });
  free_all_but(one_of_every_block_class().size());
  pass_by();
  EXPECT_LE(cut(), 8 * kPage);
}

TEST_P(Hoarding, two_streams_in_turn_share_what_one_of_them_needs) {
  const std::vector<Bytes> sizes(40, 200 * kKiB);
  burst(sizes, a);
  const Bytes needed = mapped();
  for (int i = 0; i < 50; ++i) {
    world.sim().advance_host_ns(1'000'000);
    burst(sizes, i % 2 == 0 ? b : a);
  }
  EXPECT_LE(mapped(), 2 * needed) << "one needs " << needed;
}

TEST_P(Hoarding, whole_pages_take_what_small_requests_left) {
  burst(std::vector<Bytes>(400, 50 * kKiB), a);
  const Bytes needed = mapped();
  world.wait();
  const DevicePtr ptr = world.allocate(needed, b);
  world.use(ptr, needed, b);
  EXPECT_EQ(mapped(), needed);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
}

TEST_P(Hoarding, small_requests_take_what_whole_pages_left) {
  const DevicePtr ptr = world.allocate(20 * kPage, a);
  world.use(ptr, 20 * kPage, a);
  world.deallocate(ptr, a);
  world.wait();
  burst(std::vector<Bytes>(300, 50 * kKiB), b);
  EXPECT_LE(mapped(), 21 * kPage) << "what may be grown early is a page";
}

TEST_P(Hoarding, a_page_goes_back_when_its_last_block_is_freed_and_not_before) {
  std::vector<DevicePtr> live;
  for (int i = 0; i < 200; ++i) live.push_back(world.allocate(50 * kKiB, a));
  for (std::size_t i = 1; i < live.size(); ++i) world.deallocate(live[i], a);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), kPage) << "where the one block lives";
  world.deallocate(live[0], a);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

TEST_P(Hoarding, trim_takes_complete_memory_out_of_hands_without_being_asked_twice) {
  burst(one_of_every_class(), a);
  burst(one_of_every_class(), b);
  world.sim().run_until_idle();
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(world.pool().limits().trim(0).ok());  // the first asks for proof
  EXPECT_EQ(mapped(), 0u);
}

// Pages of two sizes leave the cache while work uses them, each with the number of its own free.
TEST_P(Hoarding, memory_that_left_the_hand_before_its_work_was_done_comes_back_once_it_is) {
  std::vector<DevicePtr> live;
  for (const Bytes bytes : {kPage, 2 * kPage, 4 * kPage}) {
    live.push_back(world.allocate(bytes, a));
    world.use(live.back(), bytes, a, kLongNs);
  }
  for (const DevicePtr ptr : live) world.deallocate(ptr, a);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 7 * kPage) << "it is in use";
  world.sim().run_until_idle();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

// A unit of 16 KiB each, of a page in which something lives and for nearly all of which another
// stream asks: taken back where it is at least a 16th of the page, from few streams.
TEST_P(Hoarding, what_several_streams_keep_of_a_page_is_taken_back_if_it_is_much) {
  constexpr Bytes kNearlyAll = 124 * small::kUnit;
  for (const auto& [streams, pages] : {std::pair{7, 2}, {8, 1}, {70, 2}}) {
    SCOPED_TRACE(streams);
    PoolWorld fresh(options_of(GetParam()));
    const StreamHandle asking = fresh.stream();
    const DevicePtr live = fresh.allocate(5000, asking);
    std::vector<std::pair<DevicePtr, StreamHandle>> blocks;
    for (int i = 0; i < streams; ++i) {
      const StreamHandle stream = fresh.stream();
      blocks.emplace_back(fresh.allocate(5000, stream), stream);
    }
    for (const auto& [block, stream] : blocks) fresh.deallocate(block, stream);
    EXPECT_EQ(fresh.statistics().cached_bytes, static_cast<Bytes>(streams) * small::kUnit);
    const DevicePtr large = fresh.allocate(kNearlyAll, asking);
    EXPECT_EQ(fresh.statistics().small_bytes, static_cast<Bytes>(pages) * kPage);
    EXPECT_EQ(fresh.statistics().mapped_bytes, static_cast<Bytes>(pages) * kPage);
    fresh.deallocate(large, asking);
    fresh.deallocate(live, asking);
  }
}

TEST_P(Hoarding, a_threshold_is_kept_for_what_warm_frees_left_too) {
  WorldOptions options = options_of(GetParam());
  options.config.limits.release_threshold = 4 * kPage;
  PoolWorld frugal(options);
  const StreamHandle stream = frugal.stream();
  for (const Bytes bytes : {kPage, 200 * kKiB}) {
    std::vector<DevicePtr> live;
    for (Bytes i = 0; i < 16 * kPage / bytes; ++i) live.push_back(frugal.allocate(bytes, stream));
    for (const DevicePtr ptr : live) {
      frugal.deallocate(ptr, stream);
      frugal.sim().advance_host_ns(1'000'000);
    }
    frugal.wait();
    frugal.deallocate(frugal.allocate(100, std::nullopt),
                      std::nullopt);  // passes by the pool, when all is complete
    EXPECT_LE(frugal.statistics().mapped_bytes, 4 * kPage) << bytes;
  }
}

// A cached allocation that is larger serves a request alone; the others stay where they are.
TEST(HoardingOfOne, allocation_goes_for_a_request_of_another_size_and_the_rest_stays_warm) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 5; ++i) live.push_back(world.allocate(kPage, stream));
  live.push_back(world.allocate(4 * kPage, stream));
  for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
  ASSERT_EQ(world.statistics().cached_bytes, 9 * kPage);
  const Bytes mapped = world.statistics().mapped_bytes;
  while (world.statistics().cached_bytes == 9 * kPage) world.allocate(3 * kPage, stream);
  EXPECT_EQ(world.statistics().cached_bytes, 5 * kPage) << "whose memory the last request took";
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  for (int i = 0; i < 5; ++i)
    EXPECT_FALSE(is_null(world.pool().allocate_if_ready(kPage, 0, stream))) << i;
}

// --- streams that end

class Mortal : public SmallTest {};

TEST_P(Mortal, a_thousand_streams_one_after_another_do_not_pile_up) {
  for (const bool is_destroyed_first : {false, true}) {
    for (int i = 0; i < 1000; ++i) {
      const StreamHandle stream = world.stream();
      std::vector<DevicePtr> live;
      for (const Bytes bytes : {Bytes{100}, Bytes{5000}, 200 * kKiB, kPage}) {
        live.push_back(world.pool().allocate({bytes, 0, stream}).value());
        world.use(live.back(), bytes, stream);
      }
      for (const DevicePtr ptr : live)
        ASSERT_TRUE(is_destroyed_first ? world.pool().deallocate(ptr, std::nullopt).ok()
                                       : world.pool().deallocate(ptr, stream).ok());
      ASSERT_EQ(world.sim().stream_destroy(stream), CuResult::success);
      world.sim().advance_host_ns(100'000);
    }
    EXPECT_LE(world.statistics().timelines, 70u);
    EXPECT_LE(world.statistics().mapped_bytes, 20 * kPage);
    EXPECT_LE(world.calls().count(Call::event_create), 32u);
  }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

TEST_P(Mortal, a_recycled_handle_does_not_see_what_its_predecessor_had_in_hand) {
  for (const Bytes bytes : kSizes) {
    const StreamHandle first = world.stream();
    warm(bytes, first);
    const DevicePtr ptr = world.allocate(bytes, first);
    world.use(ptr, bytes, first, kLongNs);
    world.deallocate(ptr, first);
    ASSERT_EQ(world.sim().stream_destroy(first), CuResult::success);
    const StreamHandle second = world.stream();
    ASSERT_EQ(second, first);
    for (int i = 0; i < 3; ++i) {
      const DevicePtr next = world.allocate(bytes, second);
      world.use(next, bytes,
                second);  // the hazard checker sees it, should it be `ptr` without a wait
    }
    ASSERT_EQ(world.sim().stream_destroy(second), CuResult::success);
  }
}

TEST_P(Mortal, blocks_that_outlive_their_stream_are_freed_by_others) {
  std::vector<DevicePtr> left;
  for (int i = 0; i < 200; ++i) {
    const StreamHandle stream = world.stream();
    left.push_back(world.allocate(5000, stream));
    world.use(left.back(), 5000, stream, kLongNs);
    ASSERT_EQ(world.sim().stream_destroy(stream), CuResult::success);
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(world.pool().query(left[i] + 10).value().begin, left[i]);
    world.deallocate(left[i], i % 2 == 0 ? pool::Stream(a) : std::nullopt);
    const DevicePtr next = world.allocate(5000, a);
    world.use(next, 5000, a);
    world.deallocate(next, a);
  }
  world.wait();
  for (int i = 0; i < 3; ++i) world.deallocate(world.allocate(9 * kPage, b), b);
  EXPECT_LE(world.statistics().timelines, 70u);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

// A few of them are looked at in each call, and those that had called meanwhile are looked at again
// before they are forgotten.
TEST(IdleStreams, most_are_forgotten_and_give_back_what_they_kept) {
  PoolWorld world(options_of(false));
  for (int i = 0; i < 100; ++i) {
    const StreamHandle stream = world.stream();
    const DevicePtr block = world.allocate(5000, stream);
    world.use(block, 5000, stream);
    world.deallocate(block, stream);
  }
  EXPECT_EQ(world.statistics().timelines, 100u);
  EXPECT_GT(world.statistics().cached_bytes, 64 * small::kUnit);
  world.sim().advance_host_ns(1'000'000);
  const StreamHandle busy = world.stream();
  for (Bytes pages = 9; pages < 29; ++pages)
    world.deallocate(world.allocate(pages * kPage, busy), busy);
  EXPECT_LE(world.statistics().timelines, 64u);
  EXPECT_GE(world.statistics().timelines, 62u) << "no more than it takes";
  EXPECT_LE(world.statistics().cached_bytes, 64 * small::kUnit);
}

INSTANTIATE_TEST_SUITE_P(Policies, Hoarding, ::testing::Bool(), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, AtOnce, ::testing::Bool(), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, Mortal, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
