// SPDX-License-Identifier: Apache-2.0
// context: several pools on one GPU: what one holds idle is not why another runs out of memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "process/neighbours.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using context::Context;

constexpr Bytes kGpuPages = 16;

WorldOptions sixteen_pages() {
  WorldOptions options = adaptive_world();
  options.sim.capacity = kGpuPages * kPage;
  options.sim.device_count = 2;
  options.config.log = observe::LogLevel::quiet;
  return options;
}

// Another pool on the same GPU beside the world's own.
class Neighbours : public ::testing::Test {
 protected:
  // Its chunks are pages, so that it can give back any number of them.
  std::unique_ptr<Context> open(driver::DeviceOrdinal device = 0) {
    settings::Config config = page_world().config;
    config.log = observe::LogLevel::quiet;
    return Context::create(world.faults(), device, config).value();
  }
  // `pool` has mapped `pages`, and nobody uses them.
  void fill(Context& pool, Bytes pages) {
    const DevicePtr ptr = pool.allocate({pages * kPage, 0, std::nullopt}).value();
    ASSERT_TRUE(pool.deallocate(ptr, std::nullopt).ok());
    ASSERT_TRUE(pool.streams().synchronize().ok());
    ASSERT_EQ(pool.reports().statistics().mapped_bytes, pages * kPage);
  }
  // Whether there was memory for it.
  static bool use_for_a_moment(Context& pool, Bytes bytes) {
    const Result<DevicePtr> ptr = pool.allocate({bytes, 0, std::nullopt});
    if (ptr) {
      EXPECT_TRUE(pool.deallocate(ptr.value(), std::nullopt).ok());
    }
    return ptr.ok();
  }

  PoolWorld world{sixteen_pages()};
  StreamHandle stream = world.stream();
  std::unique_ptr<Context> other = open();
};

// The one whose driver is slow to unmap is trimmed; others come and go meanwhile, and it waits for
// the trim to end it.
TEST(NeighboursOfHooks, open_and_close_while_one_of_them_is_trimmed) {
  HookedWorld world(sixteen_pages());
  const auto open = [&] {
    settings::Config config = page_world().config;
    config.log = observe::LogLevel::quiet;
    return Context::create(world.hooks, 0, config).value();
  };
  std::unique_ptr<Context> trimmed = open();
  const DevicePtr idle = trimmed->allocate({14 * kPage, 0, std::nullopt}).value();
  ASSERT_TRUE(trimmed->deallocate(idle, std::nullopt).ok());
  ASSERT_TRUE(trimmed->streams().synchronize().ok());
  std::atomic<bool> is_inside{false}, may_go_on{false}, is_closed{false};
  world.hooks.on[driver::Call::mem_unmap] = [&] {
    if (is_inside.exchange(true))
      return driver::CuResult::success;  // of the pools that come and go
    while (!may_go_on) std::this_thread::yield();
    return driver::CuResult::success;
  };
  const StreamHandle stream = world.stream();
  std::thread asking([&] {
    EXPECT_EQ(world.sim.ctx_set_current(world.context), driver::CuResult::success);
    world.deallocate(world.allocate(8 * kPage, stream), stream);
  });
  while (!is_inside) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) open().reset();  // hangs where the list is held
  std::thread closing([&] {
    EXPECT_EQ(world.sim.ctx_set_current(world.context), driver::CuResult::success);
    trimmed.reset();
    is_closed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(is_closed) << "a pool that is being trimmed is not destroyed";
  may_go_on = true;
  asking.join();
  closing.join();
  EXPECT_TRUE(is_closed);
}

TEST_F(Neighbours, give_back_what_is_idle_when_the_gpu_is_short) {
  fill(*other, 12);
  const DevicePtr ptr = world.allocate(10 * kPage, stream);
  world.use(ptr, 10 * kPage, stream);
  EXPECT_EQ(other->reports().validate(), "");
  EXPECT_EQ(other->reports().statistics().mapped_bytes + 10 * kPage, 16 * kPage)
      << "as much as is missing, and no more";
}

TEST_F(Neighbours, also_make_room_for_small_requests_and_for_preallocation) {
  fill(*other, 16);
  world.allocate(100, stream);
  EXPECT_EQ(other->reports().statistics().mapped_bytes, 15 * kPage);
  EXPECT_TRUE(world.pool().limits().preallocate(5 * kPage).ok());
  EXPECT_EQ(other->reports().statistics().mapped_bytes, 11 * kPage);
}

TEST_F(Neighbours, are_asked_for_nothing_that_would_not_help) {
  const ArenaId arena = make_arena(world, kExternal);
  fill(*other, 16);
  expect_error(world.pool().allocate({kPage, 0, stream, arena}), ErrorCode::out_of_memory,
               {"no room"});
  EXPECT_EQ(other->reports().statistics().mapped_bytes, 16 * kPage);
}

TEST_F(Neighbours, are_asked_before_the_callback_and_again_after_it) {
  const DevicePtr held = other->allocate({12 * kPage, 0, stream}).value();
  int called = 0;
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    return called++ == 0 && other->deallocate(held, stream).ok();
  });
  world.allocate(10 * kPage, stream);
  EXPECT_EQ(called, 1);
}

// It says each time that it gave back what was missing, as if another process took it at once.
TEST_F(Neighbours, are_asked_once_for_a_request_and_once_for_each_answer_of_the_callback) {
  other.reset();
  world.sim().set_used_by_others(0, 12 * kPage);
  int asked = 0;
  const auto give_back = [&](Bytes most) {
    EXPECT_EQ(most, 4 * kPage);
    return ++asked < 10 ? most : 0;
  };
  process::enter_neighbourhood(&asked, {0, &world.pool().driver(), give_back, [] {}});
  expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, 1);
  int answers = 0;
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return ++answers <= 2; });
  expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, 1 + 3);
  process::leave_neighbourhood(&asked);
}

TEST_F(Neighbours, keep_what_is_in_use_and_what_is_not_done) {
  const DevicePtr live = other->allocate({4 * kPage, 0, stream}).value();
  const DevicePtr busy = other->allocate({8 * kPage, 0, stream}).value();
  world.use(busy, 8 * kPage, stream, kLongNs);
  ASSERT_TRUE(other->deallocate(busy, stream).ok());
  expect_error(world.pool().allocate({10 * kPage, 0, stream}), ErrorCode::out_of_memory,
               {"12 MiB are missing"});
  EXPECT_EQ(other->reports().statistics().mapped_bytes, 12 * kPage);
  EXPECT_EQ(other->reports().statistics().host_waits, 0u);
  world.use(live, 4 * kPage, stream);
  ASSERT_TRUE(other->deallocate(live, stream).ok());
}

TEST_F(Neighbours, are_left_alone_where_their_memory_would_not_help) {
  fill(*other, 12);
  world.pool().limits().set_capacity(4 * kPage);
  expect_error(world.pool().allocate({5 * kPage, 0, stream}), ErrorCode::out_of_memory);
  world.pool().limits().set_capacity(std::nullopt);
  world.allocate(4 * kPage, stream);
  expect_error(world.pool().allocate({13 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(other->reports().statistics().mapped_bytes, 12 * kPage);
}

TEST_F(Neighbours, are_not_asked_while_a_capture_is_known_that_they_could_break) {
  fill(*other, 12);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  expect_error(world.pool().allocate({10 * kPage, 0, stream}), ErrorCode::out_of_memory);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  world.allocate(10 * kPage, stream);
}

TEST_F(Neighbours, of_another_device_or_that_hold_nothing_or_are_gone_are_not_asked) {
  const std::unique_ptr<Context> elsewhere = open(1);
  fill(*elsewhere, 12);
  fill(*other, 12);
  other.reset();
  const std::unique_ptr<Context> unused = open();
  const std::uint64_t calls = unused->reports().statistics().driver_calls;
  world.allocate(16 * kPage, stream);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(unused->reports().statistics().driver_calls, calls);
  EXPECT_EQ(elsewhere->reports().statistics().mapped_bytes, 12 * kPage);
}

TEST_F(Neighbours, that_end_while_they_are_asked_are_waited_for) {
  std::atomic<bool> is_over{false};
  int passed = 0;
  int served = 0;
  std::thread opener([&] {
    // On two busy cores each may find the other in the midst of it 200 times in a row.
    for (int i = 0; i < 200 || (passed == 0 && i < 20'000); ++i) {
      const std::unique_ptr<Context> passing = open();
      passed += use_for_a_moment(*passing, 6 * kPage);
    }
    is_over = true;
  });
  while (!is_over) {
    served += use_for_a_moment(world.pool(), 12 * kPage);
    EXPECT_TRUE(world.pool().limits().trim(0).ok());
  }
  opener.join();
  EXPECT_GT(passed, 0);
  EXPECT_GT(served + use_for_a_moment(world.pool(), 12 * kPage), 0);
}

TEST_F(Neighbours, that_are_short_at_once_do_not_wait_for_each_other_for_ever) {
  const auto take_turns = [](Context& pool) {
    // Once the other has ended nothing is in its way.
    int served = 0;
    for (int i = 0; i < 300 || served == 0; ++i) served += use_for_a_moment(pool, 12 * kPage);
  };
  std::thread first([&] { take_turns(world.pool()); });
  std::thread second([&] { take_turns(*other); });
  first.join();
  second.join();
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_EQ(other->reports().validate(), "");
}

TEST(NeighboursOfTwo, have_what_they_gave_back_told_in_the_log) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = 16 * kPage;
  options.config.log = observe::LogLevel::info;
  const Told told;
  PoolWorld world(options);
  settings::Config config = page_world().config;
  config.log = observe::LogLevel::info;
  const auto other = Context::create(world.faults(), 0, config).value();
  const StreamHandle stream = world.stream();
  const DevicePtr held = other->allocate({12 * kPage, 0, std::nullopt}).value();
  expect_error(world.pool().allocate({10 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(told.lines().find("gave back"), std::string::npos);
  ASSERT_TRUE(other->deallocate(held, std::nullopt).ok());
  ASSERT_TRUE(other->streams().synchronize().ok());
  world.allocate(10 * kPage, stream);
  EXPECT_NE(told.lines().find("other pools of this process gave back 12582912 bytes"),
            std::string::npos)
      << told.lines();
}

TEST(NeighboursOfTwo, that_cannot_give_back_are_not_thought_to_have) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = 16 * kPage;
  options.config.log = observe::LogLevel::quiet;
  PoolWorld world(options);
  settings::Config config = page_world().config;
  config.log = observe::LogLevel::quiet;
  const auto other = Context::create(world.faults(), 0, config).value();
  const StreamHandle stream = world.stream();
  const DevicePtr idle = other->allocate({12 * kPage, 0, std::nullopt}).value();
  const auto tries = [&] {
    const std::uint64_t before = world.calls().count(driver::Call::mem_create);
    expect_error(world.pool().allocate({10 * kPage, 0, stream}), ErrorCode::out_of_memory);
    return world.calls().count(driver::Call::mem_create) - before;
  };
  const std::uint64_t in_vain = tries();
  ASSERT_TRUE(other->deallocate(idle, std::nullopt).ok());
  ASSERT_TRUE(other->streams().synchronize().ok());
  world.faults().set_plan({{driver::Call::mem_unmap},
                           1,
                           driver::CuResult::invalid_value,
                           driver::FaultPlan::Repeat::from_then_on});
  EXPECT_EQ(tries(), in_vain);
  world.faults().clear_plan();
  world.allocate(10 * kPage, stream);
}

TEST_F(Neighbours, without_memory_give_back_none_and_do_not_open_the_gpu) {
  world.allocate(kPage, stream);
  world.sim().set_used_by_others(0, 12 * kPage);
  const std::uint64_t opened = world.calls().count(driver::Call::device_primary_ctx_retain);
  observe::set_log_level(observe::LogLevel::info);
  const Told told;
  expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  observe::set_log_level(observe::LogLevel::quiet);
  EXPECT_EQ(told.lines().find("gave back"), std::string::npos) << told.lines();
  EXPECT_EQ(world.calls().count(driver::Call::device_primary_ctx_retain), opened);
}

}  // namespace
}  // namespace vpmm::test
