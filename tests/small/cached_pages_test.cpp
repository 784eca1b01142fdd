// small: which of the pages cached a request finds.
#include "small/cached_pages.hpp"

#include <gtest/gtest.h>

namespace vpmm::small {
namespace {

TEST(CachedPages, find_the_least_size_that_is_large_enough) {
  CachedPages pages;
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{4}, kMostPages})
    pages.add(size, {});
  EXPECT_EQ(pages.least_from(0), 1u);
  EXPECT_EQ(pages.least_from(1), 1u);
  EXPECT_EQ(pages.least_from(2), 3u);
  EXPECT_EQ(pages.least_from(4), 4u);
  EXPECT_EQ(pages.least_from(5), kMostPages);
  EXPECT_EQ(pages.least_from(kMostPages + 1), std::nullopt);
  EXPECT_EQ(pages.least_from(1000), std::nullopt);
}

TEST(CachedPages, forget_a_size_with_its_last) {
  CachedPages pages;
  pages.add(7, {nullptr, 1});
  pages.add(7, {nullptr, 2});
  pages.add(7, {nullptr, 3});
  EXPECT_EQ(pages.take_last(7).number, 3u);
  EXPECT_EQ(pages.take_first(7, 1).front().number, 1u);
  EXPECT_EQ(pages.least_from(1), 7u);
  EXPECT_EQ(pages.take_last(7).number, 2u);
  EXPECT_EQ(pages.least_from(1), std::nullopt);
}

TEST(CachedPages, are_none_once_cleared) {
  CachedPages pages;
  pages.add(2, {});
  pages.add(kMostPages, {});
  pages.clear();
  EXPECT_EQ(pages.least_from(0), std::nullopt);
  EXPECT_TRUE(pages.of(kMostPages).empty());
}

}  // namespace
}  // namespace vpmm::small
