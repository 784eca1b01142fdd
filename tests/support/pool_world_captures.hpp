// SPDX-License-Identifier: Apache-2.0
// tests: captures on streams of a pool's world, and the graphs they end in.
#pragma once

#include "support/pool_world.hpp"

namespace vpmm::test {

inline void begin_capture(PoolWorld& world, StreamHandle stream, driver::CaptureMode mode) {
  ASSERT_EQ(world.sim().stream_begin_capture(stream, mode), driver::CuResult::success);
}
inline driver::GraphHandle end_capture(PoolWorld& world, StreamHandle stream) {
  driver::GraphHandle graph{};
  EXPECT_EQ(world.sim().stream_end_capture(stream, graph), driver::CuResult::success)
      << "the capture was broken";
  return graph;
}
// What is returned can be launched again.
inline driver::GraphExecHandle launch(PoolWorld& world, driver::GraphHandle graph,
                                      StreamHandle stream) {
  driver::GraphExecHandle exec{};
  EXPECT_EQ(world.sim().graph_instantiate(graph, exec), driver::CuResult::success);
  EXPECT_EQ(world.sim().graph_launch(exec, stream), driver::CuResult::success);
  return exec;
}
inline void destroy(PoolWorld& world, driver::GraphHandle graph) {
  ASSERT_EQ(world.sim().graph_destroy(graph), driver::CuResult::success);
}
// When its launches are over.
inline void destroy(PoolWorld& world, driver::GraphHandle graph, driver::GraphExecHandle exec) {
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().graph_exec_destroy(exec), driver::CuResult::success);
  destroy(world, graph);
}

}  // namespace vpmm::test
