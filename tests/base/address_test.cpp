// SPDX-License-Identifier: Apache-2.0
// tests: device addresses and half-open ranges.
#include "base/address.hpp"

#include <gtest/gtest.h>

namespace vpmm {
namespace {

constexpr AddressRange kRange{DevicePtr{0x1000}, 0x100};

TEST(DevicePtr, arithmetic_stays_in_bytes) {
  EXPECT_EQ(DevicePtr{0x1000} + 0x10, DevicePtr{0x1010});
  EXPECT_EQ(DevicePtr{0x1010} - Bytes{0x10}, DevicePtr{0x1000});
  EXPECT_EQ(DevicePtr{0x1010} - DevicePtr{0x1000}, Bytes{0x10});
}

TEST(DevicePtr, default_is_null) {
  EXPECT_TRUE(is_null(DevicePtr{}));
  EXPECT_FALSE(is_null(DevicePtr{1}));
}

TEST(DevicePtr, align_up_keeps_an_aligned_address) {
  EXPECT_EQ(align_up(DevicePtr{0x1000}, 0x1000), DevicePtr{0x1000});
  EXPECT_EQ(align_up(DevicePtr{0x1001}, 0x1000), DevicePtr{0x2000});
  EXPECT_TRUE(is_aligned(DevicePtr{0x2000}, 0x1000));
  EXPECT_FALSE(is_aligned(DevicePtr{0x2010}, 0x1000));
}

TEST(AddressRange, end_is_outside) {
  EXPECT_TRUE(kRange.contains(DevicePtr{0x1000}));
  EXPECT_TRUE(kRange.contains(DevicePtr{0x10ff}));
  EXPECT_FALSE(kRange.contains(kRange.end()));
  EXPECT_FALSE(kRange.contains(DevicePtr{0xfff}));
}

TEST(AddressRange, contains_itself_and_what_lies_inside) {
  EXPECT_TRUE(kRange.contains(kRange));
  EXPECT_TRUE(kRange.contains(AddressRange{DevicePtr{0x1080}, 0x80}));
  EXPECT_FALSE(kRange.contains(AddressRange{DevicePtr{0x1080}, 0x81}));
  EXPECT_FALSE(kRange.contains(AddressRange{DevicePtr{0xfff}, 2}));
}

TEST(AddressRange, neighbours_do_not_overlap) {
  const AddressRange after{kRange.end(), 0x100};
  const AddressRange across{DevicePtr{0x10ff}, 2};
  EXPECT_FALSE(kRange.overlaps(after));
  EXPECT_FALSE(after.overlaps(kRange));
  EXPECT_TRUE(kRange.overlaps(across));
  EXPECT_TRUE(across.overlaps(kRange));
}

TEST(AddressRange, an_empty_range_contains_no_address) {
  const AddressRange nothing{DevicePtr{0x1000}, 0};
  EXPECT_TRUE(nothing.empty());
  EXPECT_FALSE(nothing.contains(DevicePtr{0x1000}));
  EXPECT_FALSE(kRange.empty());
}

}  // namespace
}  // namespace vpmm
