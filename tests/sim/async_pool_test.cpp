// SPDX-License-Identifier: Apache-2.0
// tests/sim: the stand-in for the driver's stream-ordered pools.
#include <gtest/gtest.h>

#include "sim/sim_fixture.hpp"

namespace vpmm::driver::sim {
namespace {

class PoolSim : public Sim {
 public:
  explicit PoolSim(const SimOptions& options = manual()) : Sim(options) {
    ok(driver.mem_pool_create(0, pool));
  }
  DevicePtr allocate(Bytes size, StreamHandle stream) {
    DevicePtr ptr{};
    ok(driver.mem_alloc_from_pool_async(size, pool, stream, ptr));
    return ptr;
  }
  std::uint64_t attribute(MemPoolAttribute which) {
    std::uint64_t value = 0;
    ok(driver.mem_pool_get_attribute(pool, which, value));
    return value;
  }
  void keep_everything() {
    ok(driver.mem_pool_set_attribute(pool, MemPoolAttribute::release_threshold, UINT64_MAX));
  }
  MemPoolHandle pool{};
};

TEST(SimPool, allocations_hold_bytes_and_sizes_are_counted_in_512) {
  PoolSim sim;
  const StreamHandle stream = sim.stream();
  const DevicePtr a = sim.allocate(1, stream);
  const DevicePtr b = sim.allocate(513, stream);
  EXPECT_EQ(sim.attribute(MemPoolAttribute::used_mem_current), 512U + 1024U);
  EXPECT_EQ(sim.attribute(MemPoolAttribute::reserved_mem_current), 2 * kMiB);
  EXPECT_EQ(sim.driver.census().pool_allocations, 2U);
  ok(sim.driver.memset_d8_async(b, 6, 513, stream));
  ok(sim.driver.stream_synchronize(stream));
  EXPECT_EQ(sim.read_back({b, 513}).back(), 6);
  ok(sim.driver.mem_free_async(a, stream));
  ok(sim.driver.mem_free_async(b, stream));
  EXPECT_EQ(sim.driver.mem_free_async(b, stream), CuResult::invalid_value);
  EXPECT_EQ(sim.attribute(MemPoolAttribute::used_mem_current), 0U);
  EXPECT_EQ(sim.attribute(MemPoolAttribute::used_mem_high), 512U + 1024U);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimPool, the_freeing_stream_gets_its_memory_back_at_once_and_others_only_when_complete) {
  PoolSim sim;
  sim.keep_everything();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const DevicePtr first = sim.allocate(2 * kMiB, a);
  sim.write({first, 2 * kMiB}, a);
  ok(sim.driver.mem_free_async(first, a));
  EXPECT_NE(sim.allocate(2 * kMiB, b), first);
  const DevicePtr again = sim.allocate(2 * kMiB, a);
  EXPECT_EQ(again, first);
  sim.write({again, 2 * kMiB}, a);
  ok(sim.driver.mem_free_async(again, a));
  sim.driver.run_until_idle();
  const DevicePtr other = sim.allocate(2 * kMiB, b);
  EXPECT_EQ(other, first);
  sim.write({other, 2 * kMiB}, b);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimPool, pending_neighbours_of_different_streams_do_not_become_one_block) {
  PoolSim sim;
  sim.keep_everything();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const DevicePtr left = sim.allocate(kMiB, a);
  sim.order(a, b);
  const DevicePtr right = sim.allocate(kMiB, b);
  ASSERT_EQ(right, left + kMiB);
  sim.write({left, kMiB}, a);
  sim.write({right, kMiB}, b);
  ok(sim.driver.mem_free_async(left, a));
  ok(sim.driver.mem_free_async(right, b));
  const DevicePtr both = sim.allocate(2 * kMiB, a);
  EXPECT_NE(both, left) << "the right half is still in use";
  sim.write({both, 2 * kMiB}, a);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimPool, misuse_by_another_stream_is_a_hazard) {
  PoolSim sim;
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const DevicePtr ptr = sim.allocate(4096, a);
  sim.read({ptr, 4096}, b);
  ok(sim.driver.mem_free_async(ptr, a));
  sim.read({ptr, 4096}, a);
  const std::vector<Hazard::Kind> expected = {Hazard::Kind::use_before_allocate,
                                              Hazard::Kind::use_after_free,
                                              Hazard::Kind::use_after_free};
  EXPECT_EQ(sim.kinds(), expected) << sim.hazards();
}

TEST(SimPool, synchronising_gives_back_what_is_above_the_threshold) {
  PoolSim sim;
  const StreamHandle stream = sim.stream();
  const DevicePtr ptr = sim.allocate(8 * kMiB, stream);
  const DevicePtr small = sim.allocate(512, stream);
  ok(sim.driver.mem_free_async(ptr, stream));
  EXPECT_EQ(sim.driver.census().physical_bytes, 10 * kMiB);
  ok(sim.driver.stream_synchronize(stream));
  EXPECT_EQ(sim.driver.census().physical_bytes, 2 * kMiB);
  EXPECT_EQ(sim.attribute(MemPoolAttribute::reserved_mem_high), 10 * kMiB);
  ok(sim.driver.mem_free_async(small, stream));
  ok(sim.driver.mem_pool_trim_to(sim.pool, 2 * kMiB));
  EXPECT_EQ(sim.driver.census().physical_bytes, 2 * kMiB);
  ok(sim.driver.mem_pool_trim_to(sim.pool, 1));
  EXPECT_EQ(sim.driver.census().physical_bytes, 2 * kMiB) << "at least that is kept";
  ok(sim.driver.mem_pool_trim_to(sim.pool, 0));
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
}

TEST(SimPool, complete_memory_in_pieces_is_merged_before_the_device_is_out_of_memory) {
  SimOptions options = Sim::manual();
  options.capacity = 8 * kMiB;
  PoolSim sim(options);
  sim.keep_everything();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  std::vector<DevicePtr> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(sim.allocate(2 * kMiB, a));
  DevicePtr ptr{};
  EXPECT_EQ(sim.driver.mem_alloc_from_pool_async(512, sim.pool, a, ptr), CuResult::out_of_memory);
  for (const DevicePtr piece : pieces) ok(sim.driver.mem_free_async(piece, a));
  sim.allocate(8 * kMiB, b);
}

TEST(SimPool, a_destroyed_pool_lives_until_its_last_allocation_is_freed) {
  PoolSim sim;
  const StreamHandle stream = sim.stream();
  const DevicePtr ptr = sim.allocate(512, stream);
  ok(sim.driver.mem_pool_destroy(sim.pool));
  DevicePtr other{};
  EXPECT_EQ(sim.driver.mem_alloc_from_pool_async(512, sim.pool, stream, other),
            CuResult::invalid_value);
  sim.write({ptr, 512}, stream);
  ok(sim.driver.mem_free_async(ptr, stream));
  EXPECT_EQ(sim.driver.census().pool_allocations, 0U);
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
}

TEST(SimPool, an_observed_allocator_may_hand_on_pool_memory) {
  PoolSim sim;
  sim.keep_everything();
  const StreamHandle a = sim.stream();
  for (int i = 0; i < 3; ++i) {
    const AddressRange range{sim.allocate(4096, a), 4000};
    sim.observer().on_allocate(range, a);
    sim.write(range, a);
    sim.observer().on_deallocate(range, a);
    ok(sim.driver.mem_free_async(range.begin, a));
  }
  const AddressRange plain{sim.allocate(4096, a), 4096};
  sim.write(plain, a);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimPool, a_reset_takes_the_pools_and_their_memory) {
  PoolSim sim;
  sim.allocate(4 * kMiB, sim.stream());
  ok(sim.driver.device_primary_ctx_reset(0));
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
  EXPECT_EQ(sim.driver.mem_pool_trim_to(sim.pool, 0), CuResult::invalid_value);
}

}  // namespace
}  // namespace vpmm::driver::sim
