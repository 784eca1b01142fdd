// SPDX-License-Identifier: Apache-2.0
// region tests: the first aligned place in a range.
#include "region/aligned_start.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace vpmm::region {
namespace {

std::optional<std::uint64_t> start(std::uint64_t begin, Bytes within, Bytes size, Bytes alignment) {
  const auto found = aligned_start({DevicePtr{begin}, within}, size, alignment);
  return found ? std::optional(to_integer(*found)) : std::nullopt;
}

TEST(AlignedStart, the_first_multiple_of_the_alignment_is_taken) {
  EXPECT_EQ(start(0x1000, 0x1000, 0x100, 0x100), 0x1000U);
  EXPECT_EQ(start(0x1001, 0x1000, 0x100, 0x100), 0x1100U);
  EXPECT_EQ(start(0x10ff, 0x1000, 0x100, 0x100), 0x1100U);
  EXPECT_EQ(start(0x1001, 0x1000, 0x100, 1), 0x1001U);
  EXPECT_EQ(start(1001, 1000, 100, 300), 1200U) << "no power of two";
}

TEST(AlignedStart, all_of_the_size_fits_behind_it) {
  EXPECT_EQ(start(0x1001, 0x1ff, 0x100, 0x100), 0x1100U) << "up to the last byte";
  EXPECT_EQ(start(0x1001, 0x1fe, 0x100, 0x100), std::nullopt);
  EXPECT_EQ(start(0x1001, 0xff, 0, 0x100), 0x1100U) << "none, at the end";
  EXPECT_EQ(start(0x1001, 0xfe, 0, 0x100), std::nullopt);
}

}  // namespace
}  // namespace vpmm::region
