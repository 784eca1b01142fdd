// SPDX-License-Identifier: Apache-2.0
// guard tests: each n-th request is chosen, whether a cache saw it first or not.
#include <gtest/gtest.h>

#include <string>

#include "guard/guarded.hpp"

namespace vpmm::guard {
namespace {

TEST(Sampler, takes_each_nth_request_from_the_first_on) {
  for (const auto& [every, expected] :
       {std::pair(1, "111111"), std::pair(2, "101010"), std::pair(3, "100100")}) {
    Sampler sampler(static_cast<std::uint64_t>(every));
    EXPECT_EQ(sampler.takes_all(), every == 1);
    std::string taken;
    for (int i = 0; i < 6; ++i) taken += sampler.is_to_guard(false) ? '1' : '0';
    EXPECT_EQ(taken, expected);
  }
}

TEST(Sampler, takes_all_unless_told) { EXPECT_TRUE(Sampler(Options().every).takes_all()); }

TEST(Sampler, counts_a_request_once_that_came_again) {
  Sampler sampler(3);
  std::string taken;
  for (int i = 0; i < 6; ++i) {
    static_cast<void>(sampler.is_to_leave());
    sampler.count_again();
    taken += sampler.is_to_guard(false) ? '1' : '0';
  }
  EXPECT_EQ(taken, "100100");
}

TEST(Sampler, counts_a_request_that_a_cache_saw_once) {
  Sampler sampler(3);
  EXPECT_TRUE(sampler.is_to_leave());
  EXPECT_TRUE(sampler.is_to_leave()) << "a second try of the same";
  EXPECT_TRUE(sampler.is_to_guard(true));
  EXPECT_FALSE(sampler.is_to_guard(true)) << "another one, which the cache counted";
  EXPECT_FALSE(sampler.is_to_leave());
  EXPECT_FALSE(sampler.is_to_guard(true));
  EXPECT_FALSE(sampler.is_to_guard(false));
  EXPECT_TRUE(sampler.is_to_leave()) << "the third since";
  EXPECT_TRUE(sampler.is_to_guard(false)) << "the one that was left";
  EXPECT_FALSE(sampler.is_to_leave());
}

}  // namespace
}  // namespace vpmm::guard
