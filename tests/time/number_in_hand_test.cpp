// time: the number that frees without the pool's lock carry.
#include <gtest/gtest.h>

#include "support/held.hpp"
#include "time/timelines.hpp"

namespace vpmm::testing {
namespace {

TEST(NumberInHand, frees_share_one_number_until_it_counts_as_given) {
  time::NumberInHand in_hand;
  EXPECT_FALSE(in_hand.is_used());
  EXPECT_EQ(in_hand.of_a_free(), 1u);
  EXPECT_EQ(in_hand.of_a_free(), 1u);
  EXPECT_TRUE(in_hand.is_used());
  EXPECT_EQ(in_hand.seal(0), 1u);
  EXPECT_FALSE(in_hand.is_used());
  EXPECT_EQ(in_hand.of_a_free(), 2u);
}

TEST(NumberInHand, one_that_nobody_used_does_not_count_as_given) {
  time::NumberInHand in_hand;
  EXPECT_EQ(in_hand.seal(7), 7u);
  EXPECT_EQ(in_hand.of_a_free(), 8u);
}

// Otherwise no event would be due for it, and what it freed would stay unproven until the next free.
TEST(NumberInHand, a_free_while_it_counts_as_given_carries_one_that_counts_or_is_marked) {
  for (const bool is_used_before : {false, true}) {
    time::NumberInHand in_hand;
    if (is_used_before) in_hand.of_a_free();
    std::uint64_t last = 0;
    Held held("the number of a free is read", [&] { last = in_hand.seal(last); });
    const std::uint64_t carried = in_hand.of_a_free();
    ASSERT_TRUE(held.end());
    EXPECT_TRUE(carried <= last || in_hand.is_used()) << "number " << carried << " of " << last << " is forgotten";
  }
}

}  // namespace
}  // namespace vpmm::testing
