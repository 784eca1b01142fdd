// SPDX-License-Identifier: Apache-2.0
// pool: how long growth is put off.
#include "pool/grow_delay.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace vpmm::pool {
namespace {

constexpr Bytes kMapped = 32 * kGiB;

TEST(GrowDelay, is_proportional_to_the_share_of_mapped_memory_that_it_may_spare) {
  const Bytes whole = kMapped / GrowDelay::kWholeShare;
  EXPECT_EQ(GrowDelay::longest_ns(0, kMapped), 0u);
  EXPECT_EQ(GrowDelay::longest_ns(whole / 4, kMapped), GrowDelay::kLongestNs / 4);
  EXPECT_EQ(GrowDelay::longest_ns(whole / 2, kMapped), GrowDelay::kLongestNs / 2);
  EXPECT_EQ(GrowDelay::longest_ns(whole / 2, 2 * kMapped), GrowDelay::kLongestNs / 4);
  EXPECT_EQ(GrowDelay::longest_ns(whole, kMapped), GrowDelay::kLongestNs);
}

TEST(GrowDelay, is_bounded) {
  EXPECT_EQ(GrowDelay::longest_ns(kMapped, kMapped), GrowDelay::kLongestNs);
  EXPECT_EQ(GrowDelay::longest_ns(100 * kMapped, kMapped), GrowDelay::kLongestNs);
  EXPECT_EQ(GrowDelay::longest_ns(GrowDelay::kLeastWhole, 0), GrowDelay::kLongestNs)
      << "an empty pool";
  EXPECT_EQ(GrowDelay::longest_ns(GrowDelay::kLeastWhole / 64, 0), GrowDelay::kLongestNs / 64);
}

TEST(GrowDelay, doubling_the_memory_costs_a_quarter_of_a_second_in_steps_of_any_size) {
  const double most_ns = static_cast<double>(GrowDelay::kLongestNs) *
                         static_cast<double>(GrowDelay::kWholeShare) * std::log(2.0);
  for (Bytes step = 2 * kMiB; step <= kMapped; step *= 2) {
    std::uint64_t ns = 0;
    for (Bytes mapped = kMapped; mapped < 2 * kMapped; mapped += step)
      ns += GrowDelay::longest_ns(step, mapped);
    EXPECT_LT(static_cast<double>(ns), 1.02 * most_ns) << step;
  }
}

}  // namespace
}  // namespace vpmm::pool
