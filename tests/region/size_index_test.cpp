// SPDX-License-Identifier: Apache-2.0
// region tests: regions by size, against a look at all of them.
#include "region/size_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "region/aligned_start.hpp"
#include "region/region_words.hpp"

namespace vpmm::region {
namespace {

class SizeIndexTest : public testing::Test {
 protected:
  Region* add(std::uint64_t first, std::uint64_t count) {
    Region& region = regions.emplace_back();
    region.range = pages(first, count);
    index.add(&region);
    present.push_back(&region);
    return &region;
  }
  void remove(Region* region) {
    index.remove(region);
    std::erase(present, region);
  }
  // The smallest that fits, the lowest among equals.
  const Region* naive_fit(Bytes size, Bytes alignment) const {
    const Region* best = nullptr;
    for (const Region* region : present) {
      if (!aligned_start(region->range, size, alignment)) continue;
      const bool is_better =
          best == nullptr || region->range.size < best->range.size ||
          (region->range.size == best->range.size && region->range.begin < best->range.begin);
      if (is_better) best = region;
    }
    return best;
  }
  const Region* naive_lowest(Bytes size, Bytes alignment) const {
    const Region* best = nullptr;
    for (const Region* region : present)
      if (aligned_start(region->range, size, alignment) &&
          (best == nullptr || region->range.begin < best->range.begin))
        best = region;
    return best;
  }
  Ranking naive_ranking() const {
    Ranking all;
    for (const Region* region : present)
      all.push_back({region->range.size, region->range.begin, region});
    std::sort(all.begin(), all.end());
    return all;
  }

  SizeIndex index{PageUnit(kPage)};
  std::deque<Region> regions;
  Vector<Region*> present;
};

TEST_F(SizeIndexTest, random_regions_of_few_sizes_are_found_as_by_a_look_at_all) {
  std::mt19937_64 random(3);
  const std::uint64_t sizes[] = {1, 2, 3, 63, 64, 65, 4095, 4096, 4097, 9000};
  for (int i = 0; i < 6000; ++i) {
    const bool is_crowded = present.size() > (i < 3000 ? 12 : 150);
    if (is_crowded || (!present.empty() && random() % 3 == 0))
      remove(present[random() % present.size()]);
    else
      add(static_cast<std::uint64_t>(i) * 10'000 + random() % 50,
          sizes[random() % std::size(sizes)]);
    const Bytes size = (sizes[random() % std::size(sizes)] + random() % 3) * kPage;
    const Bytes alignment = kPage << random() % 6;
    ASSERT_EQ(index.first_fit(size, alignment).region, naive_fit(size, alignment));
    ASSERT_EQ(index.lowest_fit(size, alignment).region, naive_lowest(size, alignment));
    ASSERT_EQ(index.at_least(size).region, naive_fit(size, 1));
    ASSERT_EQ(index.largest(), present.empty() ? 0 : naive_ranking().back().number);
    ASSERT_EQ(index.count(), present.size());
    if (i % 50 != 0) continue;
    ASSERT_TRUE(index.is_sound());
    ASSERT_EQ(index.ranking(), naive_ranking());
  }
}

TEST_F(SizeIndexTest, a_fit_says_the_range_of_its_region) {
  add(100, 5);
  add(200, 7000);
  const Fit small = index.at_least(4 * kPage);
  EXPECT_EQ((AddressRange{small.begin, small.size}), small.region->range);
  const Fit large = index.first_fit(6 * kPage, 64 * kPage);
  EXPECT_EQ((AddressRange{large.begin, large.size}), pages(200, 7000));
}

// As pages of three bytes have them.
TEST(SizeIndexOfOddPages, regions_at_odd_addresses_are_found_whatever_their_size) {
  constexpr Bytes kOddPage = 3;
  for (const std::uint64_t count : {1u, 63u, 64u, 4095u, 4096u, 9000u}) {
    SizeIndex index{PageUnit(kOddPage)};
    Region region;
    region.range = {DevicePtr{300'001}, count * kOddPage};
    index.add(&region);
    EXPECT_EQ(index.at_least(count * kOddPage).region, &region);
    EXPECT_EQ(index.at_least(kOddPage).region, &region);
    EXPECT_EQ(index.at_least((count + 1) * kOddPage).region, nullptr);
    EXPECT_EQ(index.first_fit(count * kOddPage, 1).region, &region);
    EXPECT_EQ(index.first_fit(count * kOddPage, 2).region, nullptr) << "nowhere aligned";
    EXPECT_EQ(index.lowest_fit(count * kOddPage, 1).region, &region);
    EXPECT_EQ(index.lowest_fit(count * kOddPage, 2).region, nullptr);
    index.remove(&region);
    EXPECT_EQ(index.at_least(kOddPage).region, nullptr);
    EXPECT_EQ(index.largest(), 0u);
  }
}

TEST_F(SizeIndexTest, a_region_moved_behind_its_back_is_not_sound) {
  Region* const small = add(10, 5);
  Region* const large = add(100, 5000);
  ASSERT_TRUE(index.is_sound());
  small->range.begin = page(11);
  EXPECT_FALSE(index.is_sound());
  small->range = pages(10, 6);
  EXPECT_FALSE(index.is_sound());
  small->range = pages(10, 5);
  large->range.size += kPage;
  EXPECT_FALSE(index.is_sound());
}

}  // namespace
}  // namespace vpmm::region
