// SPDX-License-Identifier: Apache-2.0
// context: captures that a call could not read or keep memory for, and that it must not break.
#include <gtest/gtest.h>

#include "fault/no_memory.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::CuResult;
using driver::GraphHandle;
using fault::NoMemory;

class CaptureFault : public ::testing::Test {
 protected:
  // Not blocking, so that the legacy stream does not show its captures.
  PoolWorld world{page_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  void begin(StreamHandle stream) { begin_capture(world, stream, CaptureMode::relaxed); }
  GraphHandle capture_once(StreamHandle stream) {
    begin(stream);
    world.deallocate(world.allocate(kPage, stream), stream);
    return end_capture(world, stream);
  }
  void refuse_once(Call call, StreamHandle stream) {
    world.faults().set_plan({{call}, 1, CuResult::invalid_value});
    EXPECT_FALSE(world.pool().allocate({kPage, 0, stream}).ok());
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
  }
  // Frees that want an event of the whole context, which breaks any capture.
  void free_for_any_stream() {
    for (int i = 0; i < 3; ++i) world.deallocate(world.allocate(4 * kPage, {}), std::nullopt);
  }
};

TEST_F(CaptureFault, a_capture_is_known_although_an_earlier_graph_of_its_stream_ends) {
  for (const Call call :
       {Call::stream_get_capture_info, Call::user_object_create, Call::graph_retain_user_object}) {
    SCOPED_TRACE(driver::to_string(call));
    const GraphHandle earlier = capture_once(a);
    begin(a);
    refuse_once(call, a);
    destroy(world, earlier);
    free_for_any_stream();
    EXPECT_TRUE(world.pool().streams().is_capturing());
    destroy(world, end_capture(world, a));
    world.allocate(kPage, a);
    EXPECT_FALSE(world.pool().streams().is_capturing());
  }
}

TEST_F(CaptureFault, a_graph_that_refused_to_tell_of_its_end_has_not_ended) {
  begin(a);
  refuse_once(Call::graph_retain_user_object, a);
  EXPECT_EQ(world.calls().count(Call::user_object_release), 1u) << "which is left to nobody";
  const DevicePtr ptr = world.allocate(kPage, a);
  world.use(ptr, kPage, a);
  free_for_any_stream();
  EXPECT_TRUE(world.pool().streams().is_capturing());
  world.deallocate(ptr, a);
  const GraphHandle graph = end_capture(world, a);
  const driver::GraphExecHandle exec = launch(world, graph, b);
  world.allocate(kPage, a);
  EXPECT_NE(world.allocate(kPage, {}), ptr) << "memory of a graph that lives";
  destroy(world, graph, exec);
  world.wait();
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
  EXPECT_EQ(world.allocate(kPage, {}), ptr) << "the pool heard of its end";
}

TEST_F(CaptureFault, known_captures_stay_known_without_host_memory) {
  const auto is_capturing = [&] {
    const NoMemory none(NoMemory::Reserve::promised);
    return world.pool().streams().is_capturing();
  };
  begin(a);
  world.allocate(kPage, a);
  EXPECT_TRUE(is_capturing());
  destroy(world, end_capture(world, a));
  world.allocate(kPage, a);
  EXPECT_FALSE(is_capturing());
}

TEST_F(CaptureFault, of_a_capture_that_broke_nothing_more_is_asked) {
  begin(a);
  world.allocate(kPage, a);
  EXPECT_EQ(world.calls().count(Call::stream_get_capture_info), 1u);
  EXPECT_NE(world.sim().ctx_synchronize(), CuResult::success) << "it breaks the capture";
  world.allocate(kPage, a);
  EXPECT_EQ(world.calls().count(Call::stream_get_capture_info), 1u);
  EXPECT_TRUE(world.pool().streams().is_capturing());
  GraphHandle graph{};
  EXPECT_NE(world.sim().stream_end_capture(a, graph), CuResult::success);
  world.allocate(kPage, a);
  EXPECT_FALSE(world.pool().streams().is_capturing());
}

TEST_F(CaptureFault, a_stream_that_is_being_captured_cannot_be_bound) {
  begin(a);
  expect_error(world.pool().bind(a), ErrorCode::capture_active, {"cannot be bound"});
  EXPECT_TRUE(world.pool().bind(b).ok());
  destroy(world, end_capture(world, a));
  EXPECT_TRUE(world.pool().bind(a).ok());
}

}  // namespace
}  // namespace vpmm::test
