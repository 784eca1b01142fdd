// SPDX-License-Identifier: Apache-2.0
// context: streams are known by id: recycled handles, default streams, streams that end, other
// devices.
#include <gtest/gtest.h>

#include <thread>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

TEST(Streams, a_recycled_handle_does_not_inherit_pending_memory) {
  PoolWorld world(page_world());
  const StreamHandle first = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, first);
  world.use(ptr, 4 * kPage, first, kLongNs);
  world.deallocate(ptr, first);
  ASSERT_EQ(world.sim().stream_destroy(first), CuResult::success);
  const StreamHandle second = world.stream();
  ASSERT_EQ(second, first);
  const DevicePtr next = world.allocate(4 * kPage, second);
  world.use(next, 4 * kPage, second);
  EXPECT_EQ(next, ptr);
  EXPECT_EQ(world.statistics().gpu_waits, 1u) << "a new stream, so the memory is somebody else's";
}

TEST(Streams, memory_of_a_stream_that_is_gone_becomes_complete_by_a_context_event) {
  WorldOptions options = adaptive_world();
  PoolWorld world(options);
  const StreamHandle gone = world.stream();
  const StreamHandle stays = world.stream();
  world.deallocate(world.allocate(kPage, stays), stays);
  const DevicePtr ptr = world.allocate(4 * kPage, gone);
  world.use(ptr, 4 * kPage, gone, kLongNs);
  world.deallocate(ptr, gone);
  ASSERT_EQ(world.sim().stream_destroy(gone), CuResult::success);
  for (int i = 0; i < 12; ++i) world.use(world.allocate(2 * kPage, stays), 2 * kPage, stays);
  EXPECT_GT(world.calls().count(Call::ctx_record_event), 0u) << "its owner will not call again";
  world.sim().advance_host_ns(2 * kLongNs);
  world.allocate(4 * kPage, stays);
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

// Requests below the record of mapped memory are no reason to hurry.
TEST(Streams, that_does_not_answer_a_request_for_proof_is_given_up_after_eight_misses) {
  PoolWorld world(adaptive_world());
  const StreamHandle quiet = world.stream();
  const StreamHandle busy = world.stream();
  world.deallocate(world.allocate(256 * kPage, busy), busy);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.deallocate(world.allocate(6 * kPage, quiet), quiet);
  const auto recorded = [&] { return world.calls().count(Call::ctx_record_event); };
  const std::uint64_t before = recorded();
  for (int i = 0; i < 8; ++i) {
    world.allocate(7 * kPage, busy);
    EXPECT_EQ(recorded(), before) << i;
  }
  world.allocate(7 * kPage, busy);
  EXPECT_EQ(recorded(), before + 1);
  for (int i = 0; i < 8; ++i) world.allocate(7 * kPage, busy);
  EXPECT_EQ(recorded(), before + 1) << "nothing else waits for proof";
}

TEST(Streams, handles_0_and_1_are_one_timeline) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(4 * kPage, driver::kNullStream);
  world.use(ptr, 4 * kPage, driver::kNullStream, kLongNs);
  world.deallocate(ptr, driver::kLegacyStream);
  EXPECT_EQ(world.allocate(4 * kPage, driver::kNullStream), ptr);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.statistics().timelines, 1u);
  world.use(ptr, 4 * kPage, driver::kLegacyStream);
}

TEST(Streams, each_thread_has_its_own_per_thread_stream) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(4 * kPage, driver::kPerThreadStream);
  world.use(ptr, 4 * kPage, driver::kPerThreadStream, kLongNs);
  world.deallocate(ptr, driver::kPerThreadStream);
  EXPECT_EQ(world.allocate(4 * kPage, driver::kPerThreadStream), ptr)
      << "in the same thread: own memory";
  world.use(ptr, 4 * kPage, driver::kPerThreadStream, kLongNs);
  world.deallocate(ptr, driver::kPerThreadStream);
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  std::thread([&] {
    ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    const std::uint64_t waits = world.statistics().gpu_waits;
    const DevicePtr other = world.allocate(4 * kPage, driver::kPerThreadStream);
    world.use(other, 4 * kPage, driver::kPerThreadStream);
    EXPECT_EQ(other, ptr);
    EXPECT_EQ(world.statistics().gpu_waits, waits + 1) << "in another thread: another stream";
    EXPECT_EQ(world.statistics().timelines, 2u);
  }).join();
}

TEST(Streams, a_free_on_a_per_thread_stream_of_another_thread_is_waited_for) {
  PoolWorld world(adaptive_world());
  constexpr Bytes kSmall = 1000;
  const DevicePtr ptr = world.allocate(kSmall, driver::kPerThreadStream);
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  ASSERT_EQ(world.sim().stream_synchronize(driver::kPerThreadStream), CuResult::success);
  std::thread([&] {
    ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    world.use(ptr, kSmall, driver::kPerThreadStream, kLongNs);
    world.deallocate(ptr, driver::kPerThreadStream);
  }).join();
  for (int i = 0; i < 2100; ++i) {
    const DevicePtr next = world.pool().allocate({kSmall, 0, driver::kPerThreadStream}).value();
    if (next == ptr) world.use(next, kSmall, driver::kPerThreadStream);
  }
}

TEST(Streams, that_allocated_is_known_at_a_free_by_its_handle) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  const std::uint64_t before = world.calls().total_count();
  ASSERT_TRUE(world.pool().deallocate(ptr, stream).ok());
  EXPECT_EQ(world.calls().total_count(), before);
}

TEST(Streams, a_stream_is_looked_up_in_the_pools_context_whatever_is_current) {
  WorldOptions options = page_world();
  options.sim.device_count = 2;
  PoolWorld world(options);
  driver::ContextHandle mine{};
  driver::ContextHandle other{};
  ASSERT_EQ(world.sim().ctx_get_current(mine), CuResult::success);
  ASSERT_EQ(world.sim().device_primary_ctx_retain(1, other), CuResult::success);
  const DevicePtr ptr = world.allocate(4 * kPage, driver::kNullStream);
  world.use(ptr, 4 * kPage, driver::kNullStream, kLongNs);
  ASSERT_EQ(world.sim().ctx_set_current(other), CuResult::success);
  world.deallocate(ptr, driver::kNullStream);
  EXPECT_EQ(world.allocate(4 * kPage, driver::kNullStream), ptr);
  EXPECT_EQ(world.statistics().timelines, 1u);
  ASSERT_EQ(world.sim().ctx_set_current(mine), CuResult::success);
}

TEST(Streams, hundreds_of_short_streams_do_not_pile_up) {
  PoolWorld world(page_world());
  for (int i = 0; i < 300; ++i) {
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = world.allocate(2 * kPage, stream);
    world.use(ptr, 2 * kPage, stream);
    world.deallocate(ptr, stream);
    ASSERT_EQ(world.sim().stream_destroy(stream), CuResult::success);
    world.sim().advance_host_ns(100'000);
  }
  EXPECT_LE(world.statistics().timelines, 65u);
  EXPECT_LE(world.calls().count(Call::event_create), 8u);
  EXPECT_LE(world.statistics().mapped_bytes, 4 * kPage);
}

TEST(BoundStream, calls_through_the_lock_ask_who_calls_only_while_a_capture_is_known) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  const auto asked_by_a_call = [&] {
    const std::uint64_t before = world.calls().count(Call::stream_get_id);
    EXPECT_TRUE(bound.value()->allocate(64 * kPage, 0).ok());
    return world.calls().count(Call::stream_get_id) - before;
  };
  EXPECT_EQ(asked_by_a_call(), 0u);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  EXPECT_EQ(asked_by_a_call(), 1u);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_EQ(asked_by_a_call(), 0u);
}

TEST(BoundStream, nothing_is_taken_and_freed_where_nothing_is_asked_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  const DevicePtr warm = bound.value()->allocate(1000, 0).value();
  ASSERT_TRUE(bound.value()->deallocate(warm).ok());
  const std::uint64_t calls = world.calls().total_count();
  EXPECT_TRUE(is_null(bound.value()->try_allocate(0, 0)));
  EXPECT_TRUE(is_null(bound.value()->try_allocate(0, 4096)));
  const auto none = bound.value()->allocate(0, 0);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(is_null(none.value()));
  EXPECT_FALSE(bound.value()->try_deallocate(DevicePtr{}));
  EXPECT_TRUE(bound.value()->deallocate(DevicePtr{}).ok());
  EXPECT_EQ(world.statistics().allocations, 1u);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
  EXPECT_EQ(world.calls().total_count(), calls);
}

TEST(Devices, each_has_its_own_pool) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  std::vector<std::unique_ptr<context::Context>> pools;
  for (const int device : {0, 1}) {
    auto pool = context::Context::create(sim, device, page_world().config);
    ASSERT_TRUE(pool.ok());
    EXPECT_EQ(pool.value()->device(), device);
    pools.push_back(std::move(pool).value());
  }
  const auto on_0 = pools[0]->allocate({3 * kPage, 0, std::nullopt});
  const auto on_1 = pools[1]->allocate({5 * kPage, 0, std::nullopt});
  ASSERT_TRUE(on_0.ok() && on_1.ok());
  EXPECT_EQ(pools[0]->reports().statistics().mapped_bytes, 3 * kPage);
  EXPECT_EQ(pools[1]->reports().statistics().mapped_bytes, 5 * kPage);
  expect_error(pools[1]->deallocate(on_0.value(), std::nullopt), ErrorCode::invalid_pointer,
               {hex(on_0.value())});
  for (const int device : {0, 1}) {
    EXPECT_EQ(pools[static_cast<std::size_t>(device)]->reports().validate(), "");
    driver::ContextHandle context{};
    ASSERT_EQ(sim.device_primary_ctx_retain(device, context), CuResult::success);
    ASSERT_EQ(sim.ctx_set_current(context), CuResult::success);
    EXPECT_EQ(sim.memset_d8(device == 0 ? on_0.value() : on_1.value(), 1, 3 * kPage),
              CuResult::success)
        << "mapped for its own device";
  }
  pools.clear();
  EXPECT_EQ(sim.census().chunks, 0u);
  EXPECT_EQ(sim.hazard_count(), 0u);
}

TEST(Devices, two_pools_on_one_device_share_nothing_but_the_device) {
  PoolWorld world(page_world());
  auto second = context::Context::create(world.sim(), 0, page_world().config);
  ASSERT_TRUE(second.ok());
  const StreamHandle stream = world.stream();
  const DevicePtr mine = world.allocate(3 * kPage, stream);
  const auto theirs = second.value()->allocate({3 * kPage, 0, stream});
  ASSERT_TRUE(theirs.ok());
  expect_error(second.value()->deallocate(mine, stream), ErrorCode::invalid_pointer);
  EXPECT_TRUE(second.value()->deallocate(theirs.value(), stream).ok());
  world.use(mine, 3 * kPage, stream);
}

}  // namespace
}  // namespace vpmm::test
