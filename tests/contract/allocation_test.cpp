// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with plain, stream-ordered and host allocations, and say
// about devices.
#include <algorithm>
#include <limits>

#include "support/gpu_test.hpp"

namespace vpmm::test::allocation_test {
namespace {

using driver::MemPoolAttribute;
using driver::MemPoolHandle;

constexpr Bytes kSize = 4 * kMiB;

class AllocationContract : public GpuTest {
 protected:
  Bytes twice_the_device() {
    Bytes total = 0;
    EXPECT_OK(driver().device_total_mem(0, total));
    return 2 * total;
  }
  std::uint64_t attribute(MemPoolHandle pool, MemPoolAttribute which) {
    std::uint64_t value = 0;
    EXPECT_OK(driver().mem_pool_get_attribute(pool, which, value));
    return value;
  }
};
VPMM_ON_BOTH_DRIVERS(AllocationContract);

TEST_P(AllocationContract, devices_have_a_name_an_identity_and_memory) {
  int version = 0;
  int count = 0;
  EXPECT_OK(driver().driver_get_version(version));
  EXPECT_GE(version, 11040);
  EXPECT_OK(driver().device_get_count(count));
  ASSERT_GE(count, 1);
  std::string name;
  driver::Uuid uuid{};
  Bytes total = 0;
  EXPECT_OK(driver().device_get_name(0, name));
  EXPECT_FALSE(name.empty());
  EXPECT_OK(driver().device_get_uuid(0, uuid));
  EXPECT_NE(uuid, driver::Uuid{});
  EXPECT_OK(driver().device_total_mem(0, total));
  EXPECT_GE(total, 1_GiB);
  EXPECT_EQ(driver().device_get_name(count, name), CuResult::invalid_device);
}

TEST_P(AllocationContract, attributes_say_that_what_the_pool_needs_is_there) {
  using driver::DeviceAttribute;
  for (const DeviceAttribute needed : {DeviceAttribute::virtual_memory_management_supported,
                                       DeviceAttribute::memory_pools_supported}) {
    int value = 0;
    EXPECT_OK(driver().device_get_attribute(needed, 0, value));
    EXPECT_EQ(value, 1) << static_cast<int>(needed);
  }
}

TEST_P(AllocationContract, plain_memory_holds_what_is_written) {
  DevicePtr ptr{};
  ASSERT_OK(driver().mem_alloc(kSize, ptr));
  fill({ptr, kSize}, 0x1234'5678);
  EXPECT_TRUE(holds({ptr, kSize}, 0x1234'5678));
  EXPECT_OK(driver().mem_free(ptr));
}

TEST_P(AllocationContract, more_than_the_device_has_is_out_of_memory_and_gives_no_address) {
  DevicePtr ptr{};
  EXPECT_EQ(driver().mem_alloc(twice_the_device(), ptr), CuResult::out_of_memory);
  EXPECT_EQ(ptr, DevicePtr{});
}

TEST_P(AllocationContract, pinned_host_memory_takes_part_in_copies) {
  void* host = nullptr;
  ASSERT_OK(driver().mem_host_alloc(kSize, 0, host));
  auto* words = static_cast<std::uint32_t*>(host);
  std::fill_n(words, kSize / sizeof *words, 77u);
  const AddressRange range = memory(kSize);
  const StreamHandle work = stream();
  EXPECT_OK(driver().memcpy_host_to_device_async(range.begin, host, kSize, work));
  EXPECT_OK(driver().memset_d8_async(range.begin, 0, sizeof *words, work));
  EXPECT_OK(driver().memcpy_device_to_host_async(host, range.begin, kSize, work));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], 77u);
  EXPECT_OK(driver().mem_free_host(host));
}

class PoolContract : public AllocationContract {
 protected:
  void SetUp() override {
    AllocationContract::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    work_ = stream();
    ASSERT_OK(driver().mem_pool_create(0, pool_));
  }
  void TearDown() override {
    if (pool_ != MemPoolHandle{}) {
      EXPECT_OK(driver().mem_pool_destroy(pool_));
    }
    AllocationContract::TearDown();
  }
  void keep_memory() {
    EXPECT_OK(driver().mem_pool_set_attribute(pool_, MemPoolAttribute::release_threshold,
                                              std::numeric_limits<std::uint64_t>::max()));
  }
  DevicePtr allocate(Bytes size) {
    DevicePtr ptr{};
    EXPECT_OK(driver().mem_alloc_from_pool_async(size, pool_, work_, ptr));
    return ptr;
  }
  void free_and_wait(DevicePtr ptr) {
    EXPECT_OK(driver().mem_free_async(ptr, work_));
    EXPECT_OK(driver().stream_synchronize(work_));
  }

  StreamHandle work_{};
  MemPoolHandle pool_{};
};
VPMM_ON_BOTH_DRIVERS(PoolContract);

TEST_P(PoolContract, stream_ordered_memory_is_used_in_stream_order) {
  const DevicePtr ptr = allocate(kSize);
  EXPECT_OK(world().launch_fill(work_, {ptr, kSize}, 0xCAFE'0001));
  EXPECT_OK(driver().stream_synchronize(work_));
  EXPECT_TRUE(holds({ptr, kSize}, 0xCAFE'0001));
  free_and_wait(ptr);
}

TEST_P(PoolContract, used_and_reserved_bytes_follow_allocations_and_frees) {
  keep_memory();
  const DevicePtr ptr = allocate(kSize);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::used_mem_current), kSize);
  const std::uint64_t reserved = attribute(pool_, MemPoolAttribute::reserved_mem_current);
  EXPECT_GE(reserved, kSize);
  free_and_wait(ptr);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::used_mem_current), 0u);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::used_mem_high), kSize);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::reserved_mem_current), reserved);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::reserved_mem_high), reserved);
}

TEST_P(PoolContract, trimming_gives_back_what_is_not_used) {
  keep_memory();
  const DevicePtr kept = allocate(kSize);
  free_and_wait(allocate(64_MiB));
  EXPECT_GE(attribute(pool_, MemPoolAttribute::reserved_mem_current), 64_MiB);
  EXPECT_OK(driver().mem_pool_trim_to(pool_, 0));
  EXPECT_GE(attribute(pool_, MemPoolAttribute::reserved_mem_current), kSize);
  EXPECT_LT(attribute(pool_, MemPoolAttribute::reserved_mem_current), 64_MiB);
  free_and_wait(kept);
  EXPECT_OK(driver().mem_pool_trim_to(pool_, 0));
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::reserved_mem_current), 0u);
}

TEST_P(PoolContract, without_a_threshold_a_synchronisation_gives_everything_back) {
  free_and_wait(allocate(64_MiB));
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::reserved_mem_current), 0u);
}

TEST_P(PoolContract, freed_memory_is_used_again_on_its_stream_without_new_memory) {
  keep_memory();
  const DevicePtr first = allocate(kSize);
  const std::uint64_t reserved = attribute(pool_, MemPoolAttribute::reserved_mem_current);
  EXPECT_OK(world().launch_busy(work_, 50 * kMilliseconds));
  EXPECT_OK(driver().mem_free_async(first, work_));
  const DevicePtr second = allocate(kSize);
  EXPECT_EQ(attribute(pool_, MemPoolAttribute::reserved_mem_current), reserved);
  free_and_wait(second);
}

TEST_P(PoolContract, more_than_the_device_has_is_out_of_memory) {
  DevicePtr ptr{};
  EXPECT_EQ(driver().mem_alloc_from_pool_async(twice_the_device(), pool_, work_, ptr),
            CuResult::out_of_memory);
  EXPECT_EQ(ptr, DevicePtr{});
}

}  // namespace
}  // namespace vpmm::test::allocation_test
