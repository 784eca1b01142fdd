// SPDX-License-Identifier: Apache-2.0
// context: driver calls that are refused in the middle of a call of the pool.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"
#include "support/told.hpp"

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

// The first call that meets it, and an inner and an outer step of that.
TEST(RefusedCalls, that_break_the_context_are_told_once_and_named_from_then_on) {
  for (const Call call : {Call::mem_create, Call::ctx_synchronize, Call::event_query}) {
    SCOPED_TRACE(driver::to_string(call));
    HookedWorld world(page_world());
    const StreamHandle stream = world.stream(), other = world.stream();
    const DevicePtr ptr = world.allocate(4 * kPage, stream);
    world.use(ptr, 4 * kPage, stream, kLongNs);
    world.deallocate(ptr, std::nullopt);
    const Told told;
    world.hooks.on[call] = [] { return CuResult::illegal_address; };
    const std::string why = std::string(driver::to_string(call)) + " failed: CUDA_ERROR_ILLEGAL";
    if (call == Call::ctx_synchronize)
      expect_error(world.pool->streams().synchronize(), ErrorCode::poisoned, {why});
    else
      expect_error(world.pool->allocate({64 * kPage, 0, other}), ErrorCode::poisoned, {why});
    const std::uint64_t calls = world.calls.total_count();
    const auto refused = world.pool->allocate({kPage, 0, other});
    const std::string line = "the GPU context is broken and no more driver calls are made: " + why;
    expect_error(refused, ErrorCode::poisoned, {line});
    EXPECT_EQ(world.calls.total_count(), calls);
    EXPECT_EQ(told.lines(), "device 0: " + message_of(refused) + "\n");
  }
}

// The report could not look at the pool: that is the third visit of the device.
TEST(RefusedCalls, of_the_drivers_pool_say_who_refused) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.limits.capacity = 8 * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr all = world.allocate(8 * kPage, stream);
  const auto expect_refusal = [&](pool::Stream on, const std::string& message) {
    int visits = 0;
    world.hooks.on[Call::ctx_get_id] = [&] {
      return ++visits == 3 ? CuResult::unknown : CuResult::success;
    };
    const auto refused = world.pool->allocate({1000, 0, on});
    world.hooks.on.erase(Call::ctx_get_id);
    expect_error(refused, ErrorCode::out_of_memory);
    EXPECT_GE(visits, 3) << "a look failed";
    EXPECT_EQ(message_of(refused), message);
  };
  for (const pool::Stream on : {pool::Stream(stream), pool::Stream()})
    expect_refusal(on,
                   "out of device memory: below a page, and the capacity limit of 16 MiB is "
                   "reached");
  world.hooks.on[Call::mem_alloc_from_pool_async] = [] { return CuResult::out_of_memory; };
  expect_refusal(stream,
                 "out of device memory: of the driver's stream-ordered pool: "
                 "mem_alloc_from_pool_async failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
  world.hooks.on.clear();
  world.deallocate(all, stream);
  world.deallocate(world.allocate(1000, stream), stream);
}

}  // namespace
}  // namespace vpmm::test
