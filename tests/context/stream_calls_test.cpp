// SPDX-License-Identifier: Apache-2.0
// context: calls about streams that are refused say why, and change nothing.
#include <gtest/gtest.h>

#include <string>

#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::CuResult;

constexpr StreamHandle kNoStream{0x4200};

class StreamCalls : public ::testing::Test {
 protected:
  PoolWorld world{adaptive_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  auto make_wait(StreamHandle waiting, StreamHandle first) {
    return world.pool().streams().make_wait(waiting, first);
  }
  void expect_no_event_left() {
    EXPECT_EQ(world.calls().count(Call::event_create), world.calls().count(Call::event_destroy));
  }
};

TEST_F(StreamCalls, a_wait_names_the_handle_that_is_no_stream) {
  expect_error(make_wait(b, kNoStream), ErrorCode::invalid_argument,
               {"`first` 0x4200 is no stream: ", driver::to_string(Call::event_record)});
  expect_error(make_wait(kNoStream, b), ErrorCode::invalid_argument,
               {"`waiting` 0x4200 is no stream: ", driver::to_string(Call::stream_wait_event)});
  expect_no_event_left();
}

TEST_F(StreamCalls, a_wait_fails_as_the_driver_does_and_leaves_no_event) {
  for (const Call call : {Call::event_create, Call::event_record, Call::stream_wait_event}) {
    SCOPED_TRACE(driver::to_string(call));
    const std::uint64_t left =
        world.calls().count(Call::event_create) - world.calls().count(Call::event_destroy);
    world.faults().set_plan({{call}, 1, CuResult::invalid_value});
    const Result<void> done = make_wait(b, a);
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.error().message.find(driver::to_string(call)), std::string::npos)
        << done.error().message;
    EXPECT_EQ(world.calls().count(Call::event_create) - world.calls().count(Call::event_destroy),
              left);
  }
  EXPECT_TRUE(make_wait(b, a).ok());
}

TEST_F(StreamCalls, a_stream_waits_for_itself_without_a_call_of_the_driver) {
  const std::uint64_t calls = world.calls().total_count();
  EXPECT_TRUE(make_wait(a, a).ok());
  EXPECT_TRUE(make_wait(kNoStream, kNoStream).ok());
  EXPECT_EQ(world.calls().total_count(), calls);
}

TEST_F(StreamCalls, announced_captures_end_as_often_as_they_began) {
  const auto end = [&] { return world.pool().streams().capture_end(); };
  expect_error(end(), ErrorCode::invalid_argument, {"capture_end without capture_begin"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  EXPECT_TRUE(world.pool().streams().is_capturing());
  EXPECT_TRUE(end().ok());
  EXPECT_TRUE(world.pool().streams().is_capturing()) << "the other goes on";
  EXPECT_TRUE(end().ok());
  EXPECT_FALSE(world.pool().streams().is_capturing());
  expect_error(end(), ErrorCode::invalid_argument, {"capture_end without capture_begin"});
}

TEST_F(StreamCalls, a_capture_is_released_once_and_by_its_number) {
  begin_capture(world, a, CaptureMode::relaxed);
  const DevicePtr ptr = world.allocate(kPage, a);
  world.deallocate(ptr, a);
  driver::CaptureInfo info;
  ASSERT_EQ(world.sim().stream_get_capture_info(a, info), CuResult::success);
  destroy(world, end_capture(world, a));
  const auto id = static_cast<std::uint64_t>(info.id);
  expect_error(world.pool().streams().capture_release(driver::CaptureId{id + 1}),
               ErrorCode::invalid_argument,
               {"no memory is kept for capture " + std::to_string(id + 1)});
  world.allocate(kPage, b);  // which hears of the graph's end
  expect_error(world.pool().streams().capture_release(info.id), ErrorCode::invalid_argument,
               {"no memory is kept for capture " + std::to_string(id)});
}

// Work that was queued meanwhile still runs, so all is as it was.
TEST_F(StreamCalls, a_reset_that_the_driver_refuses_changes_nothing) {
  const DevicePtr ptr = world.allocate(5000, a);
  world.use(ptr, 5000, a);
  world.faults().set_plan({{Call::device_primary_ctx_reset}, 1, CuResult::invalid_value});
  expect_error(world.pool().streams().reset(), ErrorCode::driver_failed,
               {driver::to_string(Call::device_primary_ctx_reset)});
  world.faults().clear_plan();
  world.use(ptr, 5000, a);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.pool().allocate_if_ready(5000, 0, a), ptr);
  world.deallocate(ptr, a);
}

}  // namespace
}  // namespace vpmm::test
