// SPDX-License-Identifier: Apache-2.0
// small: many requests in one call, and many frees.
#include <algorithm>
#include <stdexcept>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

class Many : public SmallTest {
 protected:
  const std::vector<Bytes> mixed{100, 0, 5000, kPage, 200 * kKiB, 0, 20 * kPage, kMiB, 1};
};

TEST_P(Many, requests_give_each_what_it_asked_for_and_null_for_nothing) {
  for (const pool::Stream stream : {pool::Stream(a), pool::Stream()})
    for (int round = 0; round < 3; ++round) {
      std::vector<DevicePtr> made(mixed.size(), DevicePtr{1});
      ASSERT_TRUE(world.pool().allocate_many(mixed, stream, made).ok());
      for (std::size_t i = 0; i < mixed.size(); ++i) {
        EXPECT_EQ(is_null(made[i]), mixed[i] == 0);
        if (mixed[i] == 0) continue;
        EXPECT_EQ(world.pool().query(made[i]).value().requested, mixed[i]);
        world.use(made[i], mixed[i], a);
      }
      EXPECT_EQ(world.statistics().live_allocations, 7u);
      ASSERT_TRUE(world.pool().deallocate_many(made, stream).ok()) << "null is nothing to free";
      EXPECT_EQ(world.statistics().live_allocations, 0u);
      world.wait();
    }
}

TEST_P(Many, requests_of_different_lengths_are_refused) {
  std::vector<DevicePtr> made(3);
  expect_error(world.pool().allocate_many(mixed, a, made), ErrorCode::invalid_argument, {"9", "3"});
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(std::count(made.begin(), made.end(), DevicePtr{}), 3);
}

TEST_P(Many, requests_none_at_all_is_nothing) {
  EXPECT_TRUE(world.pool().allocate_many({}, a, {}).ok());
  EXPECT_TRUE(world.pool().deallocate_many({}, a).ok());
}

// Whichever request fails first, and whether the ones before it were warm or not.
TEST_P(Many, requests_are_all_or_none) {
  for (std::size_t failing = 0; failing < 8; ++failing) {
    SCOPED_TRACE(failing);
    std::vector<Bytes> sizes(8, 300 * kKiB);
    std::vector<DevicePtr> made(sizes.size());
    if (failing % 2 == 0) {
      ASSERT_TRUE(world.pool().allocate_many(sizes, a, made).ok());
      ASSERT_TRUE(world.pool().deallocate_many(made, a).ok());
    }
    world.pool().limits().set_capacity(8 * kPage);
    sizes[failing] = 100 * kPage;
    std::fill(made.begin(), made.end(), DevicePtr{7});
    const observe::Statistics before = world.statistics();
    expect_error(world.pool().allocate_many(sizes, a, made), ErrorCode::out_of_memory);
    EXPECT_EQ(std::count(made.begin(), made.end(), DevicePtr{}), 8) << "nothing to free";
    const observe::Statistics after = world.statistics();
    EXPECT_EQ(after.live_allocations, before.live_allocations);
    EXPECT_EQ(after.live_bytes, before.live_bytes);
    EXPECT_EQ(after.allocated_bytes, before.allocated_bytes);
    EXPECT_EQ(world.pool().reports().validate(), "");
    world.pool().limits().set_capacity(std::nullopt);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  }
}

TEST_P(Many, requests_are_none_where_the_driver_refuses_to_take_one_back) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld ordered(options);
  const StreamHandle stream = ordered.stream();
  ordered.pool().limits().set_capacity(8 * kPage);
  ordered.faults().set_plan(
      {{Call::mem_free_async}, 2, CuResult::invalid_value, driver::FaultPlan::Repeat::once});
  const std::vector<Bytes> sizes{1000, 2000, 3000, 100 * kPage};
  std::vector<DevicePtr> made(sizes.size(), DevicePtr{7});
  expect_error(ordered.pool().allocate_many(sizes, stream, made), ErrorCode::out_of_memory);
  ordered.faults().clear_plan();
  ASSERT_TRUE(ordered.pool().limits().trim(0).ok());
  EXPECT_EQ(ordered.statistics().live_allocations, 0u);
  EXPECT_EQ(ordered.statistics().caller_mistakes, 0u);
}

TEST_P(Many, requests_are_none_when_the_callback_throws) {
  world.pool().limits().set_capacity(8 * kPage);
  world.pool().limits().out_of_memory_callbacks().set(
      [](const context::OutOfMemory&) -> bool { throw std::runtime_error("spill failed"); });
  const std::vector<Bytes> sizes{kPage, 5000, 100 * kPage};
  std::vector<DevicePtr> made(sizes.size(), DevicePtr{7});
  EXPECT_THROW(static_cast<void>(world.pool().allocate_many(sizes, a, made)), std::runtime_error);
  EXPECT_EQ(std::count(made.begin(), made.end(), DevicePtr{}), 3) << "nothing to free";
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST_P(Many, frees_go_on_after_a_bad_pointer_and_name_the_first) {
  for (const pool::Stream stream : {pool::Stream(a), pool::Stream(b), pool::Stream()}) {
    std::vector<DevicePtr> made(mixed.size());
    ASSERT_TRUE(world.pool().allocate_many(mixed, a, made).ok());
    const DevicePtr inside = made[3] + 8;
    const DevicePtr freed = made[0];
    std::vector<DevicePtr> all = made;
    all.insert(all.begin() + 2, inside);
    all.insert(all.begin() + 5, freed);
    expect_error(world.pool().deallocate_many(all, stream), ErrorCode::invalid_pointer,
                 {hex(inside)});
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    EXPECT_EQ(world.pool().reports().validate(), "");
    world.wait();
  }
  EXPECT_EQ(world.statistics().caller_mistakes, 6u);
}

TEST_P(Many, frees_on_another_stream_wait_for_both) {
  std::vector<Bytes> sizes(50, 5000);
  std::vector<DevicePtr> made(sizes.size());
  ASSERT_TRUE(world.pool().allocate_many(sizes, a, made).ok());
  for (const DevicePtr ptr : made) world.use(ptr, 5000, a, kLongNs / 50);
  ASSERT_TRUE(world.pool().deallocate_many(made, b).ok());
  for (const StreamHandle stream : {b, a}) {
    ASSERT_TRUE(world.pool().allocate_many(sizes, stream, made).ok());
    for (const DevicePtr ptr : made) world.use(ptr, 5000, stream);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Many, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
