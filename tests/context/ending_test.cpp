// SPDX-License-Identifier: Apache-2.0
// context: what survives a reset by us, a reset by others, and a broken GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/left_memory.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

std::uint8_t first_byte(PoolWorld& world, DevicePtr ptr) {
  std::uint8_t byte = 0;
  EXPECT_EQ(world.sim().memcpy_device_to_host(&byte, ptr, 1), CuResult::success);
  return byte;
}

// After a reset nothing is current; a program retains the primary context again.
void enter_again(PoolWorld& world) {
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
}

WorldOptions world_with(settings::SmallRequests small) {
  WorldOptions options = page_world();
  options.config.small = small;
  return options;
}

// A pool with live allocations that hold 0x5A and 0x5B, pending memory, cached memory and
// outstanding events.
class Reset : public ::testing::Test {
 protected:
  PoolWorld world;
  DevicePtr live{};
  DevicePtr small{};
  DevicePtr pending{};

  explicit Reset(const WorldOptions& options = page_world()) : world(options) {
    const StreamHandle stream = world.stream();
    live = world.allocate(4 * kPage, stream);
    EXPECT_EQ(world.sim().memset_d8_async(live, 0x5A, 4 * kPage, stream), CuResult::success);
    small = world.allocate(1000, stream);
    EXPECT_EQ(world.sim().memset_d8_async(small, 0x5B, 1000, stream), CuResult::success);
    for (const Bytes bytes : {Bytes{1000}, Bytes{600'000}})
      world.deallocate(world.allocate(bytes, stream), stream);
    pending = world.allocate(3 * kPage, stream);
    world.use(pending, 3 * kPage, stream, kLongNs);
    world.deallocate(pending, stream);
    world.deallocate(world.allocate(2 * kPage, std::nullopt), std::nullopt);
  }
  void expect_alive_after() {
    enter_again(world);
    const StreamHandle stream = world.stream();
    EXPECT_EQ(world.allocate(3 * kPage, stream), pending) << "everything before the reset is over";
    world.use(pending, 3 * kPage, stream);
    EXPECT_EQ(first_byte(world, live), 0x5A) << "chunks and their contents survive";
    expect_of_small(stream);
    world.deallocate(live, stream);
    const DevicePtr new_small = world.allocate(1000, stream);
    world.use(new_small, 1000, stream);
    EXPECT_TRUE(world.pool().streams().synchronize().ok());
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
  }
  // Blocks are cut from chunks, so they survive with them.
  virtual void expect_of_small(StreamHandle stream) {
    EXPECT_EQ(first_byte(world, small), 0x5B);
    EXPECT_EQ(world.statistics().live_bytes, 7 * kPage + 1000);
    world.use(small, 1000, stream);
    world.deallocate(small, stream);
  }
};

// The driver's pool dies with its context.
class ResetStreamOrdered : public Reset {
 protected:
  ResetStreamOrdered() : Reset(world_with(settings::SmallRequests::stream_ordered)) {}
  void expect_of_small(StreamHandle stream) override {
    EXPECT_EQ(world.statistics().live_bytes, 7 * kPage);
    expect_error(world.pool().deallocate(small, stream), ErrorCode::invalid_pointer);
  }
};

TEST_F(ResetStreamOrdered, by_us_forgets_small_pointers) {
  ASSERT_TRUE(world.pool().streams().reset().ok());
  expect_alive_after();
}

TEST_F(ResetStreamOrdered, by_others_forgets_small_pointers) {
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_again(world);
  expect_error(world.pool().deallocate(small, std::nullopt), ErrorCode::invalid_pointer);
  world.deallocate(live, std::nullopt);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST_F(Reset, by_us_waits_and_keeps_chunks_and_contents) {
  ASSERT_TRUE(world.pool().streams().reset().ok());
  EXPECT_EQ(world.calls().count(Call::device_primary_ctx_reset), 1u);
  expect_alive_after();
}

TEST_F(Reset, by_others_is_noticed_before_an_event_is_touched) {
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  expect_alive_after();  // the simulator aborts when a dead event or stream is touched
}

// It ended with the context, and no call of its stream will tell.
TEST_F(Reset, by_others_ends_the_captures_that_were_seen) {
  const StreamHandle stream = world.stream();
  ASSERT_EQ(world.sim().stream_begin_capture(stream, driver::CaptureMode::global),
            CuResult::success);
  {
    const LeftMemory left;  // the graph's, whose end nobody tells
    world.allocate(kPage, stream);
  }
  EXPECT_TRUE(world.pool().streams().is_capturing());
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_again(world);
  EXPECT_FALSE(world.pool().streams().is_capturing());
  world.wait();
}

TEST_F(Reset, by_others_is_noticed_by_a_free_too) {
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_again(world);
  const StreamHandle stream = world.stream();
  world.deallocate(live, stream);
  world.deallocate(small, stream);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST_F(Reset, what_a_dead_stream_had_in_hand_is_anybodys) {
  const StreamHandle dead = world.stream();
  const DevicePtr block = world.allocate(5000, dead);
  const DevicePtr run = world.allocate(300'000, dead);
  world.deallocate(block, dead);
  world.deallocate(run, dead);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_again(world);
  const StreamHandle next = world.stream();
  EXPECT_EQ(world.statistics().small_bytes, kPage) << "one page, with the live block in it";
  world.use(world.allocate(300'000, next), 300'000, next);
  world.use(world.allocate(5000, next), 5000, next);
  EXPECT_EQ(world.statistics().small_bytes, kPage);
}

// Its frees were queued in a context that is gone: nothing stands against the memory any more.
TEST_F(Reset, a_bound_stream_is_dead_after_it) {
  const StreamHandle stream = world.stream();
  auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  const auto block = bound.value()->allocate(1000, 0);
  ASSERT_TRUE(block.ok());
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_again(world);
  expect_error(bound.value()->allocate(2000, 0), ErrorCode::invalid_argument, {"bound stream"});
  EXPECT_TRUE(bound.value()->deallocate(block.value()).ok());
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST_F(Reset, twice_is_survived_too) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(world.pool().streams().reset().ok());
    enter_again(world);
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(5 * kPage, stream), stream);
    world.deallocate(world.allocate(500, stream), std::nullopt);
  }
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  expect_alive_after();
}

TEST_F(Reset, of_the_device_of_a_foreign_stream_completes_its_frees) {
  WorldOptions options = page_world();
  options.sim.device_count = 2;
  PoolWorld two(options);
  driver::ContextHandle mine{};
  driver::ContextHandle other{};
  ASSERT_EQ(two.sim().ctx_get_current(mine), CuResult::success);
  ASSERT_EQ(two.sim().device_primary_ctx_retain(1, other), CuResult::success);
  ASSERT_EQ(two.sim().ctx_set_current(other), CuResult::success);
  const StreamHandle foreign = two.stream();
  ASSERT_EQ(two.sim().ctx_set_current(mine), CuResult::success);
  const DevicePtr ptr = two.allocate(4 * kPage, foreign);
  two.deallocate(ptr, foreign);
  two.sim().run_until_idle();
  ASSERT_EQ(two.sim().device_primary_ctx_reset(1), CuResult::success);
  EXPECT_EQ(two.allocate(4 * kPage, std::nullopt), ptr);
}

TEST(Broken, a_sticky_error_poisons_the_pool_and_no_driver_call_is_made_after_it) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr live = world.allocate(4 * kPage, stream);
  world.deallocate(world.allocate(2 * kPage, stream), stream);
  world.break_context();
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::poisoned,
               {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  const std::uint64_t calls = world.calls().total_count();
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::poisoned);
  expect_error(world.pool().deallocate(live, stream), ErrorCode::poisoned);
  expect_error(world.pool().limits().trim(0), ErrorCode::poisoned);
  expect_error(world.pool().streams().synchronize(), ErrorCode::poisoned);
  expect_error(world.pool().limits().memory_info(), ErrorCode::poisoned);
  expect_error(world.pool().record_use(live, stream), ErrorCode::poisoned);
  world.pool().deallocate_deferred(live);
  EXPECT_EQ(world.calls().total_count(), calls);
}

TEST(Broken, figures_and_pictures_still_answer) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(4 * kPage, stream);
  world.break_context();
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::poisoned);
  EXPECT_EQ(world.picture(), "[4]");
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST(ResetByOthers, is_told_in_the_log) {
  WorldOptions options = adaptive_world();
  options.config.log = observe::LogLevel::info;
  const Told told;
  PoolWorld world(options);
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  EXPECT_EQ(told.lines().find("was reset"), std::string::npos);
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  EXPECT_NE(told.lines().find("device 0: its CUDA context was reset"), std::string::npos);
}

TEST(ResetOfArenas, joins_what_different_streams_freed) {
  PoolWorld world(adaptive_world());
  const StreamHandle a = world.stream(), b = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr first = allocate_in(world, arena, kMiB, a);
  const DevicePtr second = allocate_in(world, arena, kMiB, b);
  ASSERT_EQ(second, first + kMiB);
  world.deallocate(first, a);
  world.deallocate(second, b);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_again(world);
  const auto blocks = world.pool().reports().layout().blocks;
  EXPECT_TRUE(std::none_of(blocks.begin(), blocks.end(), [&](const report::LayoutBlock& block) {
    return block.range.begin == second || block.stream_id != 0;
  }));
  EXPECT_EQ(allocate_in(world, arena, 2 * kMiB, world.stream()), first);
}

// Nobody calls on its streams any more, so the first call on another asks for proof.
TEST_F(Reset, by_others_lets_what_its_streams_cached_be_proven_by_the_next_call) {
  const StreamHandle dead = world.stream();
  for (const Bytes bytes : {Bytes{5000}, Bytes{300'000}})
    world.deallocate(world.allocate(bytes, dead), dead);
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_again(world);
  const StreamHandle next = world.stream();
  const std::uint64_t events = world.statistics().events_recorded;
  world.allocate(kPage, next);
  EXPECT_GT(world.statistics().events_recorded, events);
  world.sim().run_until_idle();
  world.allocate(kPage, next);
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
