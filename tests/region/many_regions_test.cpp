// SPDX-License-Identifier: Apache-2.0
// region tests: an index with many regions, far apart, and for long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "region/region_index_fixture.hpp"

namespace vpmm::region {
namespace {

using ManyRegions = RegionIndexTest;

// Their records are found in any order, so those of one size stand deep below each other.
TEST_F(ManyRegions, of_one_size_are_found_from_the_lowest_on) {
  index.add_reservation(pages(0, 3000));
  std::vector<std::uint64_t> begins(1000);
  for (std::size_t i = 0; i < begins.size(); ++i) begins[i] = i * 3;
  std::mt19937_64 random(1);
  std::shuffle(begins.begin(), begins.end(), random);
  for (const std::uint64_t at : begins) map(at, 2);
  std::shuffle(begins.begin(), begins.end(), random);
  while (begins.size() > 500) {
    allocate(begins.back(), 2);
    begins.pop_back();
  }
  EXPECT_EQ(index.validate(), "");
  std::sort(begins.begin(), begins.end());
  for (const std::uint64_t at : begins) {
    Region* const lowest = index.lowest_fit(2 * kPage, kPage, std::nullopt);
    ASSERT_EQ(lowest->range, pages(at, 2));
    index.allocate(lowest, lowest->range, Owner{});
  }
}

TEST_F(ManyRegions, one_after_another_need_few_records) {
  index.add_reservation(pages(0, 20));
  map(0, 20);
  std::set<const Region*> records;
  for (int i = 0; i < 1000; ++i) {
    Region* const region = allocate(5, 3);
    index.for_each([&](const Region& each) { records.insert(&each); });
    index.release(region, complete());
  }
  EXPECT_LT(records.size(), 10U);
}

TEST_F(ManyRegions, far_apart_that_touch_are_each_found_once) {
  index.add_reservation(pages(0, 12'000));
  Vector<Vector<std::uint64_t>> expected;
  for (const std::uint64_t at : {0U, 60U, 63U, 66U, 127U, 4095U, 4158U, 11'990U}) {
    map(at, 1, on(A, at + 1));
    map(at + 1, 1, on(B, at + 1));
    expected.push_back({at, at + 1});
  }
  EXPECT_EQ(runs(), expected);
}

}  // namespace
}  // namespace vpmm::region
