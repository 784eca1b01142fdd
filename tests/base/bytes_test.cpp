// SPDX-License-Identifier: Apache-2.0
// tests: sizes in bytes and their rounding.
#include "base/bytes.hpp"

#include <gtest/gtest.h>

namespace vpmm {
namespace {

using namespace literals;

TEST(Bytes, units_are_powers_of_1024) {
  EXPECT_EQ(7_B, 7u);
  EXPECT_EQ(1_KiB, 1024u);
  EXPECT_EQ(3_MiB, 3u * 1024 * 1024);
  EXPECT_EQ(1_GiB, 1024_MiB);
  EXPECT_EQ(2_TiB, 2048_GiB);
}

TEST(Bytes, round_up_reaches_the_next_multiple_and_keeps_a_multiple) {
  EXPECT_EQ(round_up(0, 2_MiB), 0u);
  EXPECT_EQ(round_up(1, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(2_MiB + 1, 2_MiB), 4_MiB);
}

TEST(Bytes, rounding_works_for_units_that_are_no_power_of_two) {
  EXPECT_EQ(round_up(10, 6), 12u);
  EXPECT_EQ(round_down(10, 6), 6u);
  EXPECT_EQ(round_up(12, 6), 12u);
}

TEST(Bytes, round_down_never_exceeds_its_argument) {
  EXPECT_EQ(round_down(2_MiB - 1, 2_MiB), 0u);
  EXPECT_EQ(round_down(4_MiB, 2_MiB), 4_MiB);
  EXPECT_EQ(round_down(5_MiB, 2_MiB), 4_MiB);
}

TEST(Bytes, is_multiple_accepts_zero_and_whole_multiples_only) {
  EXPECT_TRUE(is_multiple(0, 512));
  EXPECT_TRUE(is_multiple(1024, 512));
  EXPECT_FALSE(is_multiple(513, 512));
}

TEST(Bytes, zero_is_no_power_of_two) {
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_FALSE(is_power_of_two(3));
  EXPECT_TRUE(is_power_of_two(std::uint64_t{1} << 63));
}

}  // namespace
}  // namespace vpmm
