// SPDX-License-Identifier: Apache-2.0
// context: captures that end: seen at the next call of their stream, or during a call.
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "support/hooked_world.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::CuResult;
using driver::GraphHandle;

// A bound stream asks nobody while no capture is known.
TEST(CaptureThatWasSeen, is_over_for_bound_streams_at_the_next_call_of_its_stream) {
  PoolWorld world(page_by_page_world());
  const StreamHandle captured = world.stream(), other = world.stream();
  auto bound = world.pool().bind(other);
  ASSERT_TRUE(bound.ok());
  world.deallocate(world.allocate(5000, other), other);
  const auto is_warm = [&] {
    const DevicePtr ptr = bound.value()->try_allocate(5000, 0);
    return !is_null(ptr) && bound.value()->try_deallocate(ptr);
  };
  ASSERT_TRUE(is_warm());
  begin_capture(world, captured, CaptureMode::relaxed);
  const DevicePtr ptr = world.allocate(kPage, captured);
  EXPECT_FALSE(is_warm());
  world.deallocate(ptr, captured);
  const GraphHandle graph = end_capture(world, captured);
  world.allocate(kPage, captured);
  EXPECT_TRUE(is_warm()) << "though the graph lives on";
  destroy(world, graph);
}

// Its stream may never call again. The driver is asked for the caller while a capture is known.
TEST(CaptureThatWasSeen, is_over_for_bound_streams_with_the_end_of_its_graph) {
  PoolWorld world(page_by_page_world());
  const StreamHandle captured = world.stream(), other = world.stream();
  const auto bound = world.pool().bind(other);
  ASSERT_TRUE(bound.ok());
  const auto asked_by_a_call = [&] {
    const std::uint64_t before = world.calls().count(Call::stream_get_id);
    EXPECT_TRUE(bound.value()->allocate(64 * kPage, 0).ok());
    return world.calls().count(Call::stream_get_id) - before;
  };
  begin_capture(world, captured, CaptureMode::relaxed);
  world.deallocate(world.allocate(kPage, captured), captured);
  const GraphHandle graph = end_capture(world, captured);
  EXPECT_EQ(asked_by_a_call(), 1u);
  destroy(world, graph);
  world.allocate(kPage, other);  // takes note of the end
  EXPECT_EQ(asked_by_a_call(), 0u);
}

TEST(CaptureThatWasSeen, is_over_at_the_next_call_of_its_stream_on_whatever_thread) {
  PoolWorld world(page_world());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  const StreamHandle stream = world.stream();
  begin_capture(world, stream, CaptureMode::relaxed);
  world.allocate(kPage, stream);
  const GraphHandle graph = end_capture(world, stream);
  std::thread([&] {
    ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    EXPECT_TRUE(world.pool().streams().is_capturing());
    world.allocate(kPage, stream);
    EXPECT_FALSE(world.pool().streams().is_capturing());
  }).join();
  destroy(world, graph);
}

// Threads have streams of their own behind the one handle.
TEST(CaptureThatWasSeen, on_a_per_thread_stream_is_over_at_the_next_call_of_its_thread) {
  PoolWorld world(page_world());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  begin_capture(world, driver::kPerThreadStream, CaptureMode::relaxed);
  world.allocate(kPage, driver::kPerThreadStream);
  const auto call_on_another_thread = [&] {
    std::thread([&] {
      ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
      world.allocate(kPage, driver::kPerThreadStream);
    }).join();
  };
  call_on_another_thread();
  EXPECT_TRUE(world.pool().streams().is_capturing());
  const GraphHandle graph = end_capture(world, driver::kPerThreadStream);
  call_on_another_thread();
  EXPECT_TRUE(world.pool().streams().is_capturing());
  world.allocate(kPage, driver::kPerThreadStream);
  EXPECT_FALSE(world.pool().streams().is_capturing());
  destroy(world, graph);
}

// A wait for the work of all streams would break a capture that is still open.
TEST(CaptureThatWasSeen, is_broken_by_no_wait_for_all_work) {
  PoolWorld world(adaptive_world());
  const StreamHandle captured = world.stream();
  begin_capture(world, captured, CaptureMode::global);
  world.deallocate(world.allocate(kPage, captured), captured);
  expect_error(world.pool().streams().wait_for_work(), ErrorCode::capture_active,
               {"a stream is being captured"});
  expect_error(world.pool().streams().synchronize(), ErrorCode::capture_active,
               {"a stream is being captured"});
  expect_error(world.pool().streams().reset(), ErrorCode::capture_active,
               {"a stream is being captured"});
  destroy(world, end_capture(world, captured));
  world.allocate(kPage, captured);
  EXPECT_TRUE(world.pool().streams().wait_for_work().ok());
  EXPECT_TRUE(world.pool().streams().synchronize().ok());
}

// Its place in the graph is unknown, also where its stream joins the capture later.
TEST(CapturedMemory, that_is_freed_outside_of_its_capture_serves_nobody_in_it) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream(), b = world.stream();
  driver::EventHandle fork{}, join{};
  for (driver::EventHandle* const event : {&fork, &join})
    ASSERT_EQ(world.sim().event_create(*event), CuResult::success);
  begin_capture(world, a, CaptureMode::relaxed);
  ASSERT_EQ(world.sim().event_record(fork, a), CuResult::success);
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  world.use(ptr, 4 * kPage, a);
  world.deallocate(ptr, b);
  ASSERT_EQ(world.sim().stream_wait_event(b, fork), CuResult::success);
  for (const StreamHandle stream : {b, a}) EXPECT_NE(world.allocate(4 * kPage, stream), ptr);
  ASSERT_EQ(world.sim().event_record(join, b), CuResult::success);
  ASSERT_EQ(world.sim().stream_wait_event(a, join), CuResult::success);
  destroy(world, end_capture(world, a));
  for (const driver::EventHandle event : {fork, join})
    ASSERT_EQ(world.sim().event_destroy(event), CuResult::success);
}

// --- a capture that ends during a call

// Its stream asks whether it captures, and then which capture that is.
TEST(CaptureThatEnds, between_two_questions_is_no_capture_of_the_call) {
  HookedWorld world(page_world());
  const StreamHandle stream = world.stream();
  ASSERT_EQ(world.sim.stream_begin_capture(stream, CaptureMode::relaxed), CuResult::success);
  GraphHandle graph{};
  world.hooks.on[Call::stream_get_capture_info] = [&] {
    if (graph == GraphHandle{}) {
      EXPECT_EQ(world.sim.stream_end_capture(stream, graph), CuResult::success);
    }
    return CuResult::success;
  };
  const auto made = world.pool->allocate({kPage, 0, stream});
  ASSERT_TRUE(made.ok()) << message_of(made);
  EXPECT_EQ(world.sim.graph_destroy(graph), CuResult::success);
  EXPECT_EQ(world.pool->reports().statistics().live_allocations, 1u);
  ASSERT_TRUE(world.pool->deallocate(made.value(), stream).ok());
  EXPECT_EQ(world.pool->reports().statistics().live_allocations, 0u);
  EXPECT_FALSE(world.pool->streams().is_capturing());
}

// The first call maps ahead, without the lock.
TEST(CaptureThatEnds, while_its_call_maps_memory_has_nothing_for_it) {
  WorldOptions options = page_world();
  options.config.pages = 4;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  ASSERT_EQ(world.sim.stream_begin_capture(stream, CaptureMode::relaxed), CuResult::success);
  driver::CaptureInfo info;
  ASSERT_EQ(world.sim.stream_get_capture_info(stream, info), CuResult::success);
  bool is_released = false;
  world.hooks.on[Call::mem_create] = [&] {
    if (!std::exchange(is_released, true))
      world.on_another_thread(
          [&] { EXPECT_TRUE(world.pool->streams().capture_release(info.id).ok()); });
    return CuResult::success;
  };
  const auto made = world.pool->allocate({kPage, 0, stream});
  EXPECT_TRUE(is_released);
  ASSERT_TRUE(made.ok()) << message_of(made);
  ASSERT_TRUE(world.pool->deallocate(made.value(), stream).ok());
  GraphHandle graph{};
  EXPECT_EQ(world.sim.stream_end_capture(stream, graph), CuResult::success);
  EXPECT_EQ(world.sim.graph_destroy(graph), CuResult::success);
}

}  // namespace
}  // namespace vpmm::test
