// context: a pause before new memory is created, for what other streams are about to be done with.
#include <gtest/gtest.h>

#include "support/pool_world_words.hpp"

namespace vpmm::testing {
namespace {

using driver::Call;
using driver::FaultPlan;

constexpr std::uint64_t kMicrosecond = 1'000;
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kPatience = 2 * kMillisecond;
constexpr std::uint64_t kGrowth = kMillisecond;  // the driver's calls for what these tests create take less

// Two streams; one of them frees half of what is live behind a kernel.
class Patience : public ::testing::Test {
 protected:
  static constexpr Bytes kHalf = 64 * kMiB;
  struct World : PoolWorld {
    explicit World(const WorldOptions& options = adaptive_world()) : PoolWorld(options) {
      rest = allocate(kHalf, other);
      deallocate(allocate(kPage, own), own);
    }
    const StreamHandle own = stream();
    const StreamHandle other = stream();
    DevicePtr rest{};

    void free_behind_a_kernel(std::uint64_t duration_ns) {
      const DevicePtr held = allocate(kHalf, other);
      use(held, kHalf, other, duration_ns);
      deallocate(held, other);
    }
    std::uint64_t time_of(Bytes bytes) {
      const std::uint64_t begin = sim().now_ns();
      allocate(bytes, own);
      return sim().now_ns() - begin;
    }
  };
  static WorldOptions preferring(pool::Prefer prefer) {
    WorldOptions options = adaptive_world();
    options.config.prefer = prefer;
    return options;
  }
};

TEST_F(Patience, memory_that_is_complete_in_a_moment_is_used_instead_of_new_memory) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.statistics().mapped_bytes;
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  EXPECT_GT(took, 250 * kMicrosecond);
  EXPECT_LT(took, 600 * kMicrosecond);
  EXPECT_EQ(world.statistics().gpu_waits, 0u) << "no stream was put behind the other";
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST_F(Patience, ends_and_the_pool_grows) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.statistics().mapped_bytes;
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped + kHalf - kPage) << "its idle page moves";
  EXPECT_GT(took, kPatience);
  EXPECT_LT(took, kPatience + kGrowth);
  EXPECT_EQ(world.sim().stream_query(world.other), driver::CuResult::not_ready);
}

// A pause of 2 ms is made up for by 40 ms without one.
TEST_F(Patience, takes_a_twentieth_of_the_time_at_most) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  ASSERT_GT(world.time_of(16 * kMiB), kPatience);
  for (int i = 0; i < 20; ++i) EXPECT_LT(world.time_of(16 * kMiB), kGrowth) << i;
  world.sim().advance_host_ns(30 * kMillisecond);
  EXPECT_LT(world.time_of(16 * kMiB), kGrowth);
  world.sim().advance_host_ns(10 * kMillisecond);
  EXPECT_GT(world.time_of(16 * kMiB), kPatience);
}

TEST_F(Patience, is_for_the_default_only) {
  for (const pool::Prefer prefer : {pool::Prefer::latency, pool::Prefer::footprint}) {
    World world(preferring(prefer));
    world.free_behind_a_kernel(100 * kMillisecond);
    EXPECT_LT(world.time_of(kHalf), kGrowth);
  }
}

// Half of what would be created, at least, must be about to come back.
TEST_F(Patience, is_not_for_little) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  EXPECT_LT(world.time_of(4 * kHalf), kGrowth);
}

// Memory was mapped before, given back, and is mapped again: no record.
TEST_F(Patience, is_for_a_record_of_mapped_memory_only) {
  World world;
  world.deallocate(world.allocate(4 * kHalf, world.own), world.own);
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  world.free_behind_a_kernel(100 * kMillisecond);
  EXPECT_LT(world.time_of(kHalf), kGrowth);
}

TEST_F(Patience, the_own_streams_memory_needs_none) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.statistics().mapped_bytes;
  const std::uint64_t begin = world.sim().now_ns();
  world.allocate(2 * kHalf, world.other);
  EXPECT_LT(world.sim().now_ns() - begin, kGrowth);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped + kHalf);
}

// A stream that is alone records no event, and during a capture nothing that covers all streams may be recorded.
TEST_F(Patience, is_not_for_memory_that_no_event_stands_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle alone = world.stream();
  world.allocate(kHalf, alone);
  const DevicePtr held = world.allocate(kHalf, alone);
  world.use(held, kHalf, alone, 100 * kMillisecond);
  world.deallocate(held, alone);
  ASSERT_TRUE(world.pool().capture_begin().ok());
  const std::uint64_t begin = world.sim().now_ns();
  world.allocate(kHalf, world.stream());
  EXPECT_LT(world.sim().now_ns() - begin, kGrowth);
  ASSERT_TRUE(world.pool().capture_end().ok());
}

TEST_F(Patience, ends_where_nothing_can_be_learned) {
  for (const std::uint64_t query : {8, 20, 50}) {
    World world;
    world.free_behind_a_kernel(100 * kMillisecond);
    const Bytes mapped = world.statistics().mapped_bytes;
    world.faults().set_plan(FaultPlan{{Call::event_query}, query, driver::CuResult::unknown});
    EXPECT_LT(world.time_of(kHalf), kPatience) << query;
    EXPECT_GT(world.statistics().mapped_bytes, mapped);
  }
}

TEST_F(Patience, a_context_that_breaks_meanwhile_is_told_and_left_alone) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  world.sim().advance_host_ns(kMillisecond);
  world.faults().set_plan(FaultPlan{{Call::event_query}, 3, driver::CuResult::illegal_address});
  expect_error(world.pool().allocate({kHalf, 0, world.own}), ErrorCode::poisoned, {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  world.break_context();
}

}  // namespace
}  // namespace vpmm::testing
