// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with host memory that the device may use, and with managed
// memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "support/gpu_test.hpp"

namespace vpmm::test::host_memory_test {
namespace {

using driver::kHostMemoryDeviceMap;
using driver::kHostMemoryPortable;
using driver::kManagedAttachGlobal;
using driver::kManagedAttachHost;
using ::testing::AnyOf;

constexpr Bytes kSize = 1 * kMiB;
constexpr unsigned kNoSuchFlag = 1u << 20;

DevicePtr device_pointer(const void* host) {
  return DevicePtr{reinterpret_cast<std::uint64_t>(host)};
}

bool all_are(const void* host, std::uint32_t pattern) {
  const auto* words = static_cast<const std::uint32_t*>(host);
  return std::all_of(words, words + kSize / sizeof pattern,
                     [&](std::uint32_t word) { return word == pattern; });
}

class HostMemoryContract : public GpuTest {
 protected:
  // Memory of the process in pages of its own, so that no other registration can be on them.
  struct Free {
    void operator()(void* host) const { std::free(host); }
  };
  std::unique_ptr<void, Free> own_{std::aligned_alloc(64 * kKiB, kSize)};
  void* host() { return own_.get(); }

  void expect_device_writes_reach(void* memory) {
    DevicePtr ptr{};
    ASSERT_OK(driver().mem_host_get_device_pointer(memory, ptr));
    fill({ptr, kSize}, 0x5EED'0001);
    EXPECT_TRUE(all_are(memory, 0x5EED'0001));
  }
};
VPMM_ON_BOTH_DRIVERS(HostMemoryContract);

TEST_P(HostMemoryContract, the_device_reaches_host_memory_under_one_addressing) {
  using driver::DeviceAttribute;
  for (const DeviceAttribute attribute :
       {DeviceAttribute::can_map_host_memory, DeviceAttribute::unified_addressing,
        DeviceAttribute::managed_memory}) {
    int value = 0;
    EXPECT_OK(driver().device_get_attribute(attribute, 0, value));
    EXPECT_EQ(value, 1) << static_cast<int>(attribute);
  }
}

TEST_P(HostMemoryContract, a_kernel_writes_to_pinned_memory) {
  for (const unsigned flags :
       {0u, kHostMemoryDeviceMap, kHostMemoryPortable | kHostMemoryDeviceMap}) {
    SCOPED_TRACE(flags);
    void* pinned = nullptr;
    ASSERT_OK(driver().mem_host_alloc(kSize, flags, pinned));
    expect_device_writes_reach(pinned);
    EXPECT_OK(driver().mem_free_host(pinned));
  }
}

TEST_P(HostMemoryContract, a_kernel_writes_to_registered_memory_which_stays_the_callers) {
  for (const unsigned flags :
       {0u, kHostMemoryDeviceMap, kHostMemoryPortable | kHostMemoryDeviceMap}) {
    SCOPED_TRACE(flags);
    ASSERT_OK(driver().mem_host_register(host(), kSize, flags));
    expect_device_writes_reach(host());
    EXPECT_OK(driver().mem_host_unregister(host()));
    EXPECT_TRUE(all_are(host(), 0x5EED'0001));
    std::fill_n(static_cast<std::uint32_t*>(host()), kSize / sizeof(std::uint32_t), 0u);
  }
}

TEST_P(HostMemoryContract, copies_and_fills_take_mapped_host_memory_as_device_memory) {
  ASSERT_OK(driver().mem_host_register(host(), kSize, kHostMemoryDeviceMap));
  DevicePtr ptr{};
  ASSERT_OK(driver().mem_host_get_device_pointer(host(), ptr));
  const AddressRange range = memory(granularity());
  const StreamHandle work = stream();
  EXPECT_OK(driver().memset_d8_async(ptr, 0x11, kSize, work));
  EXPECT_OK(driver().memcpy_device_to_device_async(range.begin, ptr, kSize, work));
  EXPECT_OK(driver().memset_d8_async(ptr, 0x22, kSize, work));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_TRUE(all_are(host(), 0x2222'2222));
  EXPECT_TRUE(holds({range.begin, kSize}, 0x1111'1111));
  EXPECT_OK(driver().memcpy_device_to_device_async(ptr, range.begin, kSize, work));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_TRUE(all_are(host(), 0x1111'1111));
  EXPECT_OK(driver().mem_host_unregister(host()));
}

TEST_P(HostMemoryContract, the_device_pointer_of_a_place_inside_is_that_far_inside) {
  ASSERT_OK(driver().mem_host_register(host(), kSize, kHostMemoryDeviceMap));
  DevicePtr begin{};
  DevicePtr inside{};
  EXPECT_OK(driver().mem_host_get_device_pointer(host(), begin));
  EXPECT_OK(driver().mem_host_get_device_pointer(static_cast<char*>(host()) + 12'345, inside));
  EXPECT_EQ(inside - begin, 12'345u);
  EXPECT_OK(driver().mem_host_unregister(host()));
}

TEST_P(HostMemoryContract, memory_that_is_not_pinned_has_no_device_pointer) {
  DevicePtr ptr{};
  EXPECT_EQ(driver().mem_host_get_device_pointer(host(), ptr), CuResult::invalid_value);
  ASSERT_OK(driver().mem_host_register(host(), kSize, kHostMemoryDeviceMap));
  ASSERT_OK(driver().mem_host_unregister(host()));
  EXPECT_EQ(driver().mem_host_get_device_pointer(host(), ptr), CuResult::invalid_value);
  EXPECT_EQ(ptr, DevicePtr{});
}

TEST_P(HostMemoryContract, memory_is_registered_once_and_unregistered_once) {
  auto* const middle = static_cast<char*>(host()) + kSize / 2;
  ASSERT_OK(driver().mem_host_register(host(), kSize, 0));
  EXPECT_EQ(driver().mem_host_register(host(), kSize, 0), CuResult::host_memory_already_registered);
  EXPECT_EQ(driver().mem_host_register(middle, kSize / 2, 0),
            CuResult::host_memory_already_registered);
  EXPECT_THAT(driver().mem_host_unregister(middle),
              AnyOf(CuResult::host_memory_not_registered, CuResult::invalid_value));
  EXPECT_OK(driver().mem_host_unregister(host()));
  EXPECT_EQ(driver().mem_host_unregister(host()), CuResult::host_memory_not_registered);
}

TEST_P(HostMemoryContract, nothing_is_neither_pinned_nor_registered) {
  void* pinned = nullptr;
  EXPECT_EQ(driver().mem_host_alloc(kSize, kNoSuchFlag, pinned), CuResult::invalid_value);
  EXPECT_EQ(pinned, nullptr);
  EXPECT_OK(driver().mem_host_alloc(0, 0, pinned)) << "unlike device memory";
  EXPECT_EQ(driver().mem_host_register(host(), 0, 0), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_host_register(nullptr, kSize, 0), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_host_register(host(), kSize, kNoSuchFlag), CuResult::invalid_value);
}

class ManagedMemoryContract : public GpuTest {
 protected:
  void expect_host_and_device_use_one_address(unsigned flags) {
    DevicePtr ptr{};
    ASSERT_OK(driver().mem_alloc_managed(kSize, flags, ptr));
    auto* const words = reinterpret_cast<std::uint32_t*>(to_integer(ptr));
    std::fill_n(words, kSize / sizeof *words, 7u);
    EXPECT_TRUE(holds({ptr, kSize}, 7));
    fill({ptr, kSize}, 0x5EED'0002);
    EXPECT_TRUE(all_are(words, 0x5EED'0002));
    EXPECT_OK(driver().mem_free(ptr));
  }
};
VPMM_ON_BOTH_DRIVERS(ManagedMemoryContract);

TEST_P(ManagedMemoryContract, host_and_device_use_one_address) {
  expect_host_and_device_use_one_address(kManagedAttachGlobal);
}

TEST_P(ManagedMemoryContract, memory_attached_to_the_host_is_used_by_devices_too) {
  expect_host_and_device_use_one_address(kManagedAttachHost);
}

TEST_P(ManagedMemoryContract, a_size_and_one_kind_of_attachment_must_be_given) {
  DevicePtr ptr{};
  EXPECT_EQ(driver().mem_alloc_managed(0, kManagedAttachGlobal, ptr), CuResult::invalid_value);
  for (const unsigned flags : {0u, kManagedAttachGlobal | kManagedAttachHost, kNoSuchFlag}) {
    EXPECT_EQ(driver().mem_alloc_managed(kSize, flags, ptr), CuResult::invalid_value) << flags;
  }
  EXPECT_EQ(ptr, DevicePtr{});
}

class AddressRangeContract : public GpuTest {
 protected:
  AddressRange around(DevicePtr inside) {
    AddressRange range;
    EXPECT_OK(driver().mem_get_address_range(inside, range));
    return range;
  }
  void expect_found(AddressRange allocation) {
    for (const DevicePtr inside :
         {allocation.begin, allocation.begin + allocation.size / 2, allocation.end() - 1}) {
      const AddressRange found = around(inside);
      EXPECT_EQ(found.begin, allocation.begin);
      EXPECT_GE(found.size, allocation.size);
    }
  }
};
VPMM_ON_BOTH_DRIVERS(AddressRangeContract);

TEST_P(AddressRangeContract, of_an_allocation_it_is_the_whole_allocation) {
  for (const Bytes size : {100_B, 4 * kMiB}) {
    DevicePtr ptr{};
    ASSERT_OK(driver().mem_alloc(size, ptr));
    expect_found({ptr, size});
    EXPECT_OK(driver().mem_free(ptr));
  }
  DevicePtr managed{};
  ASSERT_OK(driver().mem_alloc_managed(kSize, kManagedAttachGlobal, managed));
  expect_found({managed, kSize});
  EXPECT_OK(driver().mem_free(managed));
}

TEST_P(AddressRangeContract, of_mapped_chunks_it_is_the_mapping) {
  const Bytes unit = granularity();
  const AddressRange range = reserve(3 * unit);
  const AddressRange second{range.begin + unit, 2 * unit};
  map({range.begin, unit}, create(unit));
  map(second, create(2 * unit));
  EXPECT_EQ(around(range.begin + unit - 1), (AddressRange{range.begin, unit}));
  EXPECT_EQ(around(second.end() - 1), second);
}

TEST_P(AddressRangeContract, memory_of_a_device_tells_which_one_it_is_on) {
  DevicePtr plain{};
  ASSERT_OK(driver().mem_alloc(kSize, plain));
  for (const DevicePtr ptr : {plain, plain + kSize - 1, memory(granularity()).begin + 100}) {
    driver::DeviceOrdinal device = -1;
    EXPECT_OK(driver().pointer_get_device(ptr, device));
    EXPECT_EQ(device, 0);
  }
  EXPECT_OK(driver().mem_free(plain));
  driver::DeviceOrdinal device = -1;
  int mine = 0;
  EXPECT_EQ(driver().pointer_get_device(DevicePtr{reinterpret_cast<std::uintptr_t>(&mine)}, device),
            CuResult::invalid_value);
  EXPECT_EQ(device, -1);
}

TEST_P(AddressRangeContract, what_the_driver_did_not_give_is_not_found) {
  int mine = 0;
  AddressRange range;
  EXPECT_THAT(driver().mem_get_address_range(device_pointer(&mine), range),
              AnyOf(CuResult::not_found, CuResult::invalid_value));
  EXPECT_EQ(range, AddressRange{});
}

}  // namespace
}  // namespace vpmm::test::host_memory_test
