// SPDX-License-Identifier: Apache-2.0
// tests/sim: pinned, registered and managed memory, and which allocation an address lies in.
#include <gtest/gtest.h>

#include <vector>

#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kHostPage = 4 * kKiB;

DevicePtr device_pointer(const void* host) {
  return DevicePtr{reinterpret_cast<std::uint64_t>(host)};
}

// Eight whole pages that no other test registers.
struct OwnMemory {
  alignas(kHostPage) std::uint8_t bytes[8 * kHostPage] = {};
  std::uint8_t* page(std::size_t n) { return bytes + n * kHostPage; }
};

TEST(SimHostMemory, pinned_memory_is_writable_and_freed_once) {
  Sim sim;
  void* host = nullptr;
  ok(sim.driver.mem_host_alloc(10000, 0, host));
  std::memset(host, 1, 10000);
  sim.write({device_pointer(host), 10000}, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
  sim.driver.run_until_idle();
  ok(sim.driver.mem_free_host(host));
  EXPECT_EQ(sim.driver.mem_free_host(host), CuResult::invalid_value);
}

TEST(SimHostMemory, its_device_pointer_is_its_own_address) {
  Sim sim;
  OwnMemory own;
  void* pinned = nullptr;
  DevicePtr ptr{};
  ok(sim.driver.mem_host_alloc(100, kHostMemoryWriteCombined, pinned));
  ok(sim.driver.mem_host_get_device_pointer(pinned, ptr));
  EXPECT_EQ(ptr, device_pointer(pinned));
  ok(sim.driver.mem_host_register(own.bytes + 5, 100, 0));
  ok(sim.driver.mem_host_get_device_pointer(own.bytes + 104, ptr));
  EXPECT_EQ(ptr, device_pointer(own.bytes + 104));
  EXPECT_EQ(sim.driver.mem_host_get_device_pointer(own.bytes + 4, ptr), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_host_get_device_pointer(own.bytes + 105, ptr), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_host_get_device_pointer(nullptr, ptr), CuResult::invalid_value);
}

TEST(SimHostMemory, registrations_share_no_page) {
  Sim sim;
  OwnMemory own;
  ok(sim.driver.mem_host_register(own.page(2) + 100, 2 * kHostPage, 0));  // pages 2 to 4
  EXPECT_EQ(sim.driver.mem_host_register(own.page(2), 1, 0),
            CuResult::host_memory_already_registered);
  EXPECT_EQ(sim.driver.mem_host_register(own.page(5) - 1, 1, 0),
            CuResult::host_memory_already_registered);
  EXPECT_EQ(sim.driver.mem_host_register(own.page(0), 8 * kHostPage, 0),
            CuResult::host_memory_already_registered);
  EXPECT_EQ(sim.driver.mem_host_register(own.page(1), kHostPage + 1, 0),
            CuResult::host_memory_already_registered);
  ok(sim.driver.mem_host_register(own.page(0), 2 * kHostPage, 0));
  ok(sim.driver.mem_host_register(own.page(5), kHostPage, 0));
  ok(sim.driver.mem_host_unregister(own.page(2) + 100));
  ok(sim.driver.mem_host_register(own.page(2), 3 * kHostPage, 0));
}

TEST(SimHostMemory,
     what_the_driver_pinned_is_freed_and_what_the_caller_registered_is_unregistered) {
  Sim sim;
  OwnMemory own;
  void* pinned = nullptr;
  ok(sim.driver.mem_host_alloc(100, 0, pinned));
  ok(sim.driver.mem_host_register(own.bytes, kHostPage, 0));
  EXPECT_EQ(sim.driver.mem_host_register(pinned, 100, 0), CuResult::host_memory_already_registered);
  EXPECT_EQ(sim.driver.mem_host_unregister(pinned), CuResult::host_memory_not_registered);
  EXPECT_EQ(sim.driver.mem_free_host(own.bytes), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_host_unregister(own.bytes + 1), CuResult::host_memory_not_registered);
  EXPECT_EQ(sim.driver.mem_host_unregister(nullptr), CuResult::invalid_value);
  ok(sim.driver.mem_free_host(pinned));
  ok(sim.driver.mem_host_unregister(own.bytes));
}

TEST(SimHostMemory, flags_are_those_that_cuda_has_and_this_machine_can_do) {
  Sim sim;
  OwnMemory own;
  void* pinned = nullptr;
  EXPECT_EQ(sim.driver.mem_host_alloc(100, 8, pinned), CuResult::invalid_value);
  ok(sim.driver.mem_host_alloc(100, 7, pinned));
  constexpr unsigned kIoMemory = 4;
  constexpr unsigned kReadOnly = 8;
  EXPECT_EQ(sim.driver.mem_host_register(own.bytes, 100, 16), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_host_register(own.bytes, 100, kIoMemory), CuResult::not_supported);
  EXPECT_EQ(sim.driver.mem_host_register(own.bytes, 100, kReadOnly), CuResult::not_supported);
  ok(sim.driver.mem_host_register(own.bytes, 100, kHostMemoryPortable | kHostMemoryDeviceMap));
}

TEST(SimHostMemory, a_range_that_leaves_the_addresses_is_invalid) {
  Sim sim;
  OwnMemory own;
  EXPECT_EQ(sim.driver.mem_host_register(own.bytes, ~Bytes{0}, 0), CuResult::invalid_value);
  EXPECT_EQ(
      sim.driver.mem_host_register(own.bytes, ~Bytes{0} - to_integer(device_pointer(own.bytes)), 0),
      CuResult::invalid_value);
}

// Work on host memory that is not pinned is a use of an address without mapping.
TEST(SimHostMemory, the_device_uses_host_memory_while_it_is_pinned) {
  Sim sim;
  OwnMemory own;
  const DevicePtr ptr = device_pointer(own.bytes);
  ok(sim.driver.mem_host_register(own.bytes, kHostPage, 0));
  ok(sim.driver.memset_d8(ptr, 7, kHostPage));
  EXPECT_EQ(sim.read_back({ptr, kHostPage}).back(), 7);
  EXPECT_EQ(own.bytes[kHostPage - 1], 7);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
  ok(sim.driver.memset_d8(ptr, 8, kHostPage + 1));
  EXPECT_EQ(sim.kinds(), std::vector{Hazard::Kind::unmapped_access});
  ok(sim.driver.mem_host_unregister(own.bytes));
  ok(sim.driver.memset_d8(ptr, 9, kHostPage));
  sim.driver.run_until_idle();
  EXPECT_EQ(own.bytes[0], 7);
  EXPECT_EQ(sim.driver.hazard_count(), 2U) << sim.hazards();
}

TEST(SimHostMemory, pinning_breaks_a_strict_capture_and_asking_for_a_device_pointer_does_not) {
  Sim sim;
  OwnMemory own;
  const StreamHandle stream = sim.stream();
  ok(sim.driver.mem_host_register(own.bytes, kHostPage, 0));
  ok(sim.driver.stream_begin_capture(stream, CaptureMode::global));
  DevicePtr ptr{};
  AddressRange range;
  ok(sim.driver.mem_host_get_device_pointer(own.bytes, ptr));
  ok(sim.driver.mem_get_address_range(ptr, range));
  CaptureStatus status{};
  ok(sim.driver.stream_is_capturing(stream, status));
  EXPECT_EQ(status, CaptureStatus::active);
  EXPECT_EQ(sim.driver.mem_host_unregister(own.bytes), CuResult::stream_capture_unsupported);
  EXPECT_EQ(sim.driver.mem_host_register(own.page(2), kHostPage, 0),
            CuResult::success);  // broken already
  ok(sim.driver.stream_is_capturing(stream, status));
  EXPECT_EQ(status, CaptureStatus::invalidated);
}

TEST(SimManagedMemory, it_is_device_memory_that_the_host_uses_too) {
  Sim sim;
  MemInfo before;
  MemInfo during;
  DevicePtr ptr{};
  ok(sim.driver.mem_get_info(before));
  ok(sim.driver.mem_alloc_managed(100, kManagedAttachGlobal, ptr));
  ok(sim.driver.mem_get_info(during));
  EXPECT_EQ(before.free - during.free, kPage);
  EXPECT_EQ(sim.driver.census().plain_allocations, 1U);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(to_integer(ptr));
  bytes[99] = 5;
  EXPECT_EQ(sim.read_back({ptr, 100}).back(), 5);
  ok(sim.driver.memset_d8(ptr, 6, 100));
  sim.driver.run_until_idle();
  EXPECT_EQ(bytes[99], 6);
  ok(sim.driver.mem_free(ptr));
  ok(sim.driver.mem_get_info(during));
  EXPECT_EQ(before.free, during.free);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimManagedMemory, every_device_may_use_it) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim sim(options);
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc_managed(kPage, kManagedAttachHost, ptr));
  sim.use_device(1);
  ok(sim.driver.memset_d8(ptr, 3, kPage));
  EXPECT_EQ(sim.read_back({ptr, 1}).front(), 3);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimManagedMemory, more_than_the_device_has_is_out_of_memory) {
  Sim sim;
  DevicePtr ptr{};
  EXPECT_EQ(sim.driver.mem_alloc_managed(5 * kGiB, kManagedAttachGlobal, ptr),
            CuResult::out_of_memory);
  EXPECT_EQ(ptr, DevicePtr{});
}

class SimAddressRange : public testing::Test {
 protected:
  AddressRange around(DevicePtr inside) {
    AddressRange range;
    ok(sim.driver.mem_get_address_range(inside, range));
    return range;
  }
  CuResult look_up(DevicePtr inside) {
    AddressRange range;
    return sim.driver.mem_get_address_range(inside, range);
  }
  Sim sim;
};

TEST_F(SimAddressRange, neighbours_in_one_page_are_told_apart) {
  DevicePtr first{};
  DevicePtr second{};
  ok(sim.driver.mem_alloc(1000, first));
  ok(sim.driver.mem_alloc(1000, second));
  EXPECT_EQ(around(first + 999).begin, first);
  EXPECT_EQ(around(second + 999).begin, second);
  ok(sim.driver.mem_free(first));
  EXPECT_EQ(look_up(first), CuResult::not_found);
  EXPECT_EQ(around(second).begin, second);
}

TEST_F(SimAddressRange, stream_ordered_and_pinned_memory_are_found_too) {
  MemPoolHandle pool{};
  DevicePtr ptr{};
  void* host = nullptr;
  ok(sim.driver.mem_pool_create(0, pool));
  ok(sim.driver.mem_alloc_from_pool_async(kPage, pool, sim.stream(), ptr));
  ok(sim.driver.mem_host_alloc(100, 0, host));
  EXPECT_EQ(around(ptr + kPage - 1), (AddressRange{ptr, kPage}));
  EXPECT_EQ(around(device_pointer(host) + 99), (AddressRange{device_pointer(host), 100}));
}

TEST_F(SimAddressRange, reserved_but_unmapped_and_freed_addresses_are_not_found) {
  const AddressRange range = sim.reserve(2 * kPage);
  sim.map({range.begin, kPage}, sim.create(kPage));
  EXPECT_EQ(look_up(range.begin + kPage), CuResult::not_found);
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc(4 * kMiB, ptr));
  EXPECT_EQ(look_up(ptr + 4 * kMiB), CuResult::not_found);
  ok(sim.driver.mem_free(ptr));
  EXPECT_EQ(look_up(ptr), CuResult::not_found);
  EXPECT_EQ(look_up(DevicePtr{}), CuResult::not_found);
}

// --- whose memory it is

class SimPointerDevice : public testing::Test {
 protected:
  static SimOptions two_devices() {
    SimOptions options = Sim::manual();
    options.device_count = 2;
    return options;
  }
  DeviceOrdinal device_of(DevicePtr ptr) {
    DeviceOrdinal device = -1;
    EXPECT_EQ(sim.driver.pointer_get_device(ptr, device), CuResult::success);
    return device;
  }
  void expect_nobodys(DevicePtr ptr) {
    DeviceOrdinal device = -1;
    EXPECT_EQ(sim.driver.pointer_get_device(ptr, device), CuResult::invalid_value);
    EXPECT_EQ(device, -1);
  }
  Sim sim{two_devices()};
};

TEST_F(SimPointerDevice, is_the_one_that_has_the_memory_whatever_is_current) {
  DevicePtr of_first{};
  DevicePtr of_second{};
  ok(sim.driver.mem_alloc(1000, of_first));
  sim.use_device(1);
  ok(sim.driver.mem_alloc(4 * kMiB, of_second));
  const AddressRange range = sim.reserve(2 * kPage);
  ChunkHandle chunk{};
  ok(sim.driver.mem_create(kPage, {1, false, false}, chunk));
  sim.map({range.begin, kPage}, chunk);
  for (const ContextHandle current : {sim.context, ContextHandle{}}) {
    ok(sim.driver.ctx_set_current(current));
    EXPECT_EQ(device_of(of_first + 999), 0);
    EXPECT_EQ(device_of(of_second + 4 * kMiB - 1), 1);
    EXPECT_EQ(device_of(range.begin + kPage - 1), 1);
    expect_nobodys(range.begin + kPage);
  }
}

TEST_F(SimPointerDevice,
       is_nobodys_of_host_memory_that_is_not_pinned_and_of_memory_that_was_freed) {
  int mine = 0;
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc(4 * kMiB, ptr));
  ok(sim.driver.mem_free(ptr));
  for (const DevicePtr none : {ptr, DevicePtr{}, device_pointer(&mine)}) expect_nobodys(none);
}

}  // namespace
}  // namespace vpmm::driver::sim
