// SPDX-License-Identifier: Apache-2.0
// tests: spots lie inside their allocation and apart from each other; patterns tell allocations and
// places apart.
#include "replay/pattern.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace vpmm::replay {
namespace {

std::vector<Spot> spots_of(Bytes bytes, std::uint64_t seed = 1) {
  const Spots spots(bytes, seed);
  return {spots.begin(), spots.end()};
}

TEST(Spots, of_small_allocations_cover_what_there_is) {
  EXPECT_TRUE(spots_of(0).empty());
  EXPECT_EQ(spots_of(1), (std::vector<Spot>{{0, 1}}));
  EXPECT_EQ(spots_of(64), (std::vector<Spot>{{0, 64}}));
  EXPECT_EQ(spots_of(65), (std::vector<Spot>{{0, 64}, {64, 1}}));
  EXPECT_EQ(spots_of(128), (std::vector<Spot>{{0, 64}, {64, 64}}));
  EXPECT_EQ(spots_of(4096), (std::vector<Spot>{{0, 64}, {4032, 64}}));
}

TEST(Spots, stand_at_every_page_start_of_a_medium_allocation) {
  const std::vector<Spot> expected = {{0, 64}, {2 * kMiB, 64}, {4 * kMiB, 64}, {6 * kMiB - 64, 64}};
  EXPECT_EQ(spots_of(6 * kMiB), expected);
}

TEST(Spots, are_ascending_disjoint_and_inside) {
  for (const Bytes around :
       {Bytes{64}, Bytes{128}, 2 * kMiB, 4 * kMiB, 34 * kMiB, 36 * kMiB, 9 * kGiB}) {
    for (Bytes bytes = around - 64; bytes <= around + 130; ++bytes) {
      Bytes end = 0;
      for (const Spot& spot : Spots(bytes, bytes)) {
        ASSERT_GE(spot.offset, end) << bytes;
        ASSERT_GT(spot.size, 0u) << bytes;
        ASSERT_LE(spot.size, kSpotBytes) << bytes;
        end = spot.offset + spot.size;
      }
      ASSERT_EQ(end, bytes) << "the last spot ends where the allocation ends";
    }
  }
}

TEST(Spots, of_a_large_allocation_are_bounded_and_spread_over_all_of_it) {
  const auto spots = spots_of(10 * kGiB);
  ASSERT_EQ(spots.size(), kMaxPageSpots + 2);
  for (std::size_t i = 1; i + 1 < spots.size(); ++i) {
    EXPECT_TRUE(is_multiple(spots[i].offset, kSpotPage));
    EXPECT_EQ((spots[i].offset - kSpotPage) / (10 * kGiB / kMaxPageSpots), i - 1)
        << "one in each share";
  }
}

TEST(Spots, of_a_large_allocation_reach_every_page_under_some_seed) {
  std::set<Bytes> seen;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    for (const Spot& spot : Spots(200 * kMiB, seed_of(1, seed))) seen.insert(spot.offset);
  }
  EXPECT_EQ(seen.size(), 100u + 1) << "100 page starts and the last 64 bytes";
}

TEST(Pattern, is_found_where_it_was_written_and_nowhere_else) {
  std::array<std::byte, kSpotBytes> bytes{};
  fill(bytes, 7, 4096);
  EXPECT_TRUE(holds(bytes, 7, 4096));
  EXPECT_FALSE(holds(bytes, 8, 4096));
  EXPECT_FALSE(holds(bytes, 7, 4160));
  bytes[63] ^= std::byte{1};
  EXPECT_FALSE(holds(bytes, 7, 4096));
}

TEST(Pattern, is_never_what_a_last_use_leaves_behind) {
  for (Bytes size = 1; size <= kSpotBytes; ++size) {
    const std::vector<std::byte> left(size, std::byte{kLastUseByte});
    for (std::uint64_t seed = 0; seed < 300; ++seed) ASSERT_FALSE(holds(left, seed, 0)) << size;
  }
}

TEST(Pattern, of_few_bytes_is_the_start_of_the_pattern_of_many) {
  std::array<std::byte, kSpotBytes> bytes{};
  fill(bytes, 3, 0);
  EXPECT_TRUE(holds(std::span(bytes).first(5), 3, 0));
}

}  // namespace
}  // namespace vpmm::replay
