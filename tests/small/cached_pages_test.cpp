// SPDX-License-Identifier: Apache-2.0
// small: which of the pages cached a request finds.
#include "small/cached_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "small/size_class.hpp"

namespace vpmm::small {
namespace {

constexpr std::uint64_t kLargest = PageSizes::kCount - 1;

struct Cached : ::testing::Test {
  CachedPages pages;
  std::array<region::Region, 4> regions;

  Cached() {
    for (region::Region& region : regions) region.range.size = kMiB;
  }
};

TEST_F(Cached, pages_of_the_least_size_that_is_large_enough_are_found) {
  const std::array sizes{std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{4}, kLargest};
  for (std::size_t i = 0; i < sizes.size(); ++i) pages.add(sizes[i], &regions[i], 0);
  EXPECT_EQ(pages.least_from(0), 1u);
  EXPECT_EQ(pages.least_from(1), 1u);
  EXPECT_EQ(pages.least_from(2), 3u);
  EXPECT_EQ(pages.least_from(4), 4u);
  EXPECT_EQ(pages.least_from(5), kLargest);
  EXPECT_EQ(pages.least_from(kLargest + 1), std::nullopt);
  EXPECT_EQ(pages.least_from(1000), std::nullopt);
}

// From one page to four, 32 sizes to a doubling, and whole grains beyond.
TEST(PageSizes, add_at_most_a_32nd_to_a_request) {
  for (const Bytes grain : {64 * kKiB, 2 * kMiB}) {
    const PageSizes sizes(2 * kMiB, grain);
    EXPECT_EQ(sizes.rounded(1), 2 * kMiB);
    std::uint64_t last = 0;
    for (Bytes bytes = 2 * kMiB; bytes <= 20 * kMiB; bytes += 12'345) {
      const Bytes rounded = sizes.rounded(bytes);
      EXPECT_GE(rounded, bytes);
      EXPECT_LE(rounded - bytes, std::max(bytes / 32, grain)) << bytes;
      EXPECT_TRUE(is_multiple(rounded, grain)) << bytes;
      EXPECT_EQ(sizes.rounded(rounded), rounded) << bytes;
      EXPECT_EQ(sizes.least_from(bytes).has_value(), bytes <= sizes.most()) << bytes;
      if (bytes > sizes.most()) {
        EXPECT_EQ(rounded, round_up(bytes, grain)) << bytes << " beyond the sizes";
        continue;
      }
      EXPECT_LT(sizes.number_of(rounded), PageSizes::kCount);
      EXPECT_GE(sizes.number_of(rounded), last);
      last = sizes.number_of(rounded);
    }
  }
}

// There the grain is a page.
TEST(PageSizes, of_pages_that_are_no_power_of_two_are_whole_pages) {
  for (const Bytes page : {3 * kMiB, 3 * kMiB / 2, 5 * kMiB}) {
    const PageSizes sizes(page, page);
    EXPECT_EQ(sizes.rounded(1), page);
    for (std::uint64_t pages = 1; pages <= 9; ++pages)
      for (const Bytes less : {Bytes{0}, Bytes{1}, page - 1}) {
        const Bytes bytes = pages * page - less;
        EXPECT_EQ(sizes.rounded(bytes), pages * page) << bytes << " of " << page;
        EXPECT_EQ(sizes.least_from(bytes),
                  bytes <= 4 * page ? std::optional(pages - 1) : std::nullopt)
            << bytes << " of " << page;
      }
  }
}

// So a stream that crowds takes no more than one that does not.
TEST(PageSizes, are_those_of_spans) {
  for (const Bytes page : {1 * kMiB, 2 * kMiB, 4 * kMiB, 32 * kMiB}) {
    const PageSizes sizes(page, std::max(64 * kKiB, page / 32));
    for (Bytes bytes = page + 1; bytes <= 4 * page; bytes += page / 97)
      EXPECT_EQ(span_units(bytes) * kUnit, sizes.rounded(bytes)) << page << " " << bytes;
  }
}

TEST_F(Cached, pages_forget_a_size_with_its_last) {
  for (std::size_t i = 0; i < 3; ++i) pages.add(7, &regions[i], i + 1);
  EXPECT_EQ(pages.bytes(), 3 * kMiB);
  EXPECT_EQ(pages.take_last(7), &regions[2]);
  EXPECT_EQ(pages.take_first(7), &regions[0]);
  EXPECT_EQ(pages.least_from(1), 7u);
  EXPECT_EQ(CachedList::number_of(*pages.of(7).first()), 2u);
  EXPECT_EQ(pages.take_last(7), &regions[1]);
  EXPECT_EQ(pages.least_from(1), std::nullopt);
  EXPECT_EQ(pages.bytes(), 0u);
}

// Whatever the last two of a size were linked to.
TEST_F(Cached, pages_of_a_size_begin_anew_when_all_were_taken) {
  for (const bool is_first_taken_first : {true, false}) {
    SCOPED_TRACE(is_first_taken_first);
    for (std::size_t i = 0; i < 2; ++i) pages.add(7, &regions[i], i + 1);
    for (const bool takes_first : {is_first_taken_first, !is_first_taken_first})
      EXPECT_EQ(takes_first ? pages.take_first(7) : pages.take_last(7),
                &regions[takes_first ? 0 : 1]);
    for (std::size_t i = 2; i < 4; ++i) pages.add(7, &regions[i], i + 1);
    EXPECT_EQ(pages.of(7).first(), &regions[2]);
    EXPECT_EQ(pages.of(7).size(), 2u);
    EXPECT_EQ(pages.take_last(7), &regions[3]);
    EXPECT_EQ(pages.take_last(7), &regions[2]);
  }
}

TEST_F(Cached, pages_are_taken_all_by_size_and_in_order) {
  pages.add(kLargest, &regions[0], 1);
  pages.add(2, &regions[1], 2);
  pages.add(kLargest, &regions[2], 3);
  CachedList all = pages.take_all();
  EXPECT_EQ(pages.least_from(0), std::nullopt);
  EXPECT_TRUE(pages.of(kLargest).empty());
  EXPECT_EQ(pages.bytes(), 0u);
  EXPECT_EQ(all.size(), 3u);
  for (const std::size_t i : {1U, 0U, 2U}) EXPECT_EQ(all.take_first(), &regions[i]);
  EXPECT_TRUE(all.empty());
}

}  // namespace
}  // namespace vpmm::small
