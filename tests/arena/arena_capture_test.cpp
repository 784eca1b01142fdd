// SPDX-License-Identifier: Apache-2.0
// arena: arenas in stream captures: who may have what, and that what graphs use stays.
#include <gtest/gtest.h>

#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::GraphExecHandle;
using driver::GraphHandle;

class CapturedArena : public ::testing::TestWithParam<CaptureMode> {
 protected:
  PoolWorld world{adaptive_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world);

  void begin(StreamHandle stream) { begin_capture(world, stream, GetParam()); }
  // As before a capture: nothing is running.
  void idle() {
    world.sim().run_until_idle();
    ASSERT_EQ(world.sim().ctx_synchronize(), driver::CuResult::success);
  }
};

TEST_P(CapturedArena, a_request_queues_nothing_and_the_graph_launches) {
  begin(a);
  const DevicePtr small = allocate_in(world, arena, 1000, a);
  const DevicePtr large = allocate_in(world, arena, 3 * kPage, a);
  world.use(small, 1000, a);
  world.use(large, 3 * kPage, a);
  world.deallocate(small, a);
  world.deallocate(large, a);
  EXPECT_EQ(world.calls().count(Call::event_record), 0u);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, b);
  ASSERT_EQ(world.sim().graph_launch(exec, b), driver::CuResult::success);
  destroy(world, graph, exec);
}

TEST_P(CapturedArena, what_the_stream_freed_before_or_in_the_capture_serves_it_there) {
  const DevicePtr before = allocate_in(world, arena, 3 * kPage, a);
  world.use(before, 3 * kPage, a);
  world.deallocate(before, a);
  idle();
  begin(a);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), before);
  world.use(before, 3 * kPage, a);
  world.deallocate(before, a);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), before);
  world.use(before, 3 * kPage, a);
  world.deallocate(before, a);
  const GraphHandle graph = end_capture(world, a);
  destroy(world, graph, launch(world, graph, b));
}

TEST_P(CapturedArena, a_second_capture_uses_what_the_first_freed) {
  begin(a);
  const DevicePtr first = allocate_in(world, arena, 3 * kPage, a);
  world.use(first, 3 * kPage, a);
  world.deallocate(first, a);
  const GraphHandle graph = end_capture(world, a);
  begin(a);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), first)
      << "graphs that share an arena run one after the other";
  world.use(first, 3 * kPage, a);
  world.deallocate(first, a);
  const GraphHandle second = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, b);
  destroy(world, second, launch(world, second, b));
  destroy(world, graph, exec);
}

// The handle of a thread's default stream is the same in each context.
TEST_P(CapturedArena, after_a_reset_a_handle_stands_for_no_stream_from_before) {
  const StreamHandle own = driver::kPerThreadStream;
  world.deallocate(allocate_in(world, arena, 1000, own), own);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  begin(own);
  const DevicePtr freed = allocate_in(world, arena, 3 * kPage, own);
  world.deallocate(freed, own);
  const GraphHandle graph = end_capture(world, own);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, own), freed);
  destroy(world, graph);
}

TEST_P(CapturedArena, a_stream_that_calls_outside_later_has_what_it_freed_in_the_capture) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.deallocate(ptr, a);
  destroy(world, end_capture(world, a));
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
  world.use(ptr, 3 * kPage, a);
}

// The graph is the order of its own frees.
TEST_P(CapturedArena, a_free_there_waits_for_nothing_if_no_other_stream_used_the_memory) {
  for (const StreamHandle owner : {a, b}) {
    const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, owner);
    begin(a);
    world.deallocate(ptr, a);
    EXPECT_EQ(world.statistics().pending_bytes, owner == a ? 0 : 3 * kPage);
    destroy(world, end_capture(world, a));
  }
}

// The stream has called in a capture only, so nothing tells it from a later one with its handle.
TEST_P(CapturedArena, memory_of_no_stream_that_it_freed_waits_for_work_from_before_the_capture) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, std::nullopt);
  world.use(ptr, 3 * kPage, a, kLongNs);
  begin(a);
  world.deallocate(ptr, a);
  const GraphHandle graph = end_capture(world, a);
  ASSERT_EQ(world.sim().stream_destroy(a), driver::CuResult::success);
  ASSERT_EQ(world.stream(), a) << "handles are used again";
  const DevicePtr other = allocate_in(world, arena, 3 * kPage, a);
  EXPECT_NE(other, ptr);
  world.use(other, 3 * kPage, a);
  destroy(world, graph);
}

TEST_P(CapturedArena, other_streams_have_nothing_of_it_even_if_all_is_complete) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a);
  world.deallocate(ptr, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  world.deallocate(world.allocate(kPage, a), a);  // the pool learns that the capture is over
  world.wait();
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  EXPECT_NE(world.allocate(3 * kPage, b), ptr);
  EXPECT_EQ(trim(world, arena), 0u);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  ASSERT_EQ(world.sim().graph_launch(exec, b), driver::CuResult::success);
  destroy(world, graph, exec);
}

TEST_P(CapturedArena, memory_freed_after_the_capture_stays_with_the_graph_too) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a);
  const GraphHandle graph = end_capture(world, a);
  world.deallocate(ptr, a);
  const GraphExecHandle exec = launch(world, graph, b);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  destroy(world, graph, exec);
}

TEST_P(CapturedArena, a_free_in_a_capture_pins_the_arena) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  idle();
  begin(a);
  world.use(ptr, 3 * kPage, a);
  world.deallocate(ptr, a);
  const GraphHandle graph = end_capture(world, a);
  EXPECT_EQ(trim(world, arena), 0u);
  destroy(world, graph, launch(world, graph, b));
}

TEST_P(CapturedArena,
       a_use_on_another_stream_in_the_capture_keeps_the_block_until_all_work_is_over) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.deallocate(ptr, a);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, a), ptr);
  const GraphHandle graph = end_capture(world, a);
  world.deallocate(world.allocate(kPage, a), a);  // the pool learns that the capture is over
  world.wait();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
  destroy(world, graph);
}

TEST_P(CapturedArena, while_captures_are_known_nothing_is_asked_for_its_sake) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, b);
  world.use(ptr, 3 * kPage, b);
  begin(a);
  world.allocate(kPage, a);  // the pool learns of it
  world.deallocate(ptr, std::nullopt);
  world.sim().run_until_idle();
  const std::uint64_t recorded = world.calls().count(Call::ctx_record_event);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), recorded);
  destroy(world, end_capture(world, a));
}

TEST_P(CapturedArena, release_makes_it_everybodys_when_the_launches_are_over) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, b);
  release(world, arena);
  const DevicePtr other = world.allocate(3 * kPage, a);
  EXPECT_NE(other, ptr);
  world.use(other, 3 * kPage, a);
  world.wait();
  EXPECT_EQ(world.allocate(3 * kPage, a), ptr);
  world.use(ptr, 3 * kPage, a);
  destroy(world, graph, exec);
}

TEST_P(CapturedArena, release_with_live_allocations_waits_for_their_free) {
  begin(a);
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  world.use(ptr, 1000, a);
  const GraphHandle graph = end_capture(world, a);
  destroy(world, graph, launch(world, graph, b));
  release(world, arena);
  world.use(ptr, 1000, b);
  world.deallocate(ptr, b);
  world.wait();
  EXPECT_EQ(world.allocate(kPage, a), ptr);
  world.use(ptr, kPage, a);
}

TEST_P(CapturedArena, a_place_can_be_asked_for_in_a_capture) {
  const DevicePtr ptr = allocate_in(world, arena, 8192, a);
  world.deallocate(ptr, a);
  idle();
  begin(b);
  EXPECT_EQ(allocate_at(world, arena, {ptr + 4096, 2048}, b), ptr + 4096);
  world.use(ptr + 4096, 2048, b);
  const GraphHandle graph = end_capture(world, b);
  EXPECT_EQ(trim(world, arena), 0u);
  destroy(world, graph, launch(world, graph, a));
  world.deallocate(ptr + 4096, b);
}

TEST_P(CapturedArena, memory_runs_out_in_a_capture_without_breaking_it) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld full(options);
  const StreamHandle stream = full.stream();
  const ArenaId idle_arena = make_arena(full);
  const ArenaId used = make_arena(full);
  full.deallocate(allocate_in(full, idle_arena, 6 * kPage, stream), stream);
  full.wait();
  begin_capture(full, stream, GetParam());
  full.use(allocate_in(full, used, 6 * kPage, stream), 6 * kPage, stream);
  expect_error(full.pool().allocate({6 * kPage, 0, stream, used}), ErrorCode::out_of_memory);
  const GraphHandle graph = end_capture(full, stream);
  destroy(full, graph, launch(full, graph, stream));
}

INSTANTIATE_TEST_SUITE_P(Modes, CapturedArena,
                         ::testing::Values(CaptureMode::global, CaptureMode::thread_local_mode,
                                           CaptureMode::relaxed));

}  // namespace
}  // namespace vpmm::test
