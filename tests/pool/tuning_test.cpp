// SPDX-License-Identifier: Apache-2.0
// pool: what settings stand for, and sizes of new chunks.
#include "pool/tuning.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "support/page_size.hpp"

namespace vpmm::pool {
namespace {

Tuning tuning_for(settings::Prefer prefer) {
  settings::Config config;
  config.prefer = prefer;
  return tuning_of(config, kPage);
}

// Roomy, unless a test says otherwise.
constexpr Bytes kGpu = 160 * kGiB;

// --- Note [Size of a chunk]: each bound in its turn

class ChunkSize : public testing::Test {
 protected:
  const Tuning tuning = tuning_for(settings::Prefer::balanced);
};

TEST_F(ChunkSize, has_a_least_where_nothing_else_asks_for_more) {
  EXPECT_EQ(tuning.chunk_size(kPage, 0, kGpu), 8 * kMiB);
  EXPECT_EQ(tuning.chunk_size(tuning.grain, 0, kGpu), 8 * kMiB);
}

TEST_F(ChunkSize, is_a_share_of_a_large_request) {
  EXPECT_EQ(tuning.chunk_size(kGiB, 0, kGpu), 32 * kMiB);
  EXPECT_EQ(tuning.chunk_size(kGiB - kPage, 0, kGpu), 16 * kMiB) << "a power of two";
}

TEST_F(ChunkSize, is_a_share_of_what_is_mapped) {
  EXPECT_EQ(tuning.chunk_size(kPage, 4 * kGiB, kGpu), 16 * kMiB);
  EXPECT_EQ(tuning.chunk_size(kGiB, 4 * kGiB, kGpu), 32 * kMiB) << "the larger of the two shares";
}

TEST_F(ChunkSize, is_a_share_of_the_gpu_at_most) {
  EXPECT_EQ(tuning.chunk_size(kPage, 140 * kGiB, kGpu), 32 * kMiB);
  EXPECT_EQ(tuning.chunk_size(kPage, 2 * kGiB, 16 * kGiB), 4 * kMiB) << "less than the least";
  EXPECT_EQ(tuning.chunk_size(kPage, kGiB, kGiB), kPage) << "never less than a page";
}

TEST_F(ChunkSize, stays_a_smaller_share_of_the_request_however_small_the_gpu_is) {
  EXPECT_EQ(tuning.chunk_size(kGiB, kGiB, 2 * kGiB), 4 * kMiB);
  EXPECT_EQ(tuning.chunk_size(256 * kPage, kGiB, kGiB), kPage);
  EXPECT_EQ(tuning.chunk_size(512 * kPage, kGiB, kGiB), 2 * kPage);
}

TEST_F(ChunkSize, has_a_most_above_everything_else) {
  EXPECT_EQ(tuning.chunk_size(64 * kGiB, 0, kGpu), tuning.chunk_max);
  settings::Config config;
  config.chunk_max = 4 * kPage;
  EXPECT_EQ(tuning_of(config, kPage).chunk_size(64 * kGiB, 0, kGpu), 4 * kPage);
  config.chunk_max = kPage;
  EXPECT_EQ(tuning_of(config, kPage).chunk_size(kPage, 0, kGpu), kPage) << "above the least, too";
}

TEST_F(ChunkSize, is_the_page_in_page_mode_whatever_the_largest) {
  settings::Config config;
  config.page_chunks = true;
  EXPECT_EQ(tuning_of(config, kPage).chunk_size(64 * kGiB, 16 * kGiB, kGpu), kPage);
}

TEST_F(ChunkSize, is_a_power_of_two_of_pages_and_few_make_a_request) {
  std::mt19937_64 random(5);
  const auto below = [&](Bytes n) {
    return std::uniform_int_distribution<Bytes>(0, n - 1)(random);
  };
  for (const Bytes page : {kPage, 6 * kMiB, 64 * kMiB}) {
    const Tuning each = tuning_of({}, page);
    for (int i = 0; i < 3000; ++i) {
      const Bytes request = 1 + below(Bytes{1} << (20 + below(17)));
      const Bytes size = each.chunk_size(request, below(kGpu), below(kGpu));
      ASSERT_EQ(size % page, 0u);
      ASSERT_TRUE(is_power_of_two(size / page));
      ASSERT_LE(size, each.chunk_max);
      ASSERT_TRUE(size == each.chunk_max || request / size < (is_power_of_two(page) ? 512 : 1024));
    }
  }
}

TEST(LargestChunk, is_a_power_of_two_of_pages_and_never_less_than_one) {
  settings::Config config;
  config.chunk_max = 15 * kPage;
  EXPECT_EQ(tuning_of(config, kPage).chunk_max, 8 * kPage);
  config.chunk_max = kMiB;
  EXPECT_EQ(tuning_of(config, kPage).chunk_max, kPage);
  EXPECT_EQ(tuning_of({}, 6 * kMiB).chunk_max, 32 * 6 * kMiB) << "256 MiB hold 42 pages";
}

// --- chunks for a request

class ChunksFor : public testing::Test {
 protected:
  std::optional<Vector<Bytes>> pages(Bytes pages, Bytes chunk, Bytes room) const {
    std::optional<Vector<Bytes>> sizes =
        tuning.chunks_for(pages * kPage, chunk * kPage, room * kPage);
    if (sizes)
      for (Bytes& size : *sizes) size /= kPage;
    return sizes;
  }
  const Tuning tuning = tuning_for(settings::Prefer::balanced);
};

TEST_F(ChunksFor, nothing_are_none) { EXPECT_EQ(pages(0, 4, 0), Vector<Bytes>{}); }

TEST_F(ChunksFor, a_request_are_of_one_size_and_the_last_is_not_cut) {
  EXPECT_EQ(pages(8, 4, 100), (Vector<Bytes>{4, 4}));
  EXPECT_EQ(pages(9, 4, 100), (Vector<Bytes>{4, 4, 4}));
  EXPECT_EQ(pages(1, 4, 4), (Vector<Bytes>{4}));
}

TEST_F(ChunksFor, a_request_are_cut_only_where_room_is_short) {
  EXPECT_EQ(pages(9, 4, 11), (Vector<Bytes>{4, 4, 1}));
  EXPECT_EQ(pages(3, 8, 7), (Vector<Bytes>{3}));
  EXPECT_EQ(pages(3, 8, 3), (Vector<Bytes>{3}));
}

TEST_F(ChunksFor, more_than_the_room_are_none) {
  EXPECT_EQ(pages(3, 8, 2), std::nullopt);
  EXPECT_EQ(pages(9, 4, 8), std::nullopt);
  EXPECT_EQ(pages(1, 1, 0), std::nullopt);
}

TEST_F(ChunksFor, part_of_a_page_is_a_page) {
  EXPECT_EQ(tuning.chunks_for(tuning.grain, 4 * kPage, kPage), (Vector<Bytes>{kPage}));
  EXPECT_EQ(tuning.chunks_for(kPage + 1, kPage, 2 * kPage), (Vector<Bytes>{kPage, kPage}));
  EXPECT_EQ(tuning.chunks_for(kPage + 1, kPage, 2 * kPage - 1), std::nullopt);
}

TEST_F(ChunksFor, every_request_are_enough_within_the_room_and_too_much_by_less_than_one) {
  for (const Bytes chunk : {1U, 2U, 8U, 32U})
    for (Bytes request = 1; request < 70; ++request)
      for (Bytes room = 0; room < 90; ++room) {
        const std::optional<Vector<Bytes>> sizes = pages(request, chunk, room);
        ASSERT_EQ(sizes.has_value(), room >= request);
        if (!sizes) continue;
        const Bytes sum = std::accumulate(sizes->begin(), sizes->end(), Bytes{0});
        ASSERT_GE(sum, request);
        ASSERT_LE(sum, room);
        ASSERT_LT(sum - request, sizes->back());
        ASSERT_TRUE(std::all_of(sizes->begin(), sizes->end() - 1,
                                [&](Bytes size) { return size == chunk; }));
      }
}

// --- Note [Grain]

TEST(Grain, is_a_share_of_a_page_that_is_a_power_of_two) {
  EXPECT_EQ(tuning_of({}, kPage).grain, 64 * kKiB);
  EXPECT_EQ(tuning_of({}, 32 * kMiB).grain, kMiB);
  EXPECT_EQ(tuning_of({}, 512 * kKiB).grain, 64 * kKiB)
      << "so many sizes are told apart, and no more";
}

TEST(Grain, is_the_page_where_that_is_small_or_no_power_of_two) {
  EXPECT_EQ(tuning_of({}, 64 * kKiB).grain, 64 * kKiB);
  EXPECT_EQ(tuning_of({}, 4 * kKiB).grain, 4 * kKiB);
  EXPECT_EQ(tuning_of({}, 6 * kMiB).grain, 6 * kMiB);
}

TEST(Grain, is_the_page_where_no_chunk_is_shared) {
  settings::Config config;
  config.ipc_isolate = true;
  EXPECT_EQ(tuning_of(config, kPage).grain, kPage);
}

TEST(Grain, is_the_page_in_page_mode) {
  settings::Config config;
  config.page_chunks = true;
  EXPECT_EQ(tuning_of(config, kPage).grain, kPage);
}

TEST(Grain, leaves_a_page_its_alignment) {
  EXPECT_EQ(tuning_of({}, kPage).page_alignment(), kPage);
  EXPECT_EQ(tuning_of({}, 6 * kMiB).page_alignment(), 2 * kMiB);
}

TEST(Grain, is_the_least_alignment_as_far_as_it_is_a_power_of_two) {
  EXPECT_EQ(tuning_of({}, kPage).grain_alignment(), 64 * kKiB);
  EXPECT_EQ(tuning_of({}, 32 * kMiB).grain_alignment(), kMiB);
  EXPECT_EQ(tuning_of({}, 6 * kMiB).grain_alignment(), 2 * kMiB);
}

// --- Note [One knob]

TEST(Prefer, latency_may_spend_more_memory_than_balanced_and_balanced_more_than_footprint) {
  const Tuning footprint = tuning_for(settings::Prefer::footprint);
  const Tuning balanced = tuning_for(settings::Prefer::balanced);
  const Tuning latency = tuning_for(settings::Prefer::latency);
  EXPECT_LT(footprint.growth_permille, balanced.growth_permille);
  EXPECT_LT(balanced.growth_permille, latency.growth_permille);
  EXPECT_LT(footprint.chunk_size(kPage, 0, kGpu), balanced.chunk_size(kPage, 0, kGpu));
  EXPECT_LT(footprint.chunk_size(kPage, 4 * kGiB, kGpu),
            balanced.chunk_size(kPage, 4 * kGiB, kGpu));
  EXPECT_EQ(balanced.chunk_size(kPage, 4 * kGiB, kGpu), latency.chunk_size(kPage, 4 * kGiB, kGpu));
  EXPECT_EQ(balanced.chunk_size(kPage, 8 * kGiB, kGpu),
            4 * footprint.chunk_size(kPage, 8 * kGiB, kGpu))
      << "a quarter of its share";
}

TEST(Prefer, only_footprint_waits_for_other_streams_before_it_grows) {
  EXPECT_EQ(tuning_for(settings::Prefer::footprint).waiting, Tuning::Waiting::before_growth);
  EXPECT_EQ(tuning_for(settings::Prefer::balanced).waiting, Tuning::Waiting::never);
  EXPECT_EQ(tuning_for(settings::Prefer::latency).waiting, Tuning::Waiting::never);
}

TEST(Prefer, latency_never_delays_growth) {
  EXPECT_TRUE(tuning_for(settings::Prefer::footprint).delays_growth);
  EXPECT_TRUE(tuning_for(settings::Prefer::balanced).delays_growth);
  EXPECT_FALSE(tuning_for(settings::Prefer::latency).delays_growth);
}

TEST(Prefer, footprint_never_grows_early_and_the_others_by_3_and_20_percent) {
  EXPECT_EQ(tuning_for(settings::Prefer::footprint).growth_permille, 0u);
  EXPECT_EQ(tuning_for(settings::Prefer::balanced).growth_permille, 30u);
  EXPECT_EQ(tuning_for(settings::Prefer::latency).growth_permille, 200u);
}

TEST(Prefer, has_no_say_in_the_name_that_dumps_show) {
  for (const settings::Prefer prefer :
       {settings::Prefer::footprint, settings::Prefer::balanced, settings::Prefer::latency}) {
    settings::Config config;
    config.prefer = prefer;
    EXPECT_STREQ(tuning_of(config, kPage).name, "adaptive");
    config.page_chunks = true;
    EXPECT_STREQ(tuning_of(config, kPage).name, "page");
  }
}

TEST(Prefer, has_no_say_in_page_mode) {
  for (const settings::Prefer prefer :
       {settings::Prefer::footprint, settings::Prefer::balanced, settings::Prefer::latency}) {
    settings::Config config;
    config.page_chunks = true;
    config.prefer = prefer;
    const Tuning tuning = tuning_of(config, kPage);
    EXPECT_EQ(tuning.chunk_max, kPage);
    EXPECT_EQ(tuning.chunk_size(kGiB, kGiB, kGpu), kPage);
    EXPECT_EQ(tuning.grain, kPage);
    EXPECT_EQ(tuning.growth_permille, 0u);
    EXPECT_EQ(tuning.waiting, Tuning::Waiting::before_moves);
    EXPECT_EQ(tuning.order, Tuning::Order::oldest_first);
    EXPECT_EQ(tuning.choice, Tuning::Choice::smallest);
    EXPECT_FALSE(tuning.delays_growth);
  }
}

}  // namespace
}  // namespace vpmm::pool
