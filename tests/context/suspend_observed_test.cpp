// SPDX-License-Identifier: Apache-2.0
// context: what observers of memory and the figures say while a resume copies contents back.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>

#include "support/hooked_driver.hpp"
#include "support/pool_world_words.hpp"
#include "support/watching_driver.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr std::uint32_t kTag = 7;

class SuspendObserved : public ::testing::Test {
 protected:
  SuspendObserved() {
    EXPECT_EQ(sim.init(), CuResult::success);
    driver::ContextHandle context{};
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
    EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, stream), CuResult::success);
    pool = context::Context::create(hooks, 0, adaptive_world().config).value();
    EXPECT_TRUE(pool->suspension().make_suspendable(kTag, {true, false}).ok());
  }
  void TearDown() override {
    EXPECT_EQ(watching.wrong, 0);
    EXPECT_EQ(pool->reports().validate(), "");
    pool.reset();
    EXPECT_EQ(sim.hazard_count(), 0u);
  }
  DevicePtr allocate(Bytes bytes) { return pool->allocate({bytes, 0, stream, {}, kTag}).value(); }

  driver::sim::SimDriver sim;
  WatchingDriver watching{sim};
  HookedDriver hooks{watching};
  StreamHandle stream{};
  std::unique_ptr<context::Context> pool;
};

TEST_F(SuspendObserved, memory_ends_with_a_suspend_and_begins_with_a_resume_that_succeeds) {
  const DevicePtr first = allocate(2 * kPage), second = allocate(3 * kPage);
  const std::set<DevicePtr> both{first, second};
  EXPECT_EQ(watching.live, both);
  for (const bool to_driver : {false, true}) {
    context::SuspendHow how;
    how.to_driver = to_driver;
    ASSERT_TRUE(pool->suspension().suspend(kTag, how).ok());
    EXPECT_TRUE(watching.live.empty());
    hooks.on[Call::memcpy_host_to_device_async] = [] { return CuResult::invalid_value; };
    expect_error(pool->suspension().resume(kTag, {}), ErrorCode::driver_failed);
    hooks.on.clear();
    EXPECT_TRUE(watching.live.empty()) << "it sleeps again";
    EXPECT_EQ(pool->suspension().info(kTag).state, context::TagState::suspended);
    ASSERT_TRUE(pool->suspension().resume(kTag, {}).ok());
    EXPECT_EQ(watching.live, both);
  }
  ASSERT_TRUE(pool->suspension().suspend(kTag, {}).ok());
  hooks.on[Call::memcpy_host_to_device_async] = [] { return CuResult::invalid_value; };
  EXPECT_FALSE(pool->suspension().resume(kTag, {}).ok());
  hooks.on.clear();
  EXPECT_TRUE(pool->deallocate(first, stream).ok()) << "while it sleeps";
  ASSERT_TRUE(pool->suspension().resume(kTag, {}).ok());
  EXPECT_EQ(watching.live, (std::set<DevicePtr>{second}));
  EXPECT_TRUE(pool->deallocate(second, stream).ok());
  EXPECT_TRUE(watching.live.empty());
}

TEST_F(SuspendObserved, figures_count_memory_as_live_while_its_contents_come_back) {
  const DevicePtr first = allocate(2 * kPage), second = allocate(3 * kPage);
  ASSERT_TRUE(pool->suspension().suspend(kTag, {}).ok());
  EXPECT_EQ(pool->reports().statistics().live_bytes, 0u);
  std::atomic<Bytes> live = 0, allocated = 0;  // several threads copy
  std::atomic<std::uint64_t> count = 0;
  hooks.on[Call::memcpy_host_to_device_async] = [&] {
    const observe::Statistics now = pool->reports().statistics();
    live = now.live_bytes;
    allocated = now.allocated_bytes;
    count = now.live_allocations;
    return CuResult::success;
  };
  ASSERT_TRUE(pool->suspension().resume(kTag, {}).ok());
  hooks.on.clear();
  EXPECT_EQ(live.load(), 5 * kPage);
  EXPECT_EQ(allocated.load(), 5 * kPage);
  EXPECT_EQ(count.load(), 2u);
  for (const DevicePtr ptr : {first, second}) EXPECT_TRUE(pool->deallocate(ptr, stream).ok());
}

}  // namespace
}  // namespace vpmm::test
