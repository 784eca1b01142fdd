// SPDX-License-Identifier: Apache-2.0
// pool: what a pool does before the first request: a page on trial, and memory that is mapped
// ahead.
#include <gmock/gmock.h>

#include "pool/pool_calls.hpp"

namespace vpmm::pool {
namespace {

TEST_F(PoolCalls, a_pool_is_prepared_by_a_page_that_comes_and_goes) {
  open();
  ASSERT_TRUE(pool->prepare(lock).ok());
  EXPECT_EQ(driver.counts[Call::mem_create], 1u);
  EXPECT_EQ(driver.counts[Call::mem_release], 1u);
  const observe::Statistics seen = figures();
  EXPECT_EQ(seen.mapped_bytes + seen.peak_mapped_bytes + seen.peak_chunks + seen.peak_mappings +
                seen.chunks_created + seen.chunks_released + seen.allocations,
            0u)
      << "no figure shows it";
  const std::uint64_t reserved = driver.counts[Call::mem_address_reserve];
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  take(1, a);
  EXPECT_EQ(driver.counts[Call::mem_address_reserve], reserved);
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked);
  EXPECT_EQ(figures().peak_mappings, 1u);
}

TEST_F(PoolCalls, a_page_that_the_driver_does_not_take_back_shows_in_the_figures) {
  open();
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->prepare(lock).ok());
  driver.on.clear();
  EXPECT_EQ(figures().mapped_bytes, kPage);
  EXPECT_EQ(figures().chunks_created, 1u);
  EXPECT_EQ(figures().peak_chunks, 1u);
}

TEST_F(PoolCalls, a_pool_is_prepared_for_a_program_that_says_how_much_it_needs) {
  config.va_size = 4 * kPage;
  config.pages = 50;
  open();
  ASSERT_TRUE(pool->prepare(lock).ok());
  ASSERT_EQ(pool->memory().reservations.size(), 1u);
  EXPECT_EQ(pool->memory().reservations[0].size, 50 * kPage);
}

TEST_F(PoolCalls, of_what_is_tried_out_only_a_broken_context_is_an_error) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_unmap, Call::mem_release}) {
    for (const CuResult result : {CuResult::unknown, CuResult::illegal_address}) {
      open();
      driver.on[call] = [=] { return result; };
      const Result<void> prepared = pool->prepare(lock);
      driver.on.clear();
      const bool is_told = result == CuResult::illegal_address && call != Call::mem_release;
      EXPECT_EQ(prepared.ok(), !is_told) << driver::to_string(call);
      if (is_told) {
        EXPECT_EQ(prepared.error().code, ErrorCode::poisoned);
      }
      EXPECT_TRUE(pool->settle(lock).ok());
      take(1, a);
    }
  }
}

TEST_F(PoolCalls, memory_can_be_mapped_ahead) {
  config.limits.capacity = 40 * kPage;
  open();
  ASSERT_TRUE(pool->preallocate(lock, 10 * kPage - 1).ok());
  EXPECT_EQ(picture(), "[-10]");
  EXPECT_EQ(figures().peak_mapped_bytes, 10 * kPage);
  EXPECT_EQ(figures().peak_chunks, 10u);
  ASSERT_TRUE(pool->preallocate(lock, 10 * kPage).ok());
  EXPECT_EQ(picture(), "[-10]") << "in all, not more";
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  ASSERT_TRUE(pool->preallocate(lock, 12 * kPage).ok());
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked) << "how much is free is known";
  ASSERT_TRUE(pool->preallocate(lock, 40 * kPage).ok());
  EXPECT_EQ(figures().mapped_bytes, 40 * kPage);
  const Result<void> beyond = pool->preallocate(lock, 41 * kPage);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(beyond.error().message, testing::HasSubstr("the limit is 80 MiB"));
}

TEST_F(PoolCalls, memory_that_is_mapped_ahead_is_whole_or_none) {
  open();
  EXPECT_THAT(pool->preallocate(lock, 1001 * kPage).error().message,
              testing::HasSubstr("the GPU has less free"));
  std::uint64_t created = 0;
  driver.on[Call::mem_create] = [&] {
    return ++created > 5 ? CuResult::out_of_memory : CuResult::success;
  };
  const Result<void> refused = pool->preallocate(lock, 10 * kPage);
  driver.on.clear();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(figures().mapped_bytes, 0u);
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  EXPECT_TRUE(pool->preallocate(lock, 10 * kPage).ok());
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked + 1) << "how much is free is in doubt";
}

TEST_F(PoolCalls, memory_is_mapped_ahead_where_address_space_is_short) {
  config.va_size = 4 * kPage;
  open();
  take(3, a);
  ASSERT_TRUE(pool->preallocate(lock, 13 * kPage).ok());
  EXPECT_EQ(figures().mapped_bytes, 13 * kPage);
  EXPECT_EQ(figures().reserved_bytes, 14 * kPage);
}

}  // namespace
}  // namespace vpmm::pool
