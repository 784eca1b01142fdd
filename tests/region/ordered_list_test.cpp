// SPDX-License-Identifier: Apache-2.0
// region tests: the ordered list, with what comes in order and what does not.
#include "region/ordered_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "region/region_words.hpp"

namespace vpmm::region {
namespace {

class OrderedListTest : public testing::Test {
 protected:
  OrderedListTest() {
    for (std::size_t i = 0; i < regions.size(); ++i) regions[i].range = pages(i, 1);
  }
  ~OrderedListTest() override { EXPECT_TRUE(list.is_sound()); }

  // The pages of the regions, in order.
  Vector<std::uint64_t> order() const {
    Vector<std::uint64_t> all;
    list.visit_in_order([&](const Region* region) {
      all.push_back((region->range.begin - kStart) / kPage);
      return true;
    });
    return all;
  }
  using Pages = Vector<std::uint64_t>;

  std::array<Region, 10> regions;
  OrderedList<AgeLinks> list;
};

TEST_F(OrderedListTest, what_comes_late_stands_where_its_number_belongs) {
  list.add(&regions[0], 10);
  list.add(&regions[1], 30);
  list.add(&regions[2], 20);
  list.add(&regions[3], 5);
  list.add(&regions[4], 40);
  EXPECT_EQ(order(), (Pages{3, 0, 2, 1, 4}));
  EXPECT_EQ(list.front(), &regions[3]);
  list.remove(&regions[3]);
  EXPECT_EQ(list.front(), &regions[0]);
  list.remove(&regions[0]);
  EXPECT_EQ(list.front(), &regions[2]);
}

// The tree takes host memory for each region, and a search.
TEST_F(OrderedListTest, what_comes_in_order_is_linked_and_only_what_comes_late_stands_beside) {
  list.add(&regions[3], 10);
  list.add(&regions[1], 20);
  list.add(&regions[2], 20);
  list.add(&regions[5], 15);
  list.add(&regions[4], 30);
  const Region* before = nullptr;
  for (const std::size_t linked : {3u, 1u, 2u, 4u}) {
    EXPECT_EQ(regions[linked].by_age.previous, before) << linked;
    before = &regions[linked];
  }
  EXPECT_EQ(regions[2].by_age.next, &regions[4]) << "past the late one";
  EXPECT_EQ(regions[5].by_age.next, nullptr);
  EXPECT_EQ(order(), (Pages{3, 5, 1, 2, 4}));
}

TEST_F(OrderedListTest, of_equal_numbers_the_lowest_address_comes_first) {
  list.add(&regions[5], 7);
  list.add(&regions[8], 7);
  list.add(&regions[2], 7);
  list.add(&regions[6], 7);
  EXPECT_EQ(order(), (Pages{2, 5, 6, 8}));
}

TEST_F(OrderedListTest, the_end_of_a_region_follows_it_in_order_or_as_a_straggler) {
  list.add(&regions[4], 10);
  list.add(&regions[7], 30);
  list.add(&regions[1], 20);
  list.add_behind(&regions[4], &regions[5]);
  list.add_behind(&regions[1], &regions[2]);
  list.add_behind(&regions[7], &regions[8]);
  EXPECT_EQ(order(), (Pages{4, 5, 1, 2, 7, 8}));
}

TEST_F(OrderedListTest, a_region_takes_the_place_of_another_in_order_or_as_a_straggler) {
  list.add(&regions[3], 10);
  list.add(&regions[7], 30);
  list.add(&regions[9], 20);
  list.replace(&regions[3], &regions[2]);
  list.replace(&regions[9], &regions[8]);
  list.replace(&regions[7], &regions[6]);
  EXPECT_EQ(order(), (Pages{2, 8, 6}));
  EXPECT_EQ(regions[8].by_age.number, 20U);
}

TEST_F(OrderedListTest, the_last_of_all_kinds_leaves_it_empty) {
  list.add(&regions[0], 10);
  list.add(&regions[1], 5);
  list.remove(&regions[0]);
  EXPECT_FALSE(list.empty());
  list.remove(&regions[1]);
  EXPECT_TRUE(list.empty());
  list.add(&regions[2], 1);
  EXPECT_EQ(order(), (Pages{2}));
}

TEST_F(OrderedListTest, a_visit_ends_when_it_is_told_to) {
  for (std::size_t i = 0; i < 4; ++i) list.add(&regions[i], i < 2 ? 50 + i : i);
  for (std::size_t wanted = 1; wanted <= 4; ++wanted) {
    std::size_t visited = 0;
    list.visit_in_order([&](const Region*) { return ++visited < wanted; });
    EXPECT_EQ(visited, wanted);
  }
}

TEST_F(OrderedListTest, a_number_changed_behind_its_back_is_not_sound) {
  for (std::size_t i = 0; i < 3; ++i) list.add(&regions[i], i);
  regions[1].by_age.number = 5;
  EXPECT_FALSE(list.is_sound());
  regions[1].by_age.number = 1;
}

}  // namespace
}  // namespace vpmm::region
