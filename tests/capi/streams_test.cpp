// SPDX-License-Identifier: Apache-2.0
// capi: bound streams and many allocations at once, in C and in C++.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "capi/sim_pool.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

class Streams : public SimPool {
 protected:
  vpmm_bound_stream* bound_ = nullptr;
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_EQ(vpmm_stream_bind(pool_, nullptr, &bound_), VPMM_OK) << vpmm_last_error();
  }
  void TearDown() override {
    vpmm_stream_unbind(bound_);
    SimPool::TearDown();
  }
  void* take(std::size_t bytes, std::size_t alignment = 0) {
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_bound_allocate(bound_, bytes, alignment, &ptr), VPMM_OK) << vpmm_last_error();
    return ptr;
  }
};

TEST_F(Streams, a_bound_stream_allocates_and_takes_back) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100'000}, std::size_t{1'000'000}, 100 * kMiB, 5 * kMiB}) {
    void* const ptr = take(bytes);
    std::size_t usable = 0;
    EXPECT_EQ(vpmm_usable_size(pool_, ptr, &usable), VPMM_OK) << vpmm_last_error();
    EXPECT_GE(usable, bytes);
    EXPECT_EQ(vpmm_bound_deallocate(bound_, ptr), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(take(bytes), ptr) << "what a stream freed is what it gets next";
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << "the raw handle is the same stream";
  }
  EXPECT_EQ(statistics_of(pool_).live_bytes, 0U);
}

TEST_F(Streams, a_bound_stream_aligns_as_asked_and_refuses_what_is_no_power_of_two) {
  for (const std::size_t alignment :
       {std::size_t{256}, std::size_t{4096}, std::size_t{65536}, 4 * kMiB}) {
    void* const ptr = take(1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ptr) % alignment, 0U) << alignment;
    EXPECT_EQ(vpmm_bound_deallocate(bound_, ptr), VPMM_OK);
  }
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_bound_allocate(bound_, 1000, 384, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("384")) << vpmm_last_error();
}

TEST_F(Streams, mistakes_at_a_bound_stream_are_named_and_change_nothing) {
  void* const ptr = take(1000);
  EXPECT_EQ(vpmm_bound_deallocate(bound_, ptr), VPMM_OK);
  EXPECT_EQ(vpmm_bound_deallocate(bound_, ptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_bound_allocate(bound_, 1000, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("ptr")) << vpmm_last_error();
  void* none = nullptr;
  EXPECT_EQ(vpmm_bound_allocate(nullptr, 1000, 0, &none), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("bound")) << vpmm_last_error();
  EXPECT_EQ(vpmm_bound_deallocate(bound_, nullptr), VPMM_OK);
  EXPECT_EQ(take(0), nullptr);
}

TEST_F(Streams, many_are_allocated_and_freed_at_once) {
  const std::array<std::size_t, 4> bytes{100, 0, 3 * kMiB, 40'000};
  std::array<void*, 4> ptrs{};
  ASSERT_EQ(vpmm_allocate_many(pool_, bytes.data(), bytes.size(), nullptr, ptrs.data()), VPMM_OK)
      << vpmm_last_error();
  EXPECT_EQ(ptrs[1], nullptr);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 3U);
  EXPECT_EQ(vpmm_deallocate_many(pool_, ptrs.data(), ptrs.size(), nullptr), VPMM_OK)
      << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Streams, many_are_all_or_none) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 8 * kMiB), VPMM_OK);
  const std::array<std::size_t, 3> bytes{100, 4 * kMiB, 64 * kMiB};
  std::array<void*, 3> ptrs{};
  EXPECT_EQ(vpmm_allocate_many(pool_, bytes.data(), bytes.size(), nullptr, ptrs.data()),
            VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Streams, many_are_not_more_than_memory_holds) {
  const std::size_t bytes = 100;
  void* ptr = nullptr;
  constexpr std::size_t kTooMany = std::numeric_limits<std::size_t>::max() / 8;
  EXPECT_EQ(vpmm_allocate_many(pool_, &bytes, kTooMany, nullptr, &ptr),
            VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("count")) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate_many(pool_, &ptr, kTooMany, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("count")) << vpmm_last_error();
}

TEST_F(Streams, freeing_many_frees_the_rest_and_names_the_first_that_is_not_live) {
  void* const first = allocate(1000);
  void* const second = allocate(3 * kMiB);
  const std::array<void*, 4> ptrs{first, static_cast<char*>(second) + 256, nullptr, second};
  EXPECT_EQ(vpmm_deallocate_many(pool_, ptrs.data(), ptrs.size(), nullptr),
            VPMM_ERROR_INVALID_POINTER);
  EXPECT_TRUE(last_error_names(fmt::format("{}", ptrs[1]).c_str())) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(Streams, the_same_in_cpp) {
  const vpmm::pool_ref pool(pool_);
  vpmm::bound_stream stream(pool, vpmm::default_stream);
  void* const ptr = stream.allocate(1000);
  EXPECT_EQ(stream.try_deallocate(ptr).status(), VPMM_OK);
  EXPECT_THROW(stream.deallocate(ptr), vpmm::failure);
  vpmm::bound_stream moved = std::move(stream);
  pool.deallocate_many(pool.allocate_many({1000, 5 * kMiB}, vpmm::default_stream),
                       vpmm::default_stream);
  EXPECT_TRUE(moved.try_allocate(4096).ok());
}

}  // namespace
}  // namespace vpmm::capi_test
