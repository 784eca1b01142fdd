// SPDX-License-Identifier: Apache-2.0
// tests/context: a pool of which one tag keeps its contents and one drops them, whose driver calls
// a test can meet.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "support/hooked_world.hpp"

namespace vpmm::test {

inline constexpr std::uint32_t kKept = 17;
inline constexpr std::uint32_t kDropped = 18;

class SuspendRaces : public ::testing::Test {
 protected:
  SuspendRaces() : world(adaptive_world()) {
    EXPECT_TRUE(suspension().make_suspendable(kKept, {true, false}).ok());
    EXPECT_TRUE(suspension().make_suspendable(kDropped, {false, false}).ok());
  }
  context::Suspension& suspension() { return world.pool->suspension(); }
  Result<DevicePtr> request(Bytes bytes, std::uint32_t tag, bool one_chunk = false) {
    return world.pool->allocate({bytes, 0, a, {}, tag, 0, one_chunk});
  }
  DevicePtr tagged(Bytes bytes, std::uint32_t tag = kKept, bool one_chunk = false) {
    const auto made = request(bytes, tag, one_chunk);
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }
  DevicePtr written(Bytes bytes, std::uint8_t first, bool one_chunk = false) {
    const DevicePtr ptr = tagged(bytes, kKept, one_chunk);
    EXPECT_EQ(world.sim.stream_synchronize(a), driver::CuResult::success);
    std::vector<std::uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), first);
    EXPECT_EQ(world.sim.memcpy_host_to_device(ptr, data.data(), bytes), driver::CuResult::success);
    return ptr;
  }
  void expect_written(DevicePtr ptr, Bytes bytes, std::uint8_t first) {
    std::vector<std::uint8_t> data(bytes);
    ASSERT_EQ(world.sim.memcpy_device_to_host(data.data(), ptr, bytes), driver::CuResult::success);
    std::vector<std::uint8_t> expected(bytes);
    std::iota(expected.begin(), expected.end(), first);
    EXPECT_EQ(data, expected);
  }
  void expect_valid() { EXPECT_EQ(world.pool->reports().validate(), ""); }
  void suspend(std::uint32_t tag = kKept, const context::SuspendHow& how = {}) {
    const auto done = suspension().suspend(tag, how);
    EXPECT_TRUE(done.ok()) << message_of(done);
    expect_valid();
  }
  void resume(std::uint32_t tag = kKept) {
    const auto done = suspension().resume(tag, {});
    EXPECT_TRUE(done.ok()) << message_of(done);
    expect_valid();
  }
  void free(DevicePtr ptr) {
    const auto freed = world.pool->deallocate(ptr, a);
    EXPECT_TRUE(freed.ok()) << message_of(freed);
  }
  // Once, on another thread, at the next call of the driver of this kind.
  void at_next(driver::Call call, const std::function<void()>& act) {
    const auto is_over = std::make_shared<std::atomic<bool>>(false);  // copies have threads
    world.hooks.on[call] = [this, act, is_over] {
      if (!is_over->exchange(true)) world.on_another_thread(act);
      return driver::CuResult::success;
    };
  }
  context::TagState state(std::uint32_t tag = kKept) { return suspension().info(tag).state; }

  HookedWorld world;
  StreamHandle a = world.stream();
};

}  // namespace vpmm::test
