// SPDX-License-Identifier: Apache-2.0
// tests/sim: chunks, reservations, mappings, access rights and capacity, as the real driver treats
// them.
#include <gtest/gtest.h>

#include <array>

#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

std::uint8_t& byte_at(DevicePtr ptr) { return *reinterpret_cast<std::uint8_t*>(to_integer(ptr)); }

TEST(SimMemory, two_mappings_of_one_chunk_are_the_same_bytes) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange one = sim.reserve(kPage);
  const AddressRange two = sim.reserve(kPage);
  sim.map(one, chunk);
  sim.map(two, chunk);
  byte_at(one.begin + 4097) = 77;
  EXPECT_EQ(byte_at(two.begin + 4097), 77);
}

TEST(SimMemory, the_bytes_live_until_the_handle_and_the_last_mapping_are_gone) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange one = sim.reserve(kPage);
  const AddressRange two = sim.reserve(kPage);
  sim.map(one, chunk);
  byte_at(one.begin) = 5;
  sim.map(two, chunk);
  ok(sim.driver.mem_release(chunk));
  ok(sim.driver.mem_unmap(one));
  EXPECT_EQ(byte_at(two.begin), 5);
  EXPECT_EQ(sim.driver.census().physical_bytes, kPage);
  ok(sim.driver.mem_unmap(two));
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
  EXPECT_EQ(sim.driver.census().chunks, 0U);
}

TEST(SimMemory, a_released_handle_cannot_be_mapped_or_released_again) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange range = sim.reserve(2 * kPage);
  sim.map({range.begin, kPage}, chunk);
  ok(sim.driver.mem_release(chunk));
  EXPECT_EQ(sim.driver.mem_map({range.begin + kPage, kPage}, 0, chunk), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_release(chunk), CuResult::invalid_value);
}

TEST(SimMemory, fresh_chunks_read_as_zero_after_a_dirty_one_was_released) {
  Sim sim;
  const AddressRange range = sim.reserve(kPage);
  const ChunkHandle dirty = sim.create(kPage);
  sim.map(range, dirty);
  byte_at(range.begin) = 1;
  ok(sim.driver.mem_unmap(range));
  ok(sim.driver.mem_release(dirty));
  sim.map(range, sim.create(kPage));
  EXPECT_EQ(byte_at(range.begin), 0);
}

TEST(SimMemoryDeathTest, a_touch_of_an_unmapped_address_faults) {
  Sim sim;
  const AddressRange range = sim.memory();
  byte_at(range.begin) = 1;
  ok(sim.driver.mem_unmap(range));
  EXPECT_DEATH(byte_at(range.begin) = 1, "");
}

TEST(SimMemoryDeathTest, a_touch_of_a_mapping_without_access_faults) {
  Sim sim;
  const AddressRange range = sim.reserve(kPage);
  ok(sim.driver.mem_map(range, 0, sim.create(kPage)));
  EXPECT_DEATH(byte_at(range.begin) = 1, "");
}

TEST(SimMemory, eight_tebibytes_can_be_reserved_and_both_ends_used) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer leaves less than 8 TiB of addresses";
#endif
  Sim sim;
  const AddressRange range = sim.reserve(8 * kTiB);
  const AddressRange last{range.end() - kPage, kPage};
  sim.map({range.begin, kPage}, sim.create(kPage));
  sim.map(last, sim.create(kPage));
  byte_at(last.end() - 1) = 3;
  EXPECT_EQ(byte_at(range.begin), 0);
  EXPECT_EQ(byte_at(last.end() - 1), 3);
}

TEST(SimMemory, reservations_honour_alignment_and_the_address_space) {
  SimOptions options = Sim::manual();
  options.address_space = kGiB;
  Sim sim(options);
  DevicePtr begin{};
  ok(sim.driver.mem_address_reserve(512 * kMiB, 256 * kMiB, DevicePtr{}, begin));
  EXPECT_TRUE(is_aligned(begin, 256 * kMiB));
  EXPECT_EQ(sim.driver.mem_address_reserve(513 * kMiB + kMiB, 0, DevicePtr{}, begin),
            CuResult::out_of_memory);
  EXPECT_EQ(sim.driver.mem_address_reserve(kPage, 3 * kMiB, DevicePtr{}, begin),
            CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_address_reserve(kPage + 1, 0, DevicePtr{}, begin),
            CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_address_reserve(0, 0, DevicePtr{}, begin), CuResult::invalid_value);
}

TEST(SimMemory, low_bits_of_addresses_are_the_same_in_each_machine) {
  Sim one(Sim::manual()), other(Sim::manual());
  for (const Bytes size : {kPage, 3 * kGiB, 8 * kPage})
    EXPECT_EQ(to_integer(one.reserve(size).begin) % kGiB,
              to_integer(other.reserve(size).begin) % kGiB);
}

TEST(SimMemory, only_whole_reservations_without_mappings_are_freed) {
  Sim sim;
  const AddressRange range = sim.reserve(2 * kPage);
  sim.map({range.begin, kPage}, sim.create(kPage));
  EXPECT_EQ(sim.driver.mem_address_free(range), CuResult::invalid_value);
  ok(sim.driver.mem_unmap({range.begin, kPage}));
  EXPECT_EQ(sim.driver.mem_address_free({range.begin, kPage}), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_address_free({range.begin + kPage, kPage}), CuResult::invalid_value);
  ok(sim.driver.mem_address_free(range));
  EXPECT_EQ(sim.driver.mem_address_free(range), CuResult::invalid_value);
}

TEST(SimMemory, only_whole_chunks_at_offset_zero_are_mapped) {
  Sim sim;
  const AddressRange range = sim.reserve(4 * kPage);
  const ChunkHandle chunk = sim.create(2 * kPage);
  EXPECT_EQ(sim.driver.mem_map({range.begin, kPage}, kPage, chunk), CuResult::not_supported);
  EXPECT_EQ(sim.driver.mem_map({range.begin, kPage}, 0, chunk), CuResult::not_supported);
  EXPECT_EQ(sim.driver.mem_map({range.begin, 3 * kPage}, 0, chunk), CuResult::not_supported);
  ok(sim.driver.mem_map({range.begin, 2 * kPage}, 0, chunk));
}

TEST(SimMemory, mapping_outside_a_reservation_or_over_a_mapping_is_refused) {
  Sim sim;
  const AddressRange range = sim.reserve(2 * kPage);
  const ChunkHandle chunk = sim.create(2 * kPage);
  const ChunkHandle small = sim.create(kPage);
  EXPECT_EQ(sim.driver.mem_map({range.begin + kPage, 2 * kPage}, 0, chunk),
            CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_map({DevicePtr{kPage}, kPage}, 0, small), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_map({range.begin + 4096, kPage}, 0, small), CuResult::invalid_value);
  ok(sim.driver.mem_map({range.begin + kPage, kPage}, 0, small));
  EXPECT_EQ(sim.driver.mem_map(range, 0, chunk), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_map({range.begin + kPage, kPage}, 0, small), CuResult::invalid_value);
}

TEST(SimMemory, a_run_of_whole_mappings_is_unmapped_at_once_and_a_part_is_refused) {
  Sim sim;
  const AddressRange range = sim.reserve(4 * kPage);
  sim.map({range.begin, 2 * kPage}, sim.create(2 * kPage));
  sim.map({range.begin + 2 * kPage, kPage}, sim.create(kPage));
  EXPECT_EQ(sim.driver.mem_unmap({range.begin, kPage}), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_unmap({range.begin + kPage, 2 * kPage}), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_unmap(range), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.census().mappings, 2U);
  ok(sim.driver.mem_unmap({range.begin, 3 * kPage}));
  EXPECT_EQ(sim.driver.census().mappings, 0U);
}

TEST(SimMemory, access_is_set_on_whole_mapped_ranges_only) {
  Sim sim;
  const AddressRange range = sim.reserve(2 * kPage);
  ok(sim.driver.mem_map({range.begin, kPage}, 0, sim.create(kPage)));
  const std::array<AccessDescriptor, 1> own{{{0}}};
  const std::array<AccessDescriptor, 1> missing{{{1}}};
  EXPECT_EQ(sim.driver.mem_set_access(range, own), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_set_access({range.begin, 4096}, own), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_set_access({range.begin, kPage}, {}), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_set_access({range.begin, kPage}, missing), CuResult::invalid_value);
  ok(sim.driver.mem_set_access({range.begin, kPage}, own));
}

TEST(SimMemory, the_mapping_limit_shows_when_access_is_set) {
  SimOptions options = Sim::manual();
  options.max_mappings = 2;
  Sim sim(options);
  const AddressRange first = sim.memory();
  sim.memory();
  const AddressRange third = sim.reserve(kPage);
  ok(sim.driver.mem_map(third, 0, sim.create(kPage)));
  const std::array<AccessDescriptor, 1> own{{{0}}};
  EXPECT_EQ(sim.driver.mem_set_access(third, own), CuResult::out_of_memory);
  ok(sim.driver.mem_unmap(first));
  ok(sim.driver.mem_set_access(third, own));
}

TEST(SimMemory, capacity_is_per_device_and_shared_with_other_processes) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  options.capacity = 8 * kPage;
  options.used_by_others = 2 * kPage;
  Sim sim(options);
  sim.create(6 * kPage);
  ChunkHandle chunk{};
  EXPECT_EQ(sim.driver.mem_create(kPage, {0, false, false}, chunk), CuResult::out_of_memory);
  sim.create(4 * kPage, 1);
  sim.driver.set_used_by_others(0, kPage);
  MemInfo info;
  ok(sim.driver.mem_get_info(info));
  EXPECT_EQ(info.free, kPage);
  EXPECT_EQ(info.total, 8 * kPage);
  sim.create(kPage);
}

TEST(SimMemory, access_of_a_peer_is_refused_where_devices_cannot_reach_each_other) {
  for (const bool is_supported : {true, false}) {
    SimOptions options = Sim::manual();
    options.device_count = 2;
    options.peer_access_supported = is_supported;
    Sim sim(options);
    bool can = !is_supported;
    ok(sim.driver.device_can_access_peer(1, 0, can));
    EXPECT_EQ(can, is_supported);
    const AddressRange memory = sim.reserve(kPage);
    ok(sim.driver.mem_map(memory, 0, sim.create(kPage)));
    const std::array<AccessDescriptor, 2> both{{{0}, {1}}};
    EXPECT_EQ(sim.driver.mem_set_access(memory, both),
              is_supported ? CuResult::success : CuResult::invalid_device);
    const std::array<AccessDescriptor, 1> own{{{0}}};
    ok(sim.driver.mem_set_access(memory, own));
    ok(sim.driver.mem_unmap(memory));
  }
}

TEST(SimMemory, chunks_are_multiples_of_the_granularity_and_know_their_device) {
  Sim sim;
  ChunkHandle chunk{};
  EXPECT_EQ(sim.driver.mem_create(kPage + 4096, {0, false, false}, chunk), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_create(0, {0, false, false}, chunk), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_create(kPage, {1, false, false}, chunk), CuResult::invalid_device);
  EXPECT_EQ(sim.driver.mem_create(kPage, {-1, false, false}, chunk), CuResult::invalid_device);
}

TEST(SimMemory, options_take_capabilities_away) {
  SimOptions options = Sim::manual();
  options.vmm_supported = false;
  options.memory_pools_supported = false;
  Sim sim(options);
  ChunkHandle chunk{};
  DevicePtr begin{};
  MemPoolHandle pool{};
  int value = 1;
  EXPECT_EQ(sim.driver.mem_create(kPage, {0, false, false}, chunk), CuResult::not_supported);
  EXPECT_EQ(sim.driver.mem_address_reserve(kPage, 0, DevicePtr{}, begin), CuResult::not_supported);
  EXPECT_EQ(sim.driver.mem_pool_create(0, pool), CuResult::not_supported);
  ok(sim.driver.device_get_attribute(DeviceAttribute::virtual_memory_management_supported, 0,
                                     value));
  EXPECT_EQ(value, 0);
}

TEST(SimMemory, mapping_calls_need_no_context) {
  SimDriver driver(Sim::manual());
  ok(driver.init());
  ChunkHandle chunk{};
  DevicePtr begin{};
  const std::array<AccessDescriptor, 1> own{{{0}}};
  ok(driver.mem_address_reserve(kPage, 0, DevicePtr{}, begin));
  ok(driver.mem_create(kPage, {0, false, false}, chunk));
  ok(driver.mem_map({begin, kPage}, 0, chunk));
  ok(driver.mem_set_access({begin, kPage}, own));
  ok(driver.mem_unmap({begin, kPage}));
  ok(driver.mem_release(chunk));
  ok(driver.mem_address_free({begin, kPage}));
  MemInfo info;
  EXPECT_EQ(driver.mem_get_info(info), CuResult::invalid_context);
}

TEST(SimMemory, nothing_works_before_init_but_the_version) {
  SimDriver driver(Sim::manual());
  int value = 0;
  EXPECT_EQ(driver.device_get_count(value), CuResult::not_initialized);
  ok(driver.driver_get_version(value));
  EXPECT_EQ(value, 13000);
}

TEST(SimMemory, the_drivers_own_mappings_do_not_count_against_the_limit) {
  SimOptions options = Sim::manual();
  options.max_mappings = 1;
  Sim sim(options);
  std::array<DevicePtr, 3> plain{};
  for (DevicePtr& ptr : plain) ok(sim.driver.mem_alloc(4 * kMiB, ptr));
  sim.memory();
  for (const DevicePtr ptr : plain) ok(sim.driver.mem_free(ptr));
  EXPECT_EQ(sim.driver.census().mappings, 1U);
}

TEST(SimPlainMemory, allocations_large_and_small_hold_bytes_and_give_capacity_back) {
  Sim sim;
  DevicePtr large{};
  DevicePtr small{};
  ok(sim.driver.mem_alloc(5 * kMiB, large));
  ok(sim.driver.mem_alloc(100, small));
  ok(sim.driver.memset_d8(large, 9, 5 * kMiB));
  ok(sim.driver.memset_d8(small, 8, 100));
  EXPECT_EQ(sim.read_back({large + 5 * kMiB - 1, 1}).front(), 9);
  EXPECT_EQ(sim.read_back({small, 100}).back(), 8);
  EXPECT_EQ(sim.driver.census().plain_allocations, 2U);
  ok(sim.driver.mem_free(large));
  ok(sim.driver.mem_free(small));
  EXPECT_EQ(sim.driver.mem_free(small), CuResult::invalid_value);
  ok(sim.driver.mem_free(DevicePtr{}));
  EXPECT_EQ(sim.driver.census().plain_allocations, 0U);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimPlainMemory, a_free_waits_for_all_work_of_the_device) {
  Sim sim;
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc(4 * kMiB, ptr));
  const StreamHandle stream = sim.stream();
  sim.write({ptr, 4 * kMiB}, stream);
  ok(sim.driver.mem_free(ptr));
  ok(sim.driver.stream_query(stream));
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

}  // namespace
}  // namespace vpmm::driver::sim
