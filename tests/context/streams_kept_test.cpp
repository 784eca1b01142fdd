// SPDX-License-Identifier: Apache-2.0
// context: how many streams a pool remembers as streams are forgotten and come back.
#include "context/streams_kept.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace vpmm::context {
namespace {

// So many streams in a row are forgotten before the number halves, each time.
TEST(StreamsKept, halve_after_as_many_were_forgotten_and_none_came_back) {
  StreamsKept kept;
  for (int i = 0; i < 3; ++i) kept.came_back();
  for (std::size_t most = 8 * kTimelinesKept; most > kTimelinesKept; most /= 2) {
    for (std::size_t i = 0; i < most; ++i) {
      ASSERT_EQ(kept.most(), most) << i;
      kept.is_forgotten();
    }
  }
  for (std::size_t i = 0; i < 3 * kTimelinesKept; ++i) {
    ASSERT_EQ(kept.most(), kTimelinesKept) << "never fewer";
    kept.is_forgotten();
  }
}

TEST(StreamsKept, double_when_one_comes_back_and_count_anew) {
  StreamsKept kept;
  kept.came_back();
  for (std::size_t i = 0; i < 2 * kTimelinesKept - 1; ++i) kept.is_forgotten();
  kept.came_back();
  for (std::size_t i = 0; i < 4 * kTimelinesKept; ++i) {
    ASSERT_EQ(kept.most(), 4 * kTimelinesKept) << i;
    kept.is_forgotten();
  }
  EXPECT_EQ(kept.most(), 2 * kTimelinesKept);
  for (int i = 0; i < 20; ++i) kept.came_back();
  EXPECT_EQ(kept.most(), 4096u) << "and never more";
}

}  // namespace
}  // namespace vpmm::context
