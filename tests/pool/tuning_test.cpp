// pool: what settings stand for, and sizes of new chunks.
#include "pool/tuning.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/page_size.hpp"

namespace vpmm::pool {
namespace {

Tuning tuning_for(Prefer prefer) {
  Config config;
  config.prefer = prefer;
  return tuning_of(config, kPage);
}

Vector<Bytes> in_pages(Vector<Bytes> sizes) {
  for (Bytes& size : sizes) {
    EXPECT_EQ(size % kPage, 0u);
    size /= kPage;
  }
  return sizes;
}

Vector<Bytes> chunks_of(Bytes pages, Bytes chunk_max = 256 * kMiB) {
  Config config;
  config.chunk_max = chunk_max;
  return in_pages(tuning_of(config, kPage).chunk_sizes(pages * kPage));
}

TEST(ChunkSizes, up_to_eight_pages_are_one_chunk) {
  for (Bytes pages = 1; pages <= 8; ++pages) EXPECT_EQ(chunks_of(pages), Vector<Bytes>{pages});
}

TEST(ChunkSizes, larger_ones_are_powers_of_two_and_a_rest_of_up_to_eight) {
  EXPECT_EQ(chunks_of(9), (Vector<Bytes>{8, 1}));
  EXPECT_EQ(chunks_of(15), (Vector<Bytes>{8, 7}));
  EXPECT_EQ(chunks_of(16), (Vector<Bytes>{16}));
  EXPECT_EQ(chunks_of(63), (Vector<Bytes>{32, 16, 8, 7}));
  EXPECT_EQ(chunks_of(127), (Vector<Bytes>{64, 32, 16, 8, 7}));
}

TEST(ChunkSizes, none_is_larger_than_the_largest) {
  EXPECT_EQ(chunks_of(128), (Vector<Bytes>{128}));
  EXPECT_EQ(chunks_of(300), (Vector<Bytes>{128, 128, 32, 8, 4}));
  EXPECT_EQ(chunks_of(10, 4 * kPage), (Vector<Bytes>{4, 4, 2}));
  EXPECT_EQ(chunks_of(7, 4 * kPage), (Vector<Bytes>{4, 3}));
  EXPECT_EQ(chunks_of(3, kPage), (Vector<Bytes>{1, 1, 1}));
}

TEST(ChunkSizes, the_largest_is_a_power_of_two_of_pages_and_never_less_than_one) {
  EXPECT_EQ(chunks_of(16, 15 * kPage), (Vector<Bytes>{8, 8}));
  EXPECT_EQ(chunks_of(2, kMiB), (Vector<Bytes>{1, 1}));
  Config config;
  EXPECT_EQ(tuning_of(config, 6 * kMiB).chunk_max, 32 * 6 * kMiB) << "256 MiB hold 42 pages";
}

TEST(ChunkSizes, cover_every_request_exactly_largest_first_in_about_a_dozen) {
  for (Bytes pages = 1; pages < 2000; ++pages) {
    const Vector<Bytes> sizes = chunks_of(pages);
    ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), Bytes{0}), pages);
    ASSERT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend())) << pages;
    ASSERT_LE(sizes.size(), pages / 128 + 5) << pages;
  }
  EXPECT_TRUE(chunks_of(0).empty());
}

TEST(ChunkSizes, are_pages_in_page_mode_whatever_the_largest) {
  Config config;
  config.page_chunks = true;
  const Tuning tuning = tuning_of(config, kPage);
  EXPECT_EQ(in_pages(tuning.chunk_sizes(5 * kPage)), (Vector<Bytes>{1, 1, 1, 1, 1}));
}

TEST(Prefer, latency_may_spend_more_memory_than_balanced_and_balanced_more_than_footprint) {
  const Tuning footprint = tuning_for(Prefer::footprint);
  const Tuning balanced = tuning_for(Prefer::balanced);
  const Tuning latency = tuning_for(Prefer::latency);
  EXPECT_GT(footprint.slack_permille, 0u);
  EXPECT_LT(footprint.slack_permille, balanced.slack_permille);
  EXPECT_LT(balanced.slack_permille, latency.slack_permille);
  EXPECT_LE(footprint.growth_permille, balanced.growth_permille);
  EXPECT_LT(balanced.growth_permille, latency.growth_permille);
}

TEST(Prefer, only_footprint_waits_for_other_streams_before_it_grows) {
  EXPECT_EQ(tuning_for(Prefer::footprint).waiting, Tuning::Waiting::after_moves);
  EXPECT_EQ(tuning_for(Prefer::balanced).waiting, Tuning::Waiting::never);
  EXPECT_EQ(tuning_for(Prefer::latency).waiting, Tuning::Waiting::never);
}

TEST(Prefer, latency_never_delays_growth) {
  EXPECT_TRUE(tuning_for(Prefer::balanced).delays_growth);
  EXPECT_FALSE(tuning_for(Prefer::latency).delays_growth);
}

TEST(Prefer, has_no_say_in_page_mode) {
  for (const Prefer prefer : {Prefer::footprint, Prefer::balanced, Prefer::latency}) {
    Config config;
    config.page_chunks = true;
    config.prefer = prefer;
    const Tuning tuning = tuning_of(config, kPage);
    EXPECT_EQ(tuning.chunk_max, kPage);
    EXPECT_EQ(tuning.slack_permille, 0u);
    EXPECT_EQ(tuning.growth_permille, 0u);
    EXPECT_EQ(tuning.waiting, Tuning::Waiting::before_moves);
    EXPECT_EQ(tuning.order, Tuning::Order::oldest_first);
    EXPECT_FALSE(tuning.delays_growth);
  }
}

}  // namespace
}  // namespace vpmm::pool
