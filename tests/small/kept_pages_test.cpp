// small: which of the pages in hand a request finds.
#include "small/kept_pages.hpp"

#include <gtest/gtest.h>

namespace vpmm::small {
namespace {

TEST(KeptPages, find_the_least_size_that_is_large_enough) {
  KeptPages pages;
  for (const std::uint64_t slices : {8u, 63u, 64u, 130u, static_cast<unsigned>(kMostSlices)}) pages.add(slices, {});
  EXPECT_EQ(pages.least_from(0), 8u);
  EXPECT_EQ(pages.least_from(8), 8u);
  EXPECT_EQ(pages.least_from(9), 63u);
  EXPECT_EQ(pages.least_from(64), 64u);
  EXPECT_EQ(pages.least_from(65), 130u);
  EXPECT_EQ(pages.least_from(131), kMostSlices);
  EXPECT_EQ(pages.least_from(kMostSlices + 1), std::nullopt);
}

TEST(KeptPages, forget_a_size_with_its_last) {
  KeptPages pages;
  pages.add(70, {nullptr, 1});
  pages.add(70, {nullptr, 2});
  pages.add(70, {nullptr, 3});
  EXPECT_EQ(pages.take_last(70).number, 3u);
  EXPECT_EQ(pages.take_first(70, 1).front().number, 1u);
  EXPECT_EQ(pages.least_from(1), 70u);
  EXPECT_EQ(pages.take_last(70).number, 2u);
  EXPECT_EQ(pages.least_from(1), std::nullopt);
}

TEST(KeptPages, are_none_once_cleared) {
  KeptPages pages;
  pages.add(9, {});
  pages.add(200, {});
  pages.clear();
  EXPECT_EQ(pages.least_from(0), std::nullopt);
  EXPECT_TRUE(pages.of(200).empty());
}

}  // namespace
}  // namespace vpmm::small
