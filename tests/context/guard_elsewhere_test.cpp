// SPDX-License-Identifier: Apache-2.0
// context: what VPMM_GUARD cannot guard.
#include <gtest/gtest.h>

#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

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

}  // namespace
}  // namespace vpmm::test
