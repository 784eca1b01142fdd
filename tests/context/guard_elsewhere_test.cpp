// SPDX-License-Identifier: Apache-2.0
// context: what VPMM_GUARD cannot guard, and allocations beside guarded ones.
#include <gtest/gtest.h>

#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using driver::CaptureMode;

// Where each allocation has chunks of its own, or a graph has the memory.
TEST(GuardedElsewhere, what_cannot_be_guarded_is_allocated_and_counted_as_unguarded) {
  WorldOptions isolated = adaptive_world();
  isolated.config.checks.guard_every = 1;
  isolated.config.ipc_isolate = true;
  PoolWorld own(isolated);
  const StreamHandle stream = own.stream();
  own.deallocate(own.allocate(5000, stream), stream);
  own.deallocate(own.allocate(3 * kPage, stream), stream);
  EXPECT_EQ(own.statistics().guarded_allocations, 0u);
  EXPECT_EQ(own.statistics().unguarded_allocations, 2u);
  WorldOptions guarded = adaptive_world();
  guarded.config.checks.guard_every = 1;
  PoolWorld world(guarded);
  const StreamHandle captured = world.stream();
  begin_capture(world, captured, CaptureMode::relaxed);
  world.deallocate(world.allocate(3 * kPage, captured), captured);
  destroy(world, end_capture(world, captured));
  EXPECT_EQ(world.statistics().guarded_allocations, 0u);
  EXPECT_EQ(world.statistics().unguarded_allocations, 1u);
}

TEST(GuardedElsewhere, without_the_virtual_memory_pool_nothing_is_and_that_is_told) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  options.config.pool_enabled = false;
  const Told told;
  PoolWorld world(options);
  EXPECT_NE(told.lines().find("VPMM_GUARD needs the virtual memory pool"), std::string::npos);
  const auto explained = world.pool().reports().explain(DevicePtr{4096});
  expect_error(explained, ErrorCode::unsupported, {"VPMM_GUARD needs the virtual memory pool"});
}

TEST(GuardedElsewhere, a_request_that_is_refused_is_not_one_that_was_served_unguarded) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  expect_error(world.pool().allocate({9 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().unguarded_allocations, 0u);
  world.allocate(8 * kPage, stream);
  EXPECT_EQ(world.statistics().unguarded_allocations, 1u);
}

// The first of two is guarded, or the second.
TEST(BesideGuardedBlocks, there_is_as_much_less_room_for_others) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 2;
  options.config.limits.capacity = 32 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 2; ++i) world.allocate(8 * kPage, stream);
  ASSERT_EQ(world.statistics().guarded_allocations, 1u);
  ASSERT_EQ(world.statistics().mapped_bytes, 16 * kPage);
  const auto large = world.pool().allocate({20 * kPage, 0, stream});
  expect_error(large, ErrorCode::out_of_memory);
  EXPECT_LE(world.statistics().peak_mapped_bytes, 32 * kPage);
}

}  // namespace
}  // namespace vpmm::test
