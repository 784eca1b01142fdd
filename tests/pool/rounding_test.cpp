// pool: what a request of a page and more takes.
#include "pool/rounding.hpp"

#include <gtest/gtest.h>

namespace vpmm::pool {
namespace {

constexpr Bytes kPage = 2 * kMiB;
constexpr Bytes kSlice = 256 * kKiB;

Rounding page_mode() {
  Config config;
  config.page_chunks = true;
  return Rounding(config, kPage);
}

TEST(Rounding, is_to_pages_where_the_rest_of_the_last_one_is_little) {
  const Rounding rounding({}, kPage);
  for (const Bytes pages : {1, 2, 17, 1000}) EXPECT_EQ(rounding.rounded(pages * kPage, true), pages * kPage);
  EXPECT_EQ(rounding.rounded(32 * kPage - kPage / 2, true), 32 * kPage);
  EXPECT_EQ(rounding.rounded(100 * kPage + 1, true), 101 * kPage);
}

TEST(Rounding, is_to_slices_where_more_than_a_32nd_of_the_request_would_be_lost) {
  const Rounding rounding({}, kPage);
  EXPECT_EQ(rounding.slice_size(), kSlice);
  EXPECT_EQ(rounding.rounded(2 * kPage + 1, true), 2 * kPage + kSlice);
  EXPECT_EQ(rounding.rounded(15 * kPage + 4 * kSlice, true), 15 * kPage + 4 * kSlice);
  EXPECT_EQ(rounding.rounded(16 * kPage + 4 * kSlice, true), 17 * kPage) << "a 33rd";
}

TEST(Rounding, is_to_slices_from_one_page_on) {
  const Rounding rounding({}, kPage);
  EXPECT_EQ(rounding.rounded(kPage, true), kPage);
  EXPECT_EQ(rounding.rounded(kPage + 1, true), kPage + kSlice);
  EXPECT_EQ(rounding.rounded(2 * kPage - kSlice, true), 2 * kPage - kSlice);
  EXPECT_EQ(rounding.rounded(kPage + 1, false), 2 * kPage) << "or from two on";
  EXPECT_EQ(rounding.rounded(2 * kPage + 1, false), 2 * kPage + kSlice);
}

TEST(Rounding, loses_at_most_a_32nd_and_a_slice_from_there_on) {
  const Rounding rounding({}, kPage);
  for (Bytes bytes = kPage; bytes < 80 * kPage; bytes += 10007) {
    const Bytes rounded = rounding.rounded(bytes, true);
    ASSERT_GE(rounded, bytes);
    ASSERT_EQ(rounded % kSlice, 0u);
    ASSERT_LT(rounded - bytes, bytes / Rounding::kRestDivisor + kSlice) << bytes;
  }
}

// Otherwise two allocations could begin in one page, of which the directory knows one owner.
TEST(Rounding, never_gives_less_than_a_page) {
  EXPECT_EQ(Rounding({}, kPage).rounded(1, true), kPage);
  EXPECT_EQ(Rounding({}, kPage).rounded(kPage / 2, true), kPage);
}

TEST(Rounding, is_to_pages_in_page_mode_and_where_pages_are_no_power_of_two) {
  EXPECT_EQ(page_mode().slice_size(), kPage);
  EXPECT_EQ(page_mode().rounded(kPage + 1, true), 2 * kPage);
  const Rounding odd({}, 3 * kPage);
  EXPECT_EQ(odd.slice_size(), 3 * kPage);
  EXPECT_EQ(odd.rounded(3 * kPage + 1, true), 6 * kPage);
}

}  // namespace
}  // namespace vpmm::pool
