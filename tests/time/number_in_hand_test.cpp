// SPDX-License-Identifier: Apache-2.0
// time: the number that frees without the pool's lock carry.
#include <gtest/gtest.h>

#include "support/held.hpp"
#include "time/timelines.hpp"

namespace vpmm::test {
namespace {

TEST(NextNumber, frees_share_one_number_until_it_counts_as_given) {
  time::NextNumber next_number;
  EXPECT_FALSE(next_number.is_used());
  EXPECT_EQ(next_number.of_a_free(), 1u);
  EXPECT_EQ(next_number.of_a_free(), 1u);
  EXPECT_TRUE(next_number.is_used());
  EXPECT_EQ(next_number.seal(0), 1u);
  EXPECT_FALSE(next_number.is_used());
  EXPECT_EQ(next_number.of_a_free(), 2u);
}

TEST(NextNumber, one_that_nobody_used_does_not_count_as_given) {
  time::NextNumber next_number;
  EXPECT_EQ(next_number.seal(7), 7u);
  EXPECT_EQ(next_number.of_a_free(), 8u);
}

TEST(NextNumber, one_for_another_timeline_follows_the_last_that_was_given_there) {
  time::NextNumber next_number;
  next_number.of_a_free();
  next_number.begin(7);
  EXPECT_FALSE(next_number.is_used()) << "the free was of the timeline before";
  EXPECT_EQ(next_number.of_a_free(), 8u);
}

// Otherwise no event would be due for it, and what it freed would stay unproven until the next
// free.
TEST(NextNumber, a_free_while_it_counts_as_given_carries_one_that_counts_or_is_marked) {
  for (const bool is_used_before : {false, true}) {
    time::NextNumber next_number;
    if (is_used_before) next_number.of_a_free();
    std::uint64_t last = 0;
    Held held("the number of a free is read", [&] { last = next_number.seal(last); });
    const std::uint64_t carried = next_number.of_a_free();
    ASSERT_TRUE(held.end());
    EXPECT_TRUE(carried <= last || next_number.is_used())
        << "number " << carried << " of " << last << " is forgotten";
  }
}

}  // namespace
}  // namespace vpmm::test
