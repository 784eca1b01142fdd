// SPDX-License-Identifier: Apache-2.0
// capi: allocating and giving back, and every mistake a caller can make there.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Allocate = SimPool;

bool is_aligned(const void* ptr, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(ptr) % alignment == 0;
}

TEST_F(Allocate, gives_memory_and_takes_it_back) {
  void* const small = allocate(100);
  void* const large = allocate(5 * kMiB);
  ASSERT_NE(small, nullptr);
  ASSERT_NE(large, nullptr);
  EXPECT_TRUE(is_aligned(small, 256));
  EXPECT_TRUE(is_aligned(large, 2 * kMiB));
  EXPECT_EQ(statistics_of(pool_).live_bytes, 100 + 5 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, small, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, large, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Allocate, zero_bytes_are_null_and_null_is_free_to_give_back) {
  void* ptr = pool_;
  EXPECT_EQ(vpmm_allocate(pool_, 0, nullptr, &ptr), VPMM_OK);
  EXPECT_EQ(ptr, nullptr);
  ptr = pool_;
  EXPECT_EQ(vpmm_allocate_any_stream(pool_, 0, 0, &ptr), VPMM_OK);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_EQ(vpmm_deallocate(pool_, nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, nullptr), VPMM_OK);
  vpmm_deallocate_deferred(pool_, nullptr);
  EXPECT_EQ(vpmm_record_use(pool_, nullptr, nullptr), VPMM_OK);
  std::size_t usable = 1;
  EXPECT_EQ(vpmm_usable_size(pool_, nullptr, &usable), VPMM_OK);
  EXPECT_EQ(usable, 0U);
}

TEST_F(Allocate, aligns_as_asked) {
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{512}, 4 * kMiB}) {
    void* ptr = nullptr;
    ASSERT_EQ(vpmm_allocate_aligned(pool_, 3 * kMiB, alignment, nullptr, &ptr), VPMM_OK)
        << vpmm_last_error();
    EXPECT_TRUE(is_aligned(ptr, alignment)) << alignment;
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  }
}

TEST_F(Allocate, refuses_an_alignment_that_is_no_power_of_two) {
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate_aligned(pool_, 100, 384, nullptr, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("384")) << vpmm_last_error();
  EXPECT_EQ(vpmm_allocate_any_stream(pool_, 3 * kMiB, 3 * kMiB, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(ptr, nullptr);
}

TEST_F(Allocate, refuses_an_absurd_size) {
  void* ptr = nullptr;
  EXPECT_NE(vpmm_allocate(pool_, std::numeric_limits<std::size_t>::max(), nullptr, &ptr), VPMM_OK);
  EXPECT_NE(vpmm_allocate(pool_, std::numeric_limits<std::size_t>::max() - kMiB, nullptr, &ptr),
            VPMM_OK);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_GT(std::strlen(vpmm_last_error()), 0U);
}

TEST_F(Allocate, reports_a_double_free_by_address) {
  for (const std::size_t bytes : {std::size_t{100}, 3 * kMiB}) {
    void* const ptr = allocate(bytes);
    ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_ERROR_INVALID_POINTER) << bytes;
    EXPECT_TRUE(last_error_names("0x")) << vpmm_last_error();
    EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_ERROR_INVALID_POINTER) << bytes;
  }
  EXPECT_GE(statistics_of(pool_).caller_mistakes, 2U);
}

TEST_F(Allocate, reports_a_foreign_pointer) {
  int on_the_stack = 0;
  void* const live = allocate(3 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, &on_the_stack, nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_record_use(pool_, &on_the_stack, nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 1U);
  EXPECT_EQ(vpmm_deallocate(pool_, live, nullptr), VPMM_OK);
}

TEST_F(Allocate, refuses_to_free_the_middle_of_an_allocation) {
  void* const ptr = allocate(6 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, plus(ptr, 256), nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_deallocate(pool_, plus(ptr, 2 * kMiB), nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(Allocate, refuses_memory_of_another_pool) {
  vpmm_pool* other = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &other), VPMM_OK);
  void* const ptr = allocate(3 * kMiB);
  EXPECT_EQ(vpmm_deallocate(other, ptr, nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_pool_destroy(other), VPMM_OK);
}

TEST_F(Allocate, any_stream_memory_comes_and_goes) {
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate_any_stream(pool_, 3 * kMiB, 0, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Allocate, deferred_frees_are_settled_by_a_later_call) {
  vpmm_deallocate_deferred(pool_, allocate(3 * kMiB));
  EXPECT_EQ(vpmm_synchronize(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Allocate, memory_used_on_another_stream_is_taken_back_too) {
  void* const ptr = allocate(3 * kMiB);
  const auto per_thread = reinterpret_cast<vpmm_stream>(std::uintptr_t{2});
  EXPECT_EQ(vpmm_record_use(pool_, ptr, per_thread), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(Allocate, query_finds_the_allocation_around_an_address) {
  void* const ptr = allocate(5 * kMiB);
  vpmm_allocation_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(vpmm_query(pool_, plus(ptr, 4 * kMiB + 17), &info), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(info.begin, ptr);
  EXPECT_EQ(info.requested, 5 * kMiB);
  EXPECT_GE(info.usable, info.requested);
  std::size_t usable = 0;
  ASSERT_EQ(vpmm_usable_size(pool_, ptr, &usable), VPMM_OK);
  EXPECT_EQ(usable, info.usable);
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_query(pool_, ptr, &info), VPMM_ERROR_INVALID_POINTER);
}

TEST_F(Allocate, query_refuses_a_struct_too_short_for_any_version) {
  void* const ptr = allocate(3 * kMiB);
  vpmm_allocation_info info{};
  info.size = sizeof(info) - 1;
  EXPECT_EQ(vpmm_query(pool_, ptr, &info), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(info.begin, nullptr);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(Allocate, announced_captures_come_in_pairs) {
  EXPECT_EQ(vpmm_capture_begin(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_capture_begin(pool_), VPMM_OK) << vpmm_last_error();
  void* const ptr = allocate(3 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_capture_end(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_capture_end(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_NE(vpmm_capture_end(pool_), VPMM_OK);
}

TEST_F(Allocate, tries_without_blocking_and_says_so) {
  void* ptr = pool_;
  ASSERT_EQ(vpmm_config_init(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_try_allocate_any_stream(pool_, 80, 0, &ptr), VPMM_WOULD_BLOCK)
      << "nothing is mapped yet";
  EXPECT_EQ(vpmm_try_allocate_any_stream(pool_, 0, 0, &ptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(vpmm_try_allocate_any_stream(nullptr, 80, 0, &ptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(vpmm_try_allocate_any_stream(pool_, 80, 0, nullptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(ptr, pool_) << "written on success only";
  EXPECT_STREQ(vpmm_last_error(), "`config` is null") << "it is no error";
  void* first = nullptr;
  ASSERT_EQ(vpmm_allocate_any_stream(pool_, 80, 0, &first), VPMM_OK);
  ASSERT_EQ(vpmm_try_allocate_any_stream(pool_, 80, 0, &ptr), VPMM_OK);
  EXPECT_NE(ptr, first);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 2U);
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, first), VPMM_OK);
}

TEST_F(Allocate, tries_what_a_stream_freed_itself) {
  void* ptr = pool_;
  ASSERT_EQ(vpmm_config_init(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_try_allocate(pool_, 80, 0, nullptr, &ptr), VPMM_WOULD_BLOCK)
      << "nothing is mapped yet";
  EXPECT_EQ(vpmm_try_allocate(nullptr, 80, 0, nullptr, &ptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(vpmm_try_allocate(pool_, 80, 0, nullptr, nullptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(vpmm_try_deallocate(pool_, pool_, nullptr), VPMM_WOULD_BLOCK) << "it is not ours";
  EXPECT_EQ(vpmm_try_deallocate(nullptr, pool_, nullptr), VPMM_WOULD_BLOCK);
  EXPECT_EQ(vpmm_try_deallocate(pool_, nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(ptr, pool_) << "written on success only";
  EXPECT_STREQ(vpmm_last_error(), "`config` is null") << "it is no error";
  void* const first = allocate(80);
  EXPECT_EQ(vpmm_try_deallocate(pool_, first, nullptr), VPMM_OK);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
  EXPECT_EQ(vpmm_try_deallocate(pool_, first, nullptr), VPMM_WOULD_BLOCK)
      << "the ordinary function says it is freed";
  EXPECT_EQ(vpmm_try_allocate(pool_, 80, 0, nullptr, &ptr), VPMM_WOULD_BLOCK)
      << "without a current context it is not known whose default stream that is";
}

}  // namespace
}  // namespace vpmm::capi_test
