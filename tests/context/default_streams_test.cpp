// SPDX-License-Identifier: Apache-2.0
// context: default streams, which have one handle in all contexts.
#include <gtest/gtest.h>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;

class DefaultStreams : public ::testing::TestWithParam<StreamHandle> {
 protected:
  static WorldOptions two_devices() {
    WorldOptions options = adaptive_world();
    options.sim.device_count = 2;
    return options;
  }
  // Leaves a block in the cache of the stream.
  DevicePtr keep_one() {
    const DevicePtr ptr = world.allocate(5000, GetParam());
    world.deallocate(ptr, GetParam());
    return ptr;
  }
  DevicePtr take_if_ready() { return world.pool().allocate_if_ready(5000, 0, GetParam()); }

  PoolWorld world{two_devices()};
};

TEST_P(DefaultStreams, of_another_context_get_nothing_of_ours) {
  driver::ContextHandle ours{}, theirs{};
  ASSERT_EQ(world.sim().ctx_get_current(ours), CuResult::success);
  ASSERT_EQ(world.sim().device_primary_ctx_retain(1, theirs), CuResult::success);
  const DevicePtr ptr = keep_one();
  for (const driver::ContextHandle other : {theirs, driver::ContextHandle{}}) {
    ASSERT_EQ(world.sim().ctx_set_current(other), CuResult::success);
    EXPECT_TRUE(is_null(take_if_ready()));
  }
  ASSERT_EQ(world.sim().ctx_set_current(ours), CuResult::success);
  EXPECT_EQ(take_if_ready(), ptr);
}

// Work of the new context is not ordered behind that of the old one, whose ids it has.
TEST_P(DefaultStreams, of_a_context_that_was_reset_get_nothing_before_that_is_known) {
  keep_one();
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
  EXPECT_TRUE(is_null(take_if_ready()));
  const DevicePtr next = world.allocate(5000, GetParam());
  world.use(next, 5000, GetParam());
  world.deallocate(next, GetParam());
  EXPECT_EQ(take_if_ready(), next);
}

INSTANTIATE_TEST_SUITE_P(Handles, DefaultStreams,
                         ::testing::Values(driver::kNullStream, driver::kLegacyStream,
                                           driver::kPerThreadStream));

}  // namespace
}  // namespace vpmm::test
