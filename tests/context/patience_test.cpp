// context: a pause before new memory is created, for what other streams are about to be done with.
#include "context/patience_fixture.hpp"

namespace vpmm::testing {
namespace {

TEST_F(Patience, memory_that_is_complete_in_a_moment_is_used_instead_of_new_memory) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_GT(took, 250 * kMicrosecond);
  EXPECT_LT(took, 600 * kMicrosecond);
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
  EXPECT_EQ(world.pool->statistics().gpu_waits, 0u) << "no stream was put behind the other";
  EXPECT_EQ(world.pool->statistics().host_waits, 0u);
}

// Allocated on the caller's stream, freed on the other: it needs both.
TEST_F(Patience, is_for_memory_that_was_handed_over_too) {
  World world;
  const DevicePtr made = world.allocate(kHalf, world.own);
  EXPECT_EQ(world.sim.stream_synchronize(world.own), driver::CuResult::success);
  world.free_behind_a_kernel(300 * kMicrosecond, made);
  const Bytes mapped = world.mapped();
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
}

// Whoever sees first that it is complete: here a call of another thread, in the pause, which holds no lock.
TEST_F(Patience, memory_that_another_call_sees_first_is_found) {
  World world;
  const StreamHandle third = world.stream();
  world.deallocate(world.allocate(256, third), third);
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  const int looks = world.interlude.looks;
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      world.sim.advance_host_ns(400 * kMicrosecond);
      world.deallocate(world.allocate(100'000, third), third);
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_EQ(world.interlude.looks - looks, 1);
}

TEST_F(Patience, memory_that_is_freed_on_the_own_stream_meanwhile_is_found) {
  World world;
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] { world.on_another_thread([&] { world.deallocate(mine, world.own); }); };
  EXPECT_EQ(world.allocate(kHalf, world.own), mine);
  EXPECT_EQ(world.mapped(), mapped);
}

TEST_F(Patience, ends_and_the_pool_grows) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped + kHalf - kPage) << "its idle page moves";
  EXPECT_GT(took, kPatience);
  EXPECT_LT(took, kPatience + kGrowth);
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
  EXPECT_EQ(world.sim.stream_query(world.other), driver::CuResult::not_ready);
}

// 30 MiB, for the idle page moves.
TEST_F(Patience, is_as_long_as_the_growth_is_large) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const std::uint64_t took = world.time_of(32 * kMiB);
  EXPECT_GT(took, patience(30 * kMiB));
  EXPECT_LT(took, patience(30 * kMiB) + kGrowth);
}

// Of 16.5 GiB, where 528 MiB are worth 12 ms.
TEST_F(Patience, is_the_shorter_the_more_is_mapped) {
  World world;
  world.allocate(16 * kGiB, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_GT(took, kPatience * 254 / 529);
  EXPECT_LT(took, kPatience * 254 / 528 + kGrowth);
}

// 32 MiB each, and what was mapped for those before, less 1.5 % of the 512 MiB that were in use.
TEST_F(Patience, is_the_longer_the_more_is_mapped_beyond_the_budget) {
  World world;
  world.free_behind_a_kernel(1'000 * kMillisecond);
  world.time_of(32 * kMiB);
  const Bytes budget = 8 * kMiB;
  for (const Bytes before : {30 * kMiB, 62 * kMiB}) {
    const std::uint64_t took = world.time_of(32 * kMiB);
    EXPECT_GT(took, patience(32 * kMiB + before - budget)) << before;
    EXPECT_LT(took, patience(32 * kMiB + before - budget) + kGrowth) << before;
  }
}

// A third of what is to be created is on its way, so a third of what is at stake counts.
TEST_F(Patience, is_for_the_part_that_may_come_back) {
  World world;
  const Bytes third = 42 * kMiB;
  const DevicePtr held = world.allocate(third, world.other);
  world.use(held, third, world.other, 100 * kMillisecond);
  world.deallocate(held, world.other);
  const std::uint64_t took = world.time_of(kMuch + kPage);
  EXPECT_GT(took, patience(third));
  EXPECT_LT(took, patience(third) + kGrowth);
}

// Five of 12 ms at once; those are a twentieth of the time when 1,200 ms have passed, and another may begin a second
// before.
TEST_F(Patience, takes_a_twentieth_of_the_time_once_it_took_50_ms) {
  World world;
  world.free_behind_a_kernel(10'000 * kMillisecond);
  const std::uint64_t begin = world.sim.now_ns();
  for (int i = 0; i < 5; ++i) EXPECT_GT(world.time_of(kMuch), kPatience) << i;
  EXPECT_LT(world.time_of(kMuch), kGrowth);
  world.sim.advance_host_ns(begin + 190 * kMillisecond - world.sim.now_ns());
  EXPECT_LT(world.time_of(kMuch), kGrowth);
  world.sim.advance_host_ns(30 * kMillisecond);
  EXPECT_GT(world.time_of(kMuch), kPatience);
  EXPECT_EQ(world.pool->statistics().pauses, 6u);
}

// What was idle when the pause began is taken meanwhile, by its own stream, which need not make way.
TEST_F(Patience, is_as_long_as_what_is_lacking_by_then_is_worth) {
  World world;
  const StreamHandle third = world.stream();
  const DevicePtr idle = world.allocate(kHalf - kPage, world.own);
  const DevicePtr another = world.allocate(kHalf / 2, third);
  world.free_behind_a_kernel(6'500 * kMicrosecond);
  world.use(idle, kHalf - kPage, world.own, 5 * kMillisecond);
  world.deallocate(idle, world.own);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      EXPECT_EQ(world.allocate(kHalf - kPage, world.own), idle);
      world.deallocate(another, third);
    });
  };
  const std::uint64_t took = world.time_of(kHalf + 8 * kPage);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_GT(took, 6 * kMillisecond) << "18 MiB that lacked were worth less than 2 ms";
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
}

// All of it lacked when the pause began, and 62 MiB by then.
TEST_F(Patience, is_no_longer_than_what_is_lacking_by_then_is_worth) {
  World world;
  const StreamHandle third = world.stream();
  const DevicePtr most = world.allocate(kHalf, third);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] { world.on_another_thread([&] { world.deallocate(most, third); }); };
  const std::uint64_t took = world.time_of(kHalf + 64 * kMiB);
  EXPECT_EQ(world.mapped(), mapped + 62 * kMiB);
  EXPECT_GT(took, patience(62 * kMiB));
  EXPECT_LT(took, patience(62 * kMiB) + kGrowth);
}

// The rest of 12 ms behind the first, and as long for what it lacks itself.
TEST_F(Patience, calls_that_come_meanwhile_stand_behind_it) {
  const TwoCalls calls = two_calls(3 * kMillisecond);
  EXPECT_GT(calls.second_ns, kPatience - 3'100 * kMicrosecond + kPatience);
  EXPECT_LT(calls.second_ns, kPatience - 3 * kMillisecond + kPatience + kGrowth);
  EXPECT_EQ(calls.pauses, 2u);
}

// Half of what is idle would be enough for it, and the first lacks as much, which comes back after 3 ms.
TEST_F(Patience, calls_that_come_meanwhile_leave_what_is_idle_to_it) {
  World world;
  const StreamHandle third = world.stream();
  const StreamHandle fourth = world.stream();
  const DevicePtr idle = world.allocate(kHalf - kPage, third);
  world.free_behind_a_kernel(3 * kMillisecond);
  world.deallocate(idle, third);
  std::atomic<std::uint64_t> served_ns{0};
  std::thread latecomer;
  world.interlude.between_looks = [&] {
    latecomer = std::thread([&] {
      world.interlude.held_up = std::this_thread::get_id();
      EXPECT_EQ(world.sim.ctx_set_current(world.context), driver::CuResult::success);
      world.allocate(kHalf / 2, fourth);
      served_ns = world.sim.now_ns();
    });
    while (served_ns == 0 && world.pool->statistics().pauses < 2) std::this_thread::yield();
  };
  const std::uint64_t begin = world.sim.now_ns();
  world.allocate(kHalf + kHalf / 2, world.own);
  latecomer.join();
  EXPECT_GT(served_ns - begin, 2 * kMillisecond);
}

TEST_F(Patience, nobody_stands_behind_it_while_cleaning_up_is_put_off) {
  World world;
  const StreamHandle third = world.stream();
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t took = kPatience;
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      world.pool->defer_cleanup_begin();
      const std::uint64_t begin = world.sim.now_ns();
      world.allocate(kMuch, third);
      took = world.sim.now_ns() - begin;
      EXPECT_TRUE(world.pool->defer_cleanup_end().ok());
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_LT(took, kGrowth);
}

// Memory of its own stream is of no use to the first.
TEST_F(Patience, calls_that_come_meanwhile_use_what_is_their_own_streams_at_once) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t took = kPatience;
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      const std::uint64_t begin = world.sim.now_ns();
      world.allocate(kHalf, world.other);
      took = world.sim.now_ns() - begin;
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_LT(took, kGrowth);
}

TEST_F(Patience, a_call_that_comes_when_it_is_over_has_only_its_own) {
  const TwoCalls calls = two_calls(kPatience);
  EXPECT_GT(calls.second_ns, kPatience);
  EXPECT_LT(calls.second_ns, kPatience + kGrowth);
}

TEST_F(Patience, is_for_the_default_only) {
  for (const pool::Prefer prefer : {pool::Prefer::latency, pool::Prefer::footprint}) {
    World world(preferring(prefer));
    world.free_behind_a_kernel(100 * kMillisecond);
    world.allocate(kHalf, world.own);
    EXPECT_EQ(world.interlude.looks, 0);
  }
}

// A quarter of what would be created, at least, must be about to come back.
TEST_F(Patience, is_not_for_little) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  world.allocate(5 * kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

// As much was mapped before, when the pool had grown in vain; some was given back, and is mapped again.
TEST_F(Patience, is_for_a_record_of_mapped_memory_only) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const DevicePtr first = world.allocate(kHalf, world.own);
  ASSERT_GT(world.interlude.looks, 0);
  world.deallocate(first, world.own);
  world.sim.advance_host_ns(200 * kMillisecond);
  ASSERT_TRUE(world.pool->synchronize().ok());
  ASSERT_TRUE(world.pool->trim(2 * kHalf).ok());
  world.free_behind_a_kernel(100 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.interlude.looks, 0) << "and this is one";
}

TEST_F(Patience, is_not_for_growth_within_the_budget) {
  World world;
  world.allocate(32 * kGiB, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

// It can have that at once; of others, an eighth of what it lacks is pending.
TEST_F(Patience, the_own_streams_memory_needs_none) {
  World world;
  const DevicePtr little = world.allocate(kHalf / 8, world.own);
  world.use(little, kHalf / 8, world.own, 200 * kMillisecond);
  world.deallocate(little, world.own);
  world.free_behind_a_kernel(200 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(2 * kHalf, world.other);
  EXPECT_EQ(world.interlude.looks, 0);
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

// Only synchronize() gives parked memory back. The event there is belongs to the caller's own stream.
TEST_F(Patience, is_not_for_parked_memory) {
  context::Config config = adaptive_world().config;
  config.any_stream = context::AnyStreamOrder::park;
  World world(config);
  const DevicePtr parked = world.allocate(kHalf, world.other);
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.use(mine, kHalf, world.own, 100 * kMillisecond);
  world.deallocate(mine, world.own);
  world.deallocate(parked, std::nullopt);
  world.allocate(kHalf, world.own);
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

TEST_F(Patience, ends_where_nothing_can_be_learned) {
  for (const std::uint64_t query : {8, 20, 50}) {
    World world;
    world.free_behind_a_kernel(100 * kMillisecond);
    const Bytes mapped = world.mapped();
    world.faults.set_plan(FaultPlan{{Call::event_query}, query, driver::CuResult::unknown});
    EXPECT_LT(world.time_of(kHalf), kPatience) << query;
    EXPECT_GT(world.mapped(), mapped);
  }
}

TEST_F(Patience, a_context_that_breaks_meanwhile_is_told_and_left_alone) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t calls = 0;
  world.interlude.between_looks = [&] {
    calls = world.calls.memory_call_count();
    world.faults.set_plan(FaultPlan{{Call::event_query}, 1, driver::CuResult::illegal_address});
  };
  expect_error(world.pool->allocate({kHalf, 0, world.own}), ErrorCode::poisoned, {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  EXPECT_EQ(world.interlude.looks, 1);
  EXPECT_EQ(world.calls.memory_call_count(), calls);
}

}  // namespace
}  // namespace vpmm::testing
