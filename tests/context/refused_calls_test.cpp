// SPDX-License-Identifier: Apache-2.0
// context: driver calls that are refused in the middle of a call of the pool.
#include <gtest/gtest.h>

#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// The stream's next call records it.
TEST(RefusedCalls, of_the_look_at_a_stream_leave_the_event_of_a_warm_free_due) {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live(100);
  for (DevicePtr& ptr : live) ptr = world.allocate(200 * kKiB, stream);
  const std::uint64_t events = world.statistics().events_recorded;
  int refused = 0;
  world.hooks.on[Call::stream_is_capturing] = [&] { return ++refused, CuResult::invalid_value; };
  while (refused == 0 && !live.empty()) {
    EXPECT_TRUE(world.pool->deallocate(live.back(), stream).ok());
    live.pop_back();
  }
  world.hooks.on.clear();
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(world.statistics().live_allocations, live.size());
  EXPECT_EQ(world.statistics().events_recorded, events);
  world.allocate(8 * kPage, stream);
  EXPECT_EQ(world.statistics().events_recorded, events + 1);
}

// Idle pages pay for the growth of the driver's pool.
TEST(RefusedCalls, that_should_make_room_below_the_capacity_are_the_error) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.limits.capacity = 4 * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  world.hooks.on[Call::mem_unmap] = [] { return CuResult::invalid_value; };
  expect_error(world.pool->allocate({1000, 0, stream}), ErrorCode::driver_failed, {"mem_unmap"});
  world.hooks.on.clear();
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  const DevicePtr ptr = world.allocate(1000, stream);
  EXPECT_LE(world.statistics().mapped_bytes, 4 * kPage);
  world.deallocate(ptr, stream);
}

}  // namespace
}  // namespace vpmm::test
