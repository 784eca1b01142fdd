// small: which units of an extent are taken, and what is known of those that are left.
#include "small/extent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace vpmm::small {
namespace {

Extent extent_of(std::uint32_t units) {
  Extent extent;
  extent.units = units;
  extent.set_all_free();
  return extent;
}

TEST(Extent, begins_as_one_stretch_of_any_length) {
  for (const std::uint32_t units : {1u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4096u}) {
    Extent extent = extent_of(units);
    EXPECT_EQ(extent.longest, units);
    EXPECT_TRUE(extent.is_free());
    EXPECT_EQ(extent.validate(), "");
    EXPECT_EQ(extent.take(units), 0u);
    EXPECT_EQ(extent.longest, 0u);
    EXPECT_EQ(extent.free_units, 0u);
    EXPECT_EQ(extent.validate(), "");
  }
}

TEST(Extent, takes_the_front_of_the_shortest_stretch_that_is_long_enough) {
  Extent extent = extent_of(128);
  extent.take(128);
  extent.give(10, 20);
  extent.give(60, 8);  // across two words
  extent.give(100, 28);
  EXPECT_EQ(extent.longest, 28u);
  EXPECT_EQ(extent.take(8), 60u);
  EXPECT_EQ(extent.take(8), 10u);
  EXPECT_EQ(extent.take(21), 100u);
  EXPECT_EQ(extent.longest, 12u);
  EXPECT_EQ(extent.take(12), 18u);
  EXPECT_EQ(extent.longest, 7u);
  EXPECT_EQ(extent.validate(), "");
}

TEST(Extent, neighbours_that_come_back_are_one_stretch) {
  Extent extent = extent_of(128);
  extent.take(128);
  extent.give(0, 50);
  extent.give(70, 58);
  EXPECT_EQ(extent.longest, 58u);
  extent.give(50, 20);
  EXPECT_EQ(extent.longest, 128u);
  EXPECT_TRUE(extent.is_free());
}

// Against a set of units.
TEST(Extent, agrees_with_a_set_of_units_whatever_is_taken_and_given) {
  for (const std::uint32_t units : {100u, 128u, 300u}) {
    Extent extent = extent_of(units);
    std::set<std::uint64_t> free;
    for (std::uint64_t unit = 0; unit < units; ++unit) free.insert(unit);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    std::mt19937_64 random(units);
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t wanted = 1 + random() % 24;
      if (extent.longest >= wanted && random() % 2 == 0) {
        const std::uint64_t first = extent.take(wanted);
        for (std::uint64_t unit = first; unit < first + wanted; ++unit)
          ASSERT_EQ(free.erase(unit), 1u) << "unit " << unit << " was taken already";
        taken.emplace_back(first, wanted);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        const auto [first, count] = taken.back();
        taken.pop_back();
        extent.give(first, count);
        for (std::uint64_t unit = first; unit < first + count; ++unit) free.insert(unit);
      }
      std::uint64_t longest = 0, length = 0, last = units;
      for (const std::uint64_t unit : free) {
        length = unit == last + 1 ? length + 1 : 1;
        last = unit;
        longest = std::max(longest, length);
      }
      ASSERT_EQ(extent.longest, longest);
      ASSERT_EQ(extent.free_units, free.size());
      ASSERT_EQ(extent.validate(), "");
    }
  }
}

TEST(ExtentLists, find_one_of_those_with_the_shortest_sufficient_stretch) {
  ExtentLists lists;
  EXPECT_EQ(lists.find(1), nullptr);
  std::vector<Extent> extents;
  for (const std::uint32_t units : {5u, 64u, 128u, 200u, 4096u}) extents.push_back(extent_of(units));
  for (Extent& extent : extents) lists.file(&extent);
  for (const auto& [wanted, found] :
       {std::pair<std::uint64_t, std::uint32_t>{1, 5}, {5, 5}, {6, 64}, {65, 128}, {201, 4096}, {4096, 4096}})
    EXPECT_EQ(lists.find(wanted)->units, found) << wanted;
  EXPECT_GE(lists.find(129)->units, 200u);
  EXPECT_EQ(lists.find(4097), nullptr);
  lists.remove(&extents[0], 5);
  EXPECT_EQ(lists.find(1)->units, 64u);
  std::size_t count = 0;
  lists.for_each([&](const Extent*) { ++count; });
  EXPECT_EQ(count, 4u);
  std::vector<std::uint32_t> long_ones;
  const auto collect = [&](std::size_t most) {
    long_ones.clear();
    lists.for_each_from(128, [&](const Extent* extent) {
      long_ones.push_back(extent->units);
      return long_ones.size() < most;
    });
  };
  collect(100);
  EXPECT_EQ(long_ones.size(), 3u);
  EXPECT_EQ(long_ones.front(), 128u);
  collect(2);
  EXPECT_EQ(long_ones.size(), 2u);
  Extent full = extent_of(3);
  full.take(3);
  lists.file(&full);
  lists.for_each([&](const Extent* extent) { EXPECT_NE(extent, &full) << "nothing can be taken from it"; });
}

}  // namespace
}  // namespace vpmm::small
