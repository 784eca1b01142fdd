// pool: sizes of new chunks, and when to create some although others are idle.
#include "pool/chunk_policy.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace vpmm::pool {
namespace {

constexpr Bytes kPage = 2 * kMiB;

Bytes sum(const Vector<Bytes>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), Bytes{0}); }

std::unique_ptr<ChunkPolicy> page_policy() {
  Config config;
  config.page_chunks = true;
  return make_chunk_policy(config, kPage);
}

std::unique_ptr<ChunkPolicy> adaptive_policy(Bytes chunk_max = Config{}.chunk_max) {
  Config config;
  config.chunk_max = chunk_max;
  return make_chunk_policy(config, kPage);
}

TEST(PagePolicy, makes_one_chunk_per_page) {
  EXPECT_EQ(page_policy()->chunk_sizes(5 * kPage, 0), Vector<Bytes>(5, kPage));
}

TEST(PagePolicy, never_grows_while_idle_memory_would_do) {
  EXPECT_EQ(page_policy()->grow_first({10 * kPage, 10 * kPage, 0, 1000 * kPage}), 0u);
  EXPECT_EQ(page_policy()->waiting(), Waiting::before_moves);
}

TEST(AdaptivePolicy, the_first_growth_is_one_chunk) {
  for (const Bytes size : {100 * kPage, kGiB, 3 * kGiB})
    EXPECT_EQ(adaptive_policy()->chunk_sizes(size, 0), Vector<Bytes>{size});
}

TEST(AdaptivePolicy, growth_by_64_times_what_is_mapped_is_one_chunk_too) {
  for (const Bytes mapped : {kPage, 16 * kPage})
    EXPECT_EQ(adaptive_policy()->chunk_sizes(64 * mapped, mapped), Vector<Bytes>{64 * mapped});
  EXPECT_EQ(adaptive_policy()->chunk_sizes(63 * 16 * kPage, 16 * kPage).size(), 14u);
  EXPECT_EQ(adaptive_policy(kGiB)->chunk_sizes(3 * kGiB, kPage), Vector<Bytes>(3, kGiB));
}

TEST(AdaptivePolicy, later_chunks_are_256_MiB_at_most) {
  EXPECT_EQ(adaptive_policy()->chunk_sizes(64 * kGiB, 64 * kGiB), Vector<Bytes>(256, 256 * kMiB));
  Config config;
  config.chunk_max = 2 * kGiB;
  EXPECT_EQ(make_chunk_policy(config, kGiB)->chunk_sizes(2 * kGiB, 64 * kGiB), Vector<Bytes>(2, kGiB))
      << "a page is larger";
  EXPECT_EQ(make_chunk_policy(config, 96 * kMiB)->chunk_sizes(480 * kMiB, 256 * kGiB),
            (Vector<Bytes>{192 * kMiB, 192 * kMiB, 96 * kMiB}))
      << "whole pages";
}

TEST(AdaptivePolicy, no_chunk_is_larger_than_the_setting) {
  for (const Bytes mapped : {Bytes{0}, kGiB}) {
    const Vector<Bytes> sizes = adaptive_policy(16 * kMiB)->chunk_sizes(100 * kMiB, mapped);
    EXPECT_EQ(sum(sizes), 100 * kMiB);
    for (const Bytes size : sizes) EXPECT_LE(size, 16 * kMiB);
  }
}

TEST(AdaptivePolicy, sizes_are_whole_pages_and_cover_the_shortfall_exactly) {
  for (Bytes pages = 1; pages < 300; pages += 7) {
    const Vector<Bytes> sizes = adaptive_policy()->chunk_sizes(pages * kPage, kGiB);
    EXPECT_EQ(sum(sizes), pages * kPage);
    for (const Bytes size : sizes) EXPECT_TRUE(size > 0 && is_multiple(size, kPage)) << size;
  }
}

TEST(AdaptivePolicy, a_page_larger_than_the_largest_chunk_is_one_chunk) {
  Config config;
  config.chunk_max = 2 * kMiB;
  EXPECT_EQ(make_chunk_policy(config, 32 * kMiB)->chunk_sizes(64 * kMiB, kGiB), Vector<Bytes>(2, 32 * kMiB));
}

TEST(AdaptivePolicy, grows_while_mapped_memory_stays_within_the_budget_over_the_peak) {
  const auto policy = adaptive_policy();
  EXPECT_EQ(policy->grow_first({kPage, kPage, 99 * kPage, 100 * kPage}), kPage);
  EXPECT_EQ(policy->grow_first({50 * kPage, 50 * kPage, 100 * kPage, 100 * kPage}), 0u);
  EXPECT_EQ(policy->grow_first({15 * kPage, 15 * kPage, 1000 * kPage, 1000 * kPage}), 15 * kPage);
  EXPECT_EQ(policy->grow_first({17 * kPage, 17 * kPage, 1000 * kPage, 1000 * kPage}), 0u);
}

TEST(AdaptivePolicy, a_small_request_is_set_apart_where_it_would_pin_as_much_as_it_takes) {
  const auto apart = [](const ChunkPolicy& policy, Bytes pages, std::int64_t pinned, Bytes mapped) {
    return policy.sets_apart({pages * kPage, pages * kPage, mapped * kPage, 10'000 * kPage},
                             pinned * static_cast<std::int64_t>(kPage));
  };
  const auto policy = adaptive_policy();
  EXPECT_TRUE(apart(*policy, 8, 8, 10'000));
  EXPECT_FALSE(apart(*policy, 8, 7, 10'000)) << "pins less than it takes";
  EXPECT_FALSE(apart(*policy, 8, -8, 10'000)) << "uses up what is pinned";
  EXPECT_FALSE(apart(*policy, 10, 100, 10'000)) << "not small: more than 1/1024 of what is mapped";
  EXPECT_TRUE(apart(*policy, 8, 8, 10'192)) << "beyond the budget of 1.5 %, within 2 %";
  EXPECT_FALSE(apart(*policy, 8, 8, 10'193)) << "beyond 2 %";
  EXPECT_FALSE(apart(*page_policy(), 8, 8, 10'000));
}

TEST(AdaptivePolicy, wants_proof_of_what_is_pending_beyond_the_budget) {
  const auto policy = adaptive_policy();
  EXPECT_FALSE(policy->wants_proof_now({kPage, kPage, 99 * kPage, 100 * kPage}));
  EXPECT_TRUE(policy->wants_proof_now({50 * kPage, 50 * kPage, 100 * kPage, 100 * kPage}));
}

TEST(AdaptivePolicy, a_chunk_is_no_smaller_than_a_share_of_what_is_mapped) {
  EXPECT_EQ(adaptive_policy()->chunk_sizes(16 * kMiB, 512 * kMiB), Vector<Bytes>(8, 2 * kMiB));
  EXPECT_EQ(adaptive_policy()->chunk_sizes(16 * kMiB, 4000 * kMiB), Vector<Bytes>(2, 8 * kMiB));
}

TEST(AdaptivePolicy, spares_idle_chunks_of_which_much_would_be_pinned_beyond_the_budget) {
  const auto spares = [](Bytes mapped, Bytes pinned, Bytes asked = 9'900) {
    const auto policy = adaptive_policy();
    return policy->spares({kPage, 0, mapped * kPage, 10'000 * kPage, asked * kPage},
                          static_cast<std::int64_t>(pinned * kPage));
  };
  EXPECT_TRUE(spares(10'200, 5));
  EXPECT_FALSE(spares(10'200, 4)) << "a 2500th of what is mapped is more";
  EXPECT_FALSE(spares(10'100, 5)) << "within the budget";
  EXPECT_TRUE(spares(10'200, 1, 9'840)) << "1.036 times what was asked for: every page counts";
  EXPECT_FALSE(spares(10'200, 1, 9'850));
  EXPECT_FALSE(spares(10'100, 1, 9'000)) << "within the budget";
  EXPECT_FALSE(page_policy()->spares({kPage, 0, 10'200 * kPage, 10'000 * kPage}, 1000 * kPage));
}

TEST(AdaptivePolicy, the_preference_sets_the_budget_the_size_of_chunks_and_who_waits) {
  const auto preferring = [](Prefer prefer) {
    Config config;
    config.prefer = prefer;
    return make_chunk_policy(config, kPage);
  };
  const Demand demand{5 * kPage, 5 * kPage, 100 * kPage, 100 * kPage};
  EXPECT_EQ(preferring(Prefer::footprint)->grow_first(demand), 0u);
  EXPECT_EQ(preferring(Prefer::balanced)->grow_first(demand), 0u);
  EXPECT_EQ(preferring(Prefer::latency)->grow_first(demand), 5 * kPage);
  EXPECT_EQ(preferring(Prefer::footprint)->chunk_sizes(kGiB, kGiB).size(), 32u);
  EXPECT_EQ(preferring(Prefer::balanced)->chunk_sizes(kGiB, kGiB).size(), 14u);
  EXPECT_EQ(preferring(Prefer::latency)->chunk_sizes(kGiB, kGiB).size(), 8u);
  const auto least_part = [&](Prefer prefer, Bytes asked) {
    return preferring(prefer)->least_part({kPage, 0, 40 * kGiB, 40 * kGiB, asked});
  };
  EXPECT_EQ(least_part(Prefer::footprint, 39 * kGiB), kPage);
  EXPECT_EQ(least_part(Prefer::balanced, 39 * kGiB), 40 * kGiB / 2500);
  EXPECT_EQ(least_part(Prefer::balanced, 38 * kGiB), kPage);
  EXPECT_EQ(least_part(Prefer::latency, 30 * kGiB), 40 * kGiB / 500);
  EXPECT_EQ(preferring(Prefer::footprint)->waiting(), Waiting::after_moves);
  EXPECT_EQ(preferring(Prefer::balanced)->waiting(), Waiting::never);
  EXPECT_EQ(preferring(Prefer::latency)->waiting(), Waiting::never);
}

}  // namespace
}  // namespace vpmm::pool
