// SPDX-License-Identifier: Apache-2.0
// tests/context: a pool with a tag whose contents sleep on the host, and one that discards its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/pool_world_arenas.hpp"

namespace vpmm::test {

inline constexpr std::uint32_t kWeights = 7;
inline constexpr std::uint32_t kCache = 8;

class Suspend : public ::testing::Test {
 protected:
  explicit Suspend(const WorldOptions& options = adaptive_world()) : world(options) {
    make(kWeights, true);
    make(kCache, false);
  }
  context::Suspension& suspension() { return world.pool().suspension(); }
  void make(std::uint32_t tag, bool has_backup, bool keeps = false) {
    EXPECT_TRUE(suspension().make_suspendable(tag, {has_backup, keeps}).ok());
  }
  Result<DevicePtr> request(Bytes bytes, std::uint32_t tag) {
    return world.pool().allocate({bytes, 0, a, {}, tag});
  }
  DevicePtr tagged(Bytes bytes, std::uint32_t tag = kWeights) {
    const auto result = request(bytes, tag);
    EXPECT_TRUE(result.ok()) << message_of(result);
    EXPECT_EQ(world.pool().reports().validate(), "");
    return result ? result.value() : DevicePtr{};
  }
  void write(DevicePtr ptr, Bytes bytes, std::uint8_t first) {
    ASSERT_EQ(world.sim().stream_synchronize(a), driver::CuResult::success);
    std::vector<std::uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), first);
    ASSERT_EQ(world.sim().memcpy_host_to_device(ptr, data.data(), bytes),
              driver::CuResult::success);
  }
  void expect_written(DevicePtr ptr, Bytes bytes, std::uint8_t first) {
    std::vector<std::uint8_t> data(bytes);
    ASSERT_EQ(world.sim().memcpy_device_to_host(data.data(), ptr, bytes),
              driver::CuResult::success);
    std::vector<std::uint8_t> expected(bytes);
    std::iota(expected.begin(), expected.end(), first);
    EXPECT_EQ(data, expected);
  }
  void suspend(std::uint32_t tag = kWeights, const context::SuspendHow& how = {}) {
    const auto done = suspension().suspend(tag, how);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  void resume(std::uint32_t tag = kWeights, const context::ResumeHow& how = {}) {
    const auto done = suspension().resume(tag, how);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  context::TagState state(std::uint32_t tag = kWeights) { return suspension().info(tag).state; }
  bool is_suspended(DevicePtr ptr) {
    const auto is = suspension().is_suspended(ptr);
    EXPECT_TRUE(is.ok()) << message_of(is);
    return is && is.value();
  }

  PoolWorld world;
  StreamHandle a = world.stream();
};

inline constexpr context::SuspendHow kToDriver{std::nullopt, false, true, std::nullopt};

}  // namespace vpmm::test
