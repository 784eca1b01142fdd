// SPDX-License-Identifier: Apache-2.0
// small: requests below a page and streams that capture.
#include "small/small_world.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::CaptureMode;
using driver::GraphExecHandle;
using driver::GraphHandle;

class SmallCapture : public SmallTest {
 protected:
  void begin(StreamHandle stream) { begin_capture(world, stream, CaptureMode::relaxed); }
};

TEST_P(SmallCapture,
       a_small_request_in_a_capture_gets_a_page_of_its_own_that_stays_with_the_graph) {
  for (const Bytes bytes : {Bytes{100}, 100 * kKiB, kMiB}) {
    for (const Bytes warm_bytes : {bytes, kPage})
      warm(warm_bytes, a);  // cached, and not for a graph
    begin(a);
    const DevicePtr ptr = world.allocate(bytes, a);
    EXPECT_TRUE(is_aligned(ptr, kPage));
    EXPECT_EQ(world.pool().query(ptr).value().usable, kPage);
    world.use(ptr, bytes, a);
    world.deallocate(ptr, a);
    const GraphHandle graph = end_capture(world, a);
    const GraphExecHandle exec = launch(world, graph, b);
    for (int i = 0; i < 3; ++i)
      for (const StreamHandle stream : {a, b})
        for (const Bytes other : {bytes, kPage}) {
          const DevicePtr next = world.allocate(other, stream);
          EXPECT_FALSE((AddressRange{ptr, kPage}.contains(next)))
              << "the graph may be launched again";
          world.use(next, other, stream);
          world.deallocate(next, stream);
        }
    ASSERT_EQ(world.sim().graph_launch(exec, b), CuResult::success);
    destroy(world, graph, exec);
    world.wait();
  }
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u) << "what the graphs kept came back";
}

TEST_P(SmallCapture, memory_in_hand_is_not_given_to_the_stream_while_it_captures) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, a);
    begin(a);
    const DevicePtr captured = world.allocate(bytes, a);
    EXPECT_NE(captured, ptr) << "behind work that the graph is not ordered after";
    world.use(captured, bytes, a);
    const GraphHandle graph = end_capture(world, a);
    destroy(world, graph, launch(world, graph, b));
    world.deallocate(captured, b);
    world.wait();
  }
}

TEST_P(SmallCapture, a_capturing_stream_frees_small_memory_and_nobody_gets_it_before_all_are_done) {
  for (const Bytes bytes : {Bytes{100}, 100 * kKiB, kMiB}) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    begin(a);
    world.deallocate(ptr, a);
    expect_error(world.pool().deallocate(ptr, a), ErrorCode::invalid_pointer, {hex(ptr)});
    for (int i = 0; i < 5; ++i) {
      const DevicePtr next = world.allocate(bytes, b);
      EXPECT_NE(next, ptr);
      world.use(next, bytes, b);
    }
    destroy(world, end_capture(world, a));
    for (int i = 0; i < 5; ++i) world.use(world.allocate(bytes, a), bytes, a);
    world.wait();
  }
}

TEST_P(SmallCapture, small_memory_that_a_capturing_stream_uses_is_everybodys_to_wait_for) {
  const DevicePtr ptr = world.allocate(5000, b);
  order(world, b, a);
  begin(a);
  ASSERT_TRUE(world.pool().record_use(ptr, a).ok());
  destroy(world, end_capture(world, a));
  world.use(ptr, 5000, a, kLongNs);  // as a launch of the graph would
  world.deallocate(ptr, b);
  for (int i = 0; i < 5; ++i) world.use(world.allocate(5000, b), 5000, b);
}

TEST_P(SmallCapture, other_streams_stay_warm_and_break_nothing) {
  begin(a);
  const DevicePtr captured = world.allocate(5000, a);
  world.use(captured, 5000, a);
  warm(5000, b);
  const std::uint64_t slow = world.calls().count(Call::ctx_get_current);
  const std::uint64_t recorded = events();
  for (int i = 0; i < 10; ++i) {
    const DevicePtr ptr = world.allocate(5000, b);
    world.use(ptr, 5000, b);
    world.deallocate(ptr, b);
  }
  EXPECT_EQ(world.calls().count(Call::ctx_get_current), slow);
  EXPECT_EQ(events(), recorded);
  const GraphHandle graph = end_capture(world, a);
  destroy(world, graph, launch(world, graph, a));
  world.deallocate(captured, a);
}

// The memory of a capture can be freed after it, by any stream: never by keeping it in a cache.
TEST_P(SmallCapture, captured_memory_freed_after_the_capture_is_not_kept_in_hand) {
  warm(kPage, a);
  begin(a);
  const DevicePtr captured = world.allocate(5000, a);
  world.use(captured, 5000, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  world.deallocate(captured, a);
  expect_error(world.pool().deallocate(captured, a), ErrorCode::invalid_pointer, {hex(captured)});
  for (int i = 0; i < 3; ++i) EXPECT_NE(world.allocate(kPage, a), captured);
  ASSERT_EQ(world.sim().graph_launch(exec, b), CuResult::success);
  destroy(world, graph, exec);
}

INSTANTIATE_TEST_SUITE_P(Policies, SmallCapture, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
