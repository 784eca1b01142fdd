// SPDX-License-Identifier: Apache-2.0
// context: memory of captures with a driver that cannot tell of the end of their graphs.
#include <gtest/gtest.h>

#include <string>

#include "context/without_user_objects.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;

TEST(CaptureWithoutUserObjects, keeps_its_memory_until_it_is_released) {
  WorldWithoutUserObjects world;
  driver::sim::SimDriver& sim = world.sim;
  context::Context& pool = *world.pool;
  const StreamHandle stream = world.stream;
  ASSERT_EQ(sim.stream_begin_capture(stream, driver::CaptureMode::relaxed), CuResult::success);
  driver::CaptureInfo info;
  ASSERT_EQ(sim.stream_get_capture_info(stream, info), CuResult::success);
  const auto made = pool.allocate({4 * kPage, 0, stream});
  ASSERT_TRUE(made.ok()) << message_of(made);
  ASSERT_TRUE(pool.deallocate(made.value(), stream).ok());
  driver::GraphHandle graph{};
  ASSERT_EQ(sim.stream_end_capture(stream, graph), CuResult::success);
  ASSERT_EQ(sim.graph_destroy(graph), CuResult::success);
  const auto next_on = [&](pool::Stream on) {
    EXPECT_TRUE(pool.streams().synchronize().ok());
    const auto next = pool.allocate({4 * kPage, 0, on});
    EXPECT_TRUE(next.ok()) << message_of(next);
    EXPECT_TRUE(pool.deallocate(next.value(), on).ok());
    return next.value();
  };
  ASSERT_TRUE(pool.allocate({kPage, 0, stream}).ok());  // sees that the capture is over
  EXPECT_NE(next_on(stream), made.value());
  EXPECT_NE(next_on(std::nullopt), made.value());
  const auto mapped_after_trim = [&] {
    EXPECT_TRUE(pool.limits().trim(0).ok());
    return pool.reports().statistics().mapped_bytes;
  };
  EXPECT_EQ(mapped_after_trim(), 5 * kPage);
  const auto released = pool.streams().capture_release(info.id);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_TRUE(pool.streams().synchronize().ok());
  EXPECT_EQ(mapped_after_trim(), kPage);
  expect_error(
      pool.streams().capture_release(info.id), ErrorCode::invalid_argument,
      {"no memory is kept for capture " + std::to_string(static_cast<std::uint64_t>(info.id))});
  EXPECT_EQ(pool.reports().validate(), "");
  EXPECT_EQ(sim.hazard_count(), 0u);
}

}  // namespace
}  // namespace vpmm::test
