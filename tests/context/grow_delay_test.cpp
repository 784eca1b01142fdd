// SPDX-License-Identifier: Apache-2.0
// context: the moment for which a request looks, before the pool grows, whether other streams are
// done: Note [Grow delay].
#include "pool/grow_delay.hpp"

#include <gtest/gtest.h>

#include "pool/tuning.hpp"
#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::FaultPlan;

constexpr std::uint64_t kMicrosecond = 1'000;
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kLongest = pool::GrowDelay::kLongestNs;
// More than the driver's calls for what these tests create take, and the look during which a delay
// ends.
constexpr std::uint64_t kCalls = 6 * kMillisecond;
constexpr Bytes kHalf = 256 * kMiB;

// Two streams have called; `other` has half of what is mapped in use.
struct World : HookedWorld {
  explicit World(const WorldOptions& options = adaptive_world()) : HookedWorld(options) {
    allocate(kHalf, other);
    allocate(kPage, own);
  }

  const StreamHandle own = stream();
  const StreamHandle other = stream();

  // `other` frees `held` behind a kernel; no request looked before.
  void free_behind_a_kernel(std::uint64_t duration_ns, DevicePtr held, Bytes bytes = kHalf) {
    use(held, bytes, other, duration_ns);
    deallocate(held, other);
    hooks.sleeps = 0;
  }
  void free_behind_a_kernel(std::uint64_t duration_ns) {
    free_behind_a_kernel(duration_ns, allocate(kHalf, other));
  }
  std::uint64_t time_of(Bytes bytes) { return HookedWorld::time_of(bytes, own); }
  // The delay of one that would create memory of which `spared` bytes are on their way.
  std::uint64_t longest_for(Bytes spared) const {
    return pool::GrowDelay::longest_ns(spared, mapped());
  }
  Bytes mapped() const { return statistics().mapped_bytes; }
  std::uint64_t delayed() const { return statistics().pauses; }
  std::uint64_t looks() const { return hooks.sleeps; }
};

WorldOptions preferring(settings::Prefer prefer) {
  WorldOptions options = adaptive_world();
  options.config.prefer = prefer;
  return options;
}

// Where `mapped` bytes are a pool's and there is no more than a third as much: it does not grow
// early, so all growth is delayed.
WorldOptions without_early_growth(Bytes mapped) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = mapped / 3 * 4;
  return options;
}

void expect_as_long(std::uint64_t took, std::uint64_t longest) {
  EXPECT_GT(took, longest);
  EXPECT_LT(took, longest + kCalls);
}

// --- what it is for

TEST(GrowDelay, memory_that_is_complete_in_a_moment_is_used_instead_of_new_memory) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_GT(took, 250 * kMicrosecond);
  EXPECT_LT(took, 600 * kMicrosecond);
  EXPECT_EQ(world.delayed(), 1u);
  EXPECT_EQ(world.statistics().gpu_waits, 0u) << "no stream was put behind the other";
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

// Allocated on the caller's stream, freed on the other: it needs both.
TEST(GrowDelay, is_for_memory_that_was_handed_over_too) {
  World world;
  const DevicePtr made = world.allocate(kHalf, world.own);
  ASSERT_EQ(world.sim.stream_synchronize(world.own), driver::CuResult::success);
  world.free_behind_a_kernel(300 * kMicrosecond, made);
  const Bytes mapped = world.mapped();
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
}

// Whoever sees first that it is complete: here a call of another thread, while the one that looks
// holds no lock.
TEST(GrowDelay, memory_that_another_call_sees_first_is_found) {
  World world;
  const StreamHandle third = world.stream();
  world.deallocate(world.allocate(256, third), third);
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] {
      world.sim.advance_host_ns(400 * kMicrosecond);
      world.deallocate(world.allocate(100'000, third), third);
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_EQ(world.looks(), 1u);
}

TEST(GrowDelay, memory_that_is_freed_on_the_own_stream_meanwhile_is_found) {
  World world;
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] { world.deallocate(mine, world.own); });
  };
  EXPECT_EQ(world.allocate(kHalf, world.own), mine);
  EXPECT_EQ(world.mapped(), mapped);
}

TEST(GrowDelay, is_not_for_what_the_own_stream_can_have_at_once) {
  World world;
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.use(mine, kHalf, world.own, 100 * kMillisecond);
  world.deallocate(mine, world.own);
  world.time_of(2 * kHalf);
  EXPECT_EQ(world.looks(), 0u);
}

// --- how long it is

TEST(GrowDelay, ends_and_the_pool_grows) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  expect_as_long(world.time_of(kHalf), kLongest);
  EXPECT_EQ(world.mapped(), mapped + kHalf);
  EXPECT_EQ(world.delayed(), 1u);
  EXPECT_EQ(world.sim.stream_query(world.other), driver::CuResult::not_ready);
}

TEST(GrowDelay, is_as_long_as_the_growth_is_large) {
  for (const Bytes growth : {2 * kPage, 4 * kPage, 64 * kPage}) {
    World world(without_early_growth(2 * kHalf + kPage));
    world.free_behind_a_kernel(100 * kMillisecond);
    const std::uint64_t longest = world.longest_for(growth);
    EXPECT_EQ(longest == kLongest, growth == 64 * kPage);
    expect_as_long(world.time_of(growth), longest);
  }
}

TEST(GrowDelay, is_the_shorter_the_more_is_mapped) {
  World world(without_early_growth(16 * kGiB + 2 * kHalf + kPage));
  world.allocate(16 * kGiB, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  const std::uint64_t longest = world.longest_for(kHalf);
  EXPECT_LT(longest, kLongest / 2);
  expect_as_long(world.time_of(kHalf), longest);
}

// A third of what is to be created is on its way.
TEST(GrowDelay, is_for_the_part_that_may_come_back) {
  const Bytes third = 10 * kPage;
  World world(without_early_growth(4 * kGiB + kHalf + kPage + third));
  world.allocate(4 * kGiB, world.own);
  world.free_behind_a_kernel(100 * kMillisecond, world.allocate(third, world.other), third);
  const std::uint64_t longest = world.longest_for(third);
  EXPECT_LT(longest, world.longest_for(3 * third));
  expect_as_long(world.time_of(3 * third), longest);
}

// All of it lacked when the delay began, and four pages by then.
TEST(GrowDelay, is_no_longer_than_what_is_lacking_by_then_is_worth) {
  World world(without_early_growth(2 * kHalf + kPage + kHalf / 2));
  const StreamHandle third = world.stream();
  const DevicePtr most = world.allocate(kHalf / 2, third);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t longest = world.longest_for(4 * kPage);
  world.hooks.on_sleep = [&] { world.on_another_thread([&] { world.deallocate(most, third); }); };
  expect_as_long(world.time_of(kHalf / 2 + 4 * kPage), longest);
  EXPECT_EQ(world.mapped(), mapped + 4 * kPage);
  EXPECT_EQ(world.delayed(), 1u);
}

// However small the steps are in which a program doubles its memory beside a stream that is never
// done.
TEST(GrowDelay, costs_a_program_that_doubles_its_memory_a_bounded_time) {
  for (const Bytes step : {4 * kPage, 16 * kPage, 64 * kPage}) {
    World world;
    world.allocate(kHalf, world.own);
    world.free_behind_a_kernel(100'000 * kMillisecond);
    const Bytes before = world.mapped();
    std::uint64_t growths = 0;
    const std::uint64_t begin = world.sim.now_ns();
    for (; world.mapped() < 2 * before; ++growths) world.allocate(step, world.own);
    EXPECT_GT(world.sim.now_ns() - begin, kLongest) << step;
    EXPECT_LT(world.sim.now_ns() - begin,
              kLongest * pool::GrowDelay::kWholeShare * 3 / 4 + growths * kCalls / 2)
        << step;
    EXPECT_EQ(world.statistics().host_waits, 0u);
  }
}

// --- when there is none

// With the one the pool grows; with the other the stream waits on the GPU.
TEST(GrowDelay, is_not_for_latency_nor_where_footprint_can_wait_on_the_gpu) {
  for (const settings::Prefer prefer : {settings::Prefer::latency, settings::Prefer::footprint}) {
    World world(preferring(prefer));
    world.free_behind_a_kernel(100 * kMillisecond);
    world.allocate(kHalf, world.own);
    EXPECT_EQ(world.looks(), 0u);
  }
}

// As much was mapped before, when the pool had grown in vain; some was given back, and is mapped
// again.
TEST(GrowDelay, is_for_a_record_of_mapped_memory_only) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const DevicePtr first = world.allocate(kHalf, world.own);
  ASSERT_GT(world.looks(), 0u);
  world.deallocate(first, world.own);
  world.sim.advance_host_ns(200 * kMillisecond);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  ASSERT_TRUE(world.pool->limits().trim(2 * kHalf).ok());
  world.free_behind_a_kernel(100 * kMillisecond);
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.looks(), 0u);
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.looks(), 0u) << "and this is one";
}

// What it may grow by anyway, although idle memory could be moved.
TEST(GrowDelay, is_not_for_early_growth) {
  const WorldOptions options = adaptive_world();
  World world(options);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes early =
      world.mapped() / 1000 * pool::tuning_of(options.config, kPage).growth_permille;
  world.allocate(round_down(early, kPage), world.own);
  EXPECT_EQ(world.looks(), 0u);
  world.allocate(round_up(early, kPage), world.own);
  EXPECT_GT(world.looks(), 0u) << "and this is more";
}

TEST(GrowDelay, is_not_for_memory_that_nobody_freed) {
  World world;
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.looks(), 0u);
}

// A stream that is alone records no event, and during a capture nothing that covers all streams may
// be recorded.
TEST(GrowDelay, is_not_for_memory_that_no_event_stands_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle alone = world.stream();
  world.allocate(kHalf, alone);
  const DevicePtr held = world.allocate(kHalf, alone);
  world.use(held, kHalf, alone, 100 * kMillisecond);
  world.deallocate(held, alone);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  const std::uint64_t begin = world.sim().now_ns();
  world.allocate(kHalf, world.stream());
  EXPECT_LT(world.sim().now_ns() - begin, kCalls);
  EXPECT_EQ(world.statistics().pauses, 0u);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
}

// Only synchronize() gives parked memory back. The event there is belongs to the caller's own
// stream.
TEST(GrowDelay, is_not_for_parked_memory) {
  WorldOptions options = adaptive_world();
  options.config.streams.any_stream = settings::AnyStreamOrder::park;
  World world(options);
  const DevicePtr parked = world.allocate(kHalf, world.other);
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.use(mine, kHalf, world.own, 100 * kMillisecond);
  world.deallocate(mine, world.own);
  world.deallocate(parked, std::nullopt);
  world.allocate(kHalf, world.own);
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.looks(), 0u);
}

TEST(GrowDelay, there_is_none_while_cleaning_up_is_put_off) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  world.pool->limits().defer_cleanup_begin();
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.looks(), 0u);
  EXPECT_TRUE(world.pool->limits().defer_cleanup_end().ok());
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.looks(), 0u);
}

// --- beside others

TEST(GrowDelay, holds_up_no_call_that_finds_what_it_needs) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t took = kLongest;
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] {
      const std::uint64_t begin = world.sim.now_ns();
      world.allocate(kHalf, world.other);
      took = world.sim.now_ns() - begin;
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_LT(took, kCalls);
}

// The other is delayed by no more than its own, and the first by no more than it would be alone.
TEST(GrowDelay, of_two_calls_is_no_longer_than_that_of_one) {
  World world;
  const StreamHandle third = world.stream();
  world.deallocate(world.allocate(256, third), third);
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t second = 0;
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] {
      const std::uint64_t begin = world.sim.now_ns();
      world.allocate(kHalf, third);
      second = world.sim.now_ns() - begin;
    });
  };
  expect_as_long(world.time_of(kHalf), kLongest);
  expect_as_long(second, kLongest);
  EXPECT_EQ(world.delayed(), 2u);
}

// --- what fails meanwhile

// The request needs no answer: there is memory for it.
TEST(GrowDelay, ends_where_nothing_can_be_learned) {
  for (const std::uint64_t query : {8U, 20U, 50U}) {
    World world;
    world.free_behind_a_kernel(100 * kMillisecond);
    const Bytes mapped = world.mapped();
    world.faults.set_plan(FaultPlan{
        {Call::event_query}, query, driver::CuResult::unknown, FaultPlan::Repeat::from_then_on});
    EXPECT_LT(world.time_of(kHalf), kLongest + kCalls) << query;
    EXPECT_GT(world.faults.fired(), 0u);
    EXPECT_EQ(world.mapped(), mapped + kHalf);
  }
}

TEST(GrowDelay, a_context_that_breaks_meanwhile_is_told_and_left_alone) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t calls = 0;
  world.hooks.on_sleep = [&] {
    calls = world.calls.memory_call_count();
    world.faults.set_plan(FaultPlan{{Call::event_query}, 1, driver::CuResult::illegal_address});
  };
  expect_error(world.pool->allocate({kHalf, 0, world.own}), ErrorCode::poisoned,
               {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  EXPECT_EQ(world.looks(), 1u);
  EXPECT_EQ(world.calls.memory_call_count(), calls);
}

}  // namespace
}  // namespace vpmm::test
