// SPDX-License-Identifier: Apache-2.0
// capi: process-wide and private pools, their limits and what ends them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Pools = SimPool;

vpmm_pool* default_pool() {
  vpmm_pool* pool = nullptr;
  EXPECT_EQ(vpmm_default_pool(0, &pool), VPMM_OK) << vpmm_last_error();
  return pool;
}

TEST(DefaultPool, is_the_same_for_everybody) {
  std::array<vpmm_pool*, 4> seen{};
  std::array<std::thread, 4> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i] = std::thread([&seen, i] { vpmm_default_pool(0, &seen[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(seen[0], nullptr);
  for (vpmm_pool* const pool : seen) EXPECT_EQ(pool, seen[0]);
  EXPECT_EQ(default_pool(), seen[0]);
}

TEST(DefaultPool, opened_again_with_the_same_settings_is_the_same_pool) {
  const vpmm_config config = default_config();
  vpmm_pool* pool = nullptr;
  vpmm_pool* const open = default_pool();
  EXPECT_EQ(vpmm_default_pool_open(0, &config, &pool), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(pool, open);
}

TEST(DefaultPool, opened_again_with_other_settings_is_an_error_that_names_the_difference) {
  vpmm_config config = default_config();
  config.pages = 3;
  vpmm_pool* pool = nullptr;
  default_pool();
  EXPECT_EQ(vpmm_default_pool_open(0, &config, &pool), VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_EQ(pool, nullptr);
  EXPECT_STREQ(vpmm_last_error(),
               "the process-wide pool of device 0 is already open with other settings: VPMM_PAGES "
               "is 0, not 3");
}

TEST(DefaultPool, needs_settings_to_be_opened_with_settings) {
  vpmm_pool* pool = nullptr;
  EXPECT_EQ(vpmm_default_pool_open(0, nullptr, &pool), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`config` is null");
}

TEST(DefaultPool, is_never_destroyed) {
  vpmm_pool* const pool = default_pool();
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(default_pool(), pool);
  EXPECT_EQ(statistics_of(pool).live_allocations, 0U);
}

TEST(DefaultPool, of_a_device_that_is_not_there_is_an_error) {
  int devices = 0;
  ASSERT_EQ(vpmm_device_count(&devices), VPMM_OK) << vpmm_last_error();
  ASSERT_GE(devices, 1);
  for (const int device : {-1, devices, 1'000'000}) {
    vpmm_pool* pool = nullptr;
    EXPECT_EQ(vpmm_default_pool(device, &pool), VPMM_ERROR_INVALID_ARGUMENT) << device;
    EXPECT_TRUE(last_error_names(std::to_string(device).c_str())) << vpmm_last_error();
    EXPECT_EQ(vpmm_pool_create(device, nullptr, &pool), VPMM_ERROR_INVALID_ARGUMENT) << device;
    EXPECT_EQ(pool, nullptr);
  }
}

TEST_F(Pools, are_independent) {
  vpmm_pool* other = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &other), VPMM_OK) << vpmm_last_error();
  EXPECT_NE(other, pool_);
  allocate(3 * kMiB);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 1U);
  EXPECT_EQ(statistics_of(other).live_allocations, 0U);
  EXPECT_EQ(vpmm_pool_destroy(other), VPMM_OK);
}

TEST_F(Pools, know_their_device) {
  int device = -1;
  EXPECT_EQ(vpmm_pool_device(pool_, &device), VPMM_OK);
  EXPECT_EQ(device, 0);
}

TEST(PoolDestroy, of_null_does_nothing) { EXPECT_EQ(vpmm_pool_destroy(nullptr), VPMM_OK); }

TEST(PoolDestroy, gives_back_live_allocations_too) {
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK);
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t total = 0;
  vpmm_pool* const observer = default_pool();
  ASSERT_EQ(vpmm_memory_info(observer, &before, &total), VPMM_OK) << vpmm_last_error();
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate(pool, 64 * kMiB, nullptr, &ptr), VPMM_OK);
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_memory_info(observer, &after, &total), VPMM_OK);
  EXPECT_EQ(after, before);
}

TEST_F(Pools, trim_says_how_much_it_gave_back) {
  ASSERT_EQ(vpmm_deallocate(pool_, allocate(64 * kMiB), nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  const std::uint64_t mapped = statistics_of(pool_).mapped_bytes;
  std::size_t released = 0;
  EXPECT_EQ(vpmm_trim(pool_, 0, &released), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(released, mapped);
  EXPECT_EQ(vpmm_trim(pool_, 0, nullptr), VPMM_OK);
}

TEST_F(Pools, preallocate_maps_ahead) {
  EXPECT_EQ(vpmm_preallocate(pool_, 32 * kMiB), VPMM_OK) << vpmm_last_error();
  EXPECT_GE(statistics_of(pool_).mapped_bytes, 32 * kMiB);
}

TEST_F(Pools, preallocate_refuses_an_absurd_size) {
  EXPECT_EQ(vpmm_preallocate(pool_, SIZE_MAX), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(last_error_names("18446744073709551615")) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).mapped_bytes, 0U);
}

TEST_F(Pools, a_capacity_can_be_a_share_of_the_gpu) {
  std::uint64_t free = 0, total = 0;
  ASSERT_EQ(vpmm_set_capacity(pool_, UINT64_MAX), VPMM_OK);
  ASSERT_EQ(vpmm_memory_info(pool_, &free, &total), VPMM_OK);
  ASSERT_EQ(vpmm_set_capacity(pool_, VPMM_SHARE_OF_GPU(25)), VPMM_OK);
  std::uint64_t capacity = 0;
  ASSERT_EQ(vpmm_get_capacity(pool_, &capacity), VPMM_OK);
  EXPECT_EQ(capacity, total / 4 / (2 * kMiB) * (2 * kMiB));
  EXPECT_EQ(vpmm_memory_info(pool_, &free, &total), VPMM_OK);
  void* all = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, free, nullptr, &all), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, all, nullptr), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, capacity + 1, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  for (const std::uint64_t wrong : {VPMM_SHARE_OF_GPU(0), VPMM_SHARE_OF_GPU(101)}) {
    EXPECT_EQ(vpmm_set_capacity(pool_, wrong), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_names("VPMM_SHARE_OF_GPU of 1 to 100")) << vpmm_last_error();
  }
}

TEST_F(Pools, a_capacity_of_zero_is_refused_as_in_the_settings) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  EXPECT_EQ(vpmm_set_capacity(pool_, 0), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("capacity 0")) << vpmm_last_error();
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY)
      << "the limit is as before";
}

TEST_F(Pools, a_full_pool_reports_device_memory) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ptr, nullptr);
  ASSERT_EQ(vpmm_set_capacity(pool_, UINT64_MAX), VPMM_OK);
  EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(Pools, access_for_another_device_names_what_is_wrong) {
  EXPECT_EQ(vpmm_set_peer_access(pool_, 0), VPMM_OK) << "its own: nothing to do";
  EXPECT_EQ(vpmm_set_peer_access(pool_, 5), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("device 5 does not exist")) << vpmm_last_error();
  EXPECT_EQ(vpmm_set_peer_access(nullptr, 0), VPMM_ERROR_INVALID_ARGUMENT);
}

struct Spill {
  vpmm_pool* pool;
  void* reserve;
  int calls;
  int device;
  std::uint64_t bytes;
};

int spill(void* argument, int device, std::uint64_t bytes) {
  auto* const spill = static_cast<Spill*>(argument);
  ++spill->calls;
  spill->device = device;
  spill->bytes = bytes;
  if (spill->reserve == nullptr) return 0;
  const bool freed = vpmm_deallocate(spill->pool, spill->reserve, nullptr) == VPMM_OK;
  spill->reserve = nullptr;
  return freed;
}

TEST_F(Pools, the_out_of_memory_callback_may_free_and_is_asked_until_it_cannot) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  Spill state{pool_, allocate(12 * kMiB), 0, -1, 0};
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, spill, &state), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 8 * kMiB, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(state.calls, 1);
  EXPECT_EQ(state.device, 0);
  EXPECT_EQ(state.bytes, 8 * kMiB);
  EXPECT_EQ(vpmm_allocate(pool_, 16 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(state.calls, 2);
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_allocate(pool_, 16 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(state.calls, 2);
}

TEST_F(Pools, an_exception_out_of_a_callback_becomes_an_error) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  const auto throws = [](void*, int, std::uint64_t) -> int {
    throw std::runtime_error("spilling failed");
  };
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, throws, nullptr), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_NE(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_OK);
  EXPECT_STREQ(vpmm_last_error(), "spilling failed");
  EXPECT_EQ(vpmm_allocate(pool_, 8 * kMiB, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(Pools, a_callback_ends_its_request_with_an_error_of_its_own) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "x"), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "no callback of a call runs on this thread");
  const auto fails = [](void*, int, std::uint64_t) -> int {
    EXPECT_EQ(vpmm_callback_fail(VPMM_OK, "x"), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_callback_fail(VPMM_WOULD_BLOCK, "x"), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "spilling failed"), VPMM_OK);
    return 1;  // not tried again
  };
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, fails, nullptr), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_NOT_SHARED);
  EXPECT_STREQ(vpmm_last_error(), "spilling failed");
  EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "x"), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_allocate(pool_, 8 * kMiB, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SimPool, puts_cleaning_up_off_between_begin_and_end) {
  EXPECT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("defer_cleanup_begin")) << vpmm_last_error();
  EXPECT_EQ(vpmm_defer_cleanup_begin(pool_), VPMM_OK);
  EXPECT_EQ(vpmm_defer_cleanup_begin(pool_), VPMM_OK) << "they nest";
  EXPECT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_OK);
  EXPECT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_OK);
  EXPECT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_defer_cleanup_begin(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace vpmm::capi_test
