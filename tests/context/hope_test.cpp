// context: a pause before new memory is created, in the hope of what other threads use.
#include "context/patience_fixture.hpp"

namespace vpmm::testing {
namespace {

class Hope : public Patience {
 protected:
  // A call that is no hit.
  static void have_company(World& world) {
    world.on_another_thread([&] { world.allocate(2 * kPage, world.other); });
    world.interlude.looks = 0;
  }
  static constexpr std::uint64_t kHope = kPatience / 3;
};

// No event tells of anything here: what others use may come back.
TEST_F(Hope, what_another_thread_frees_is_used_instead_of_new_memory) {
  World world;
  const DevicePtr theirs = world.allocate(kHalf, world.other);
  have_company(world);
  const Bytes mapped = world.mapped();
  const std::uint64_t before = world.pool->statistics().pauses;
  world.interlude.between_looks = [&] { world.on_another_thread([&] { world.deallocate(theirs, world.other); }); };
  EXPECT_LT(world.time_of(kHalf), kHope);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_EQ(world.pool->statistics().pauses, before + 1);
}

// What is freed is not complete yet. By then it is known to be on its way, and the pause may last longer.
TEST_F(Hope, what_another_thread_frees_behind_a_kernel_is_waited_for) {
  World world;
  const DevicePtr theirs = world.allocate(kHalf, world.other);
  const DevicePtr idle = world.allocate(kHalf / 2, world.other);
  have_company(world);
  world.deallocate(idle, world.other);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] { world.free_behind_a_kernel(2 * kHope, theirs); });
  };
  EXPECT_GT(world.time_of(kHalf + kHalf / 2), kHope);
  EXPECT_EQ(world.mapped(), mapped);
}

TEST_F(Hope, is_a_third_as_long_and_the_pool_grows) {
  World world;
  have_company(world);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped + kHalf);
  EXPECT_GT(took, kHope);
  EXPECT_LT(took, kHope + kGrowth);
}

TEST_F(Hope, is_as_long_as_the_growth_is_large) {
  for (const Bytes growth : {32 * kMiB, 64 * kMiB, kMuch}) {
    World world;
    have_company(world);
    const std::uint64_t took = world.time_of(growth);
    EXPECT_GT(took, patience(growth) / 3) << growth;
    EXPECT_LT(took, patience(growth) / 3 + kGrowth) << growth;
  }
}

// A fifth of what would be created is on its way, which is too little for a pause without other threads.
TEST_F(Hope, is_for_growth_beyond_the_budget_too) {
  World world;
  const DevicePtr held = world.allocate(kHalf, world.other);
  have_company(world);
  world.free_behind_a_kernel(100 * kMillisecond, held);
  const std::uint64_t took = world.time_of(5 * kHalf);
  EXPECT_GT(took, kHope);
  EXPECT_LT(took, kHope + kGrowth);
}

TEST_F(Hope, there_is_no_hope_without_another_thread) {
  World world;
  EXPECT_LT(world.time_of(kHalf), kGrowth);
  EXPECT_EQ(world.interlude.looks, 0);
}

TEST_F(Hope, there_is_no_hope_when_the_other_thread_was_here_10_ms_ago) {
  for (const bool is_past : {false, true}) {
    World world;
    have_company(world);
    world.sim.advance_host_ns((is_past ? 10 : 9) * kMillisecond);
    world.allocate(kHalf, world.own);
    EXPECT_EQ(world.interlude.looks == 0, is_past);
  }
}

TEST_F(Hope, there_is_no_hope_when_the_other_thread_used_what_was_in_hand_only) {
  World world;
  world.on_another_thread([&] { world.deallocate(world.allocate(kPage, world.own), world.own); });
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

TEST_F(Hope, there_is_hope_for_the_default_only) {
  for (const pool::Prefer prefer : {pool::Prefer::latency, pool::Prefer::footprint}) {
    World world(preferring(prefer));
    have_company(world);
    world.allocate(kHalf, world.own);
    EXPECT_EQ(world.interlude.looks, 0);
  }
}

TEST_F(Hope, there_is_no_hope_while_cleaning_up_is_put_off) {
  World world;
  have_company(world);
  world.pool->defer_cleanup_begin();
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
  EXPECT_TRUE(world.pool->defer_cleanup_end().ok());
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.interlude.looks, 0) << "the other thread was here lately enough";
}

TEST_F(Hope, there_is_hope_for_a_record_of_mapped_memory_only) {
  World world;
  world.deallocate(world.allocate(kHalf + 2 * kPage, world.own), world.own);
  ASSERT_TRUE(world.pool->synchronize().ok());
  ASSERT_TRUE(world.pool->trim(kHalf).ok());
  have_company(world);
  const Bytes mapped = world.mapped();
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.mapped(), mapped);
  EXPECT_EQ(world.interlude.looks, 0);
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.interlude.looks, 0) << "and this is one";
}

// Five pauses of 12 ms took what there was.
TEST_F(Hope, takes_of_the_same_twentieth) {
  World world;
  world.free_behind_a_kernel(10'000 * kMillisecond);
  for (int i = 0; i < 5; ++i) EXPECT_GT(world.time_of(kMuch), kPatience) << i;
  have_company(world);
  world.allocate(5 * kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

// What is idle is served at once. It is another stream's, so this is no plain hit.
TEST_F(Hope, calls_that_come_meanwhile_do_not_stand_behind_hope) {
  World world;
  const StreamHandle third = world.stream();
  const StreamHandle fourth = world.stream();
  const Bytes little = 8 * kPage;
  const DevicePtr idle = world.allocate(little, third);
  have_company(world);
  world.deallocate(idle, third);
  std::uint64_t took = kPatience;
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      const std::uint64_t begin = world.sim.now_ns();
      world.allocate(little, fourth);
      took = world.sim.now_ns() - begin;
    });
  };
  EXPECT_GT(world.time_of(kHalf), kHope);
  EXPECT_LT(took, kGrowth);
}

TEST_F(Hope, calls_that_would_create_no_more_than_the_one_that_hopes_grow_at_once) {
  for (const Bytes bytes : {kMuch / 2, kMuch}) {
    World world;
    have_company(world);
    const std::uint64_t before = world.pool->statistics().pauses;
    std::uint64_t took = kPatience;
    world.interlude.between_looks = [&] {
      world.on_another_thread([&] {
        const std::uint64_t begin = world.sim.now_ns();
        world.allocate(bytes, world.other);
        took = world.sim.now_ns() - begin;
      });
    };
    EXPECT_GT(world.time_of(kMuch), kHope) << "the first goes on";
    EXPECT_LT(took, kGrowth) << bytes;
    EXPECT_EQ(world.pool->statistics().pauses, before + 1);
  }
}

// No time passes for the second, so it hopes until the first has grown.
TEST_F(Hope, a_call_that_would_create_more_than_the_one_that_hopes_takes_over) {
  World world;
  have_company(world);
  const std::uint64_t before = world.pool->statistics().pauses;
  std::atomic<bool> is_served{false};
  std::thread larger;
  world.interlude.between_looks = [&] {
    larger = std::thread([&] {
      world.interlude.held_up = std::this_thread::get_id();
      EXPECT_EQ(world.sim.ctx_set_current(world.context), driver::CuResult::success);
      world.allocate(2 * kMuch, world.other);
      is_served = true;
    });
    while (!is_served && world.pool->statistics().pauses < before + 2) std::this_thread::yield();
  };
  EXPECT_LT(world.time_of(kMuch), kGrowth);
  EXPECT_EQ(world.interlude.looks, 1);
  EXPECT_FALSE(is_served);
  world.sim.advance_host_ns(kHope);
  larger.join();
  EXPECT_EQ(world.pool->statistics().pauses, before + 2);
}

}  // namespace
}  // namespace vpmm::testing
