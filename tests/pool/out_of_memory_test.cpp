// SPDX-License-Identifier: Apache-2.0
// pool: what a pool can do by itself when memory is short, at its own limit and on a GPU that other
// processes hold half of. In which order, and what else there is:
// tests/context/shortage_order_test.cpp.
#include <string>
#include <utility>
#include <vector>

#include "pool/limited_pool.hpp"

namespace vpmm::pool {
namespace {

class OutOfMemorySteps : public LimitedPool, public ::testing::WithParamInterface<Limit> {
 protected:
  OutOfMemorySteps() : LimitedPool(GetParam()) {}
};

// No address is left but those of zombies.
TEST_P(OutOfMemorySteps, zombies_are_unmapped) {
  constexpr Bytes kLarge = kPages / 2 + 2;
  config.va_size = (kPages + kLarge) * kPage;
  open();
  const DevicePtr half = take(kPages / 2, a);
  Vector<DevicePtr> live;
  for (Bytes i = 0; i < kPages / 2; ++i) live.push_back(take(1, a));
  driver.on[Call::mem_address_reserve] = [] { return CuResult::out_of_memory; };
  for (const DevicePtr ptr : {half, live[1], live[3]}) give_back(ptr);
  give_back(take(kLarge, a));
  ASSERT_EQ(figures().zombie_bytes, kLarge * kPage);
  live.clear();
  for (Bytes i = 0; i < kLarge; ++i) live.push_back(take(1, a));
  for (std::size_t i = 0; i < live.size(); i += 2) give_back(live[i]);
  EXPECT_FALSE(allocate(kLarge / 2, a).ok());
  const Result<bool> is_back = pool->sweep_all(lock);
  EXPECT_TRUE(is_back && is_back.value());
  take(kLarge / 2, a);
  EXPECT_EQ(figures().chunks_released, 0u);
  driver.on.clear();
}

// A chunk that the driver would not take back counts until a sweep gets rid of it.
TEST_P(OutOfMemorySteps, what_the_driver_would_not_take_back_is_offered_again) {
  open();
  give_back(take(kPages, a));
  driver.on[Call::mem_release] = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->trim(lock, 0).ok());
  driver.on.clear();
  ASSERT_EQ(figures().quarantined_bytes, kPages * kPage);
  EXPECT_FALSE(allocate(kPages, a).ok());
  const Result<bool> is_back = pool->sweep_all(lock);
  EXPECT_TRUE(is_back && is_back.value());
  EXPECT_EQ(figures().quarantined_bytes, 0u);
  take(kPages, a);
}

// While there is room it would rather grow.
TEST_P(OutOfMemorySteps, every_idle_chunk_moves_whatever_the_policy_says) {
  config.page_chunks = false;
  config.prefer = settings::Prefer::latency;
  config.chunk_max = kPage;
  open();
  take_every_other_page();
  take(kPages / 2, a);
  EXPECT_EQ(figures().chunks_moved, kPages / 2);
  EXPECT_EQ(figures().chunks_released, 0u);
}

// The number of mappings is at its limit, so nothing can move.
TEST_P(OutOfMemorySteps, idle_chunks_are_given_back_to_make_one_that_fits) {
  config.limits.max_mappings = kPages;
  open();
  take_every_other_page();
  EXPECT_FALSE(allocate(kPages / 2, a, Effort::move_first).ok());
  const Result<bool> has_room = pool->make_room(lock, request(kPages / 2));
  EXPECT_TRUE(has_room && has_room.value());
  take(kPages / 2, a, Effort::few_mappings);
  EXPECT_EQ(figures().chunks_moved, 0u);
  EXPECT_EQ(figures().chunks_released, kPages / 2);
  EXPECT_EQ(figures().mappings, kPages / 2 + 1);
}

TEST_P(OutOfMemorySteps, idle_chunks_that_would_not_be_enough_are_kept) {
  config.limits.max_mappings = kPages;
  open();
  take_every_other_page();
  const Result<bool> has_room = pool->make_room(lock, request(kPages / 2 + 1));
  EXPECT_TRUE(has_room && !has_room.value());
  EXPECT_EQ(figures().chunks_released, 0u);
}

// The chunks of the idle memory are mapped at old addresses, too.
TEST_P(OutOfMemorySteps, chunks_are_given_back_once_no_old_address_maps_them) {
  open();
  take_every_other_page();
  give_back(take(kPages / 2, a));
  ASSERT_EQ(figures().zombie_bytes, kPages / 2 * kPage);
  const Result<bool> has_room = pool->make_room(lock, request(kPages / 2));
  EXPECT_TRUE(has_room && has_room.value());
  EXPECT_EQ(figures().chunks_released, kPages / 2);
}

// --- what is not tried

TEST_P(OutOfMemorySteps, what_is_larger_than_all_there_is_creates_nothing) {
  open();
  take(1, a);
  const std::uint64_t created = driver.counts[Call::mem_create];
  EXPECT_FALSE(allocate(kPages, a).ok());
  EXPECT_FALSE(pool->preallocate(lock, (kPages + 1) * kPage).ok());
  EXPECT_LE(driver.counts[Call::mem_create], created + 2) << "each in one piece at most, and once";
  EXPECT_EQ(driver.counts[Call::mem_release], 0u);
  EXPECT_EQ(figures().failed_plans, 0u);
}

TEST_P(OutOfMemorySteps,
       a_plan_that_the_driver_refused_is_not_carried_out_again_when_nothing_came_back) {
  driver.on[Call::mem_create] = [] { return CuResult::out_of_memory; };
  open();
  EXPECT_FALSE(allocate(kPages / 2, a).ok());
  EXPECT_EQ(driver.counts[Call::mem_create], 1u);
  EXPECT_EQ(figures().failed_plans, 1u);
  driver.on.clear();
}

TEST_P(OutOfMemorySteps, of_several_plans_the_one_that_the_gpu_has_room_for_is_carried_out) {
  open();
  take_every_other_page();
  take(kPages / 2, a);
  EXPECT_EQ(figures().failed_plans, 0u);
  EXPECT_EQ(figures().chunks_moved, kPages / 2);
}

class DriverRoom : public PoolFixture<HookedDriver> {
 protected:
  static constexpr Bytes kGpuPages = 1000;
  DriverRoom() : PoolFixture(options()) { open(); }
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = kGpuPages * kPage;
    return options;
  }
  bool is_held = true;  // memory that the driver would give to a call
};

TEST_F(DriverRoom, the_driver_is_asked_when_half_of_what_was_free_is_used_up) {
  for (Bytes pages = 0; pages < kGpuPages; ++pages) take(1, a);
  EXPECT_LE(driver.counts[Call::mem_get_info], 11u) << "a thousand halved ten times is nothing";
  EXPECT_GE(driver.counts[Call::mem_get_info], 2u);
}

// The driver gives what its stream-ordered pools hold unused to a call that needs it, and does not
// call it free.
TEST_F(DriverRoom, what_the_driver_does_not_call_free_is_tried_for_in_one_piece) {
  driver::ChunkHandle unused{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, unused));
  driver.on[Call::mem_create] = [&] {
    return std::exchange(is_held, false) ? sim.mem_release(unused) : CuResult::success;
  };
  take(20, a);
  EXPECT_EQ(figures().failed_plans, 0u);
  EXPECT_EQ(figures().chunks, 20u);
  driver.on.clear();
}

TEST_F(DriverRoom, a_try_that_the_driver_would_not_take_back_is_offered_again) {
  driver::ChunkHandle unused{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, unused));
  driver.on[Call::mem_create] = [&] {
    return std::exchange(is_held, false) ? sim.mem_release(unused) : CuResult::success;
  };
  driver.on[Call::mem_release] = [] { return CuResult::unknown; };
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().quarantined_bytes, 20 * kPage);
  EXPECT_EQ(figures().peak_mapped_bytes, 20 * kPage);
  driver.on.clear();
  take(20, a);
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().quarantined_bytes, 0u);
}

TEST_F(DriverRoom, it_is_asked_anew_when_a_plan_has_failed) {
  take(1, a);
  driver::ChunkHandle others{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, others));
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().failed_plans, 1u) << "another process took what was free";
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().failed_plans, 1u);
  expect(sim.mem_release(others));
  take(20, a);
}

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemorySteps, every_limit(), name_of_limit);

}  // namespace
}  // namespace vpmm::pool
