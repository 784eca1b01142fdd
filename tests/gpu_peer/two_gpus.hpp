// SPDX-License-Identifier: Apache-2.0
// tests/gpu_peer: a world of two GPUs that reach each other, simulated or real; without them a test
// is skipped.
#pragma once

#include "context/context.hpp"
#include "support/gpu_test.hpp"

namespace vpmm::test {

class TwoGpus : public ::testing::TestWithParam<WorldKind> {
 protected:
  // Null: the test is skipped, or has failed.
  void SetUp() override {
    auto world = GetParam() == WorldKind::sim ? open_sim_world(2) : open_cuda_world();
    if (!world && world.error().code == ErrorCode::no_driver && !gpu_is_required())
      GTEST_SKIP() << world.error().message;  // no GPU: the simulator alone answers
    ASSERT_TRUE(world.ok()) << world.error().message;
    driver::Driver& driver = world.value()->driver();
    int count = 0;
    ASSERT_OK(driver.device_get_count(count));
    if (count < 2) GTEST_SKIP() << "two GPUs are needed, and there is " << count;
    bool can_access = false;
    ASSERT_OK(driver.device_can_access_peer(1, 0, can_access));
    if (!can_access) GTEST_SKIP() << "GPU 1 has no peer access to GPU 0";
    world_ = std::move(world).value();
  }
  driver::Driver& driver() { return world_->driver(); }
  std::unique_ptr<context::Context> pool_of(driver::Driver& on, int device) {
    settings::Config config;
    config.va_size = 64_GiB;
    auto created = context::Context::create(on, device, config);
    EXPECT_TRUE(created.ok()) << created.error().message;
    return created ? std::move(created).value() : nullptr;
  }

  std::unique_ptr<GpuWorld> world_;
};

}  // namespace vpmm::test
