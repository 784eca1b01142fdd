// SPDX-License-Identifier: Apache-2.0
// time: stamps as values.
#include "time/stamp.hpp"

#include <gtest/gtest.h>

namespace vpmm::time {
namespace {

constexpr TimelineId A{1};
constexpr TimelineId B{2};

TEST(Stamp, without_parts_is_complete_and_of_no_timeline) {
  const Stamp stamp;
  EXPECT_TRUE(stamp.is_complete());
  EXPECT_FALSE(stamp.is_single());
  EXPECT_FALSE(stamp.is_only_on(A));
}

// Numbers of frees begin at 1, so that 0 says of memory that no free is to be waited for.
TEST(Stamp, the_part_that_nobody_wrote_is_no_free) {
  EXPECT_EQ(StampPart{}.sequence, 0u);
  EXPECT_EQ(StampPart{}.timeline, TimelineId{});
}

TEST(Stamp, two_parts_on_one_timeline_become_the_later) {
  const Stamp stamp({A, 7}, {A, 3});
  EXPECT_EQ(stamp, Stamp(StampPart{A, 7}));
  EXPECT_EQ(Stamp({A, 3}, {A, 7}), stamp);
  EXPECT_TRUE(stamp.is_only_on(A));
  EXPECT_TRUE(stamp.is_single());
}

TEST(Stamp, with_two_timelines_is_of_neither_alone) {
  const Stamp stamp({A, 7}, {B, 3});
  EXPECT_FALSE(stamp.is_only_on(A));
  EXPECT_FALSE(stamp.is_only_on(B));
  EXPECT_FALSE(stamp.is_single());
  EXPECT_EQ(stamp.parts().size(), 2u);
}

TEST(Stamp, loses_a_part_only_to_a_number_that_reaches_it) {
  const Stamp stamp({A, 7}, {B, 3});
  EXPECT_EQ(stamp.without(A, 6), stamp);
  EXPECT_EQ(stamp.without(A, 7), Stamp(StampPart{B, 3}));
  EXPECT_TRUE(stamp.without(B, 9).without(A, 9).is_complete());
}

}  // namespace
}  // namespace vpmm::time
