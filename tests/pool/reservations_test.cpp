// SPDX-License-Identifier: Apache-2.0
// pool: its address space: where reservations begin, and what is done about a driver that refuses
// some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::CuResult;

constexpr Bytes kAligned = kPagesInLine * kPage;

// Refuses more alignment, and more at once, than it is told.
class PickyDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                               DevicePtr& begin) override {
    if (alignment > most_alignment || size > most_size) return CuResult::out_of_memory;
    alignments.push_back(alignment);
    return ForwardingDriver::mem_address_reserve(size, alignment, hint, begin);
  }
  Bytes most_alignment = kGiB;
  Bytes most_size = kGiB;
  Vector<Bytes> alignments;  // granted
};

class Reservations : public PoolFixture<PickyDriver> {
 protected:
  Vector<AddressRange> three() {
    open();
    for (int i = 0; i < 3; ++i) take(16, a);
    return pool->memory().reservations;
  }
  void SetUp() override {
    config.page_chunks = false;
    config.va_size = 17 * kPage;
  }
};

TEST_F(Reservations, begin_at_sixteen_pages_so_that_a_program_finds_the_same_places_in_every_run) {
  const Vector<AddressRange> all = three();
  ASSERT_EQ(all.size(), 3u);
  for (const AddressRange& range : all) EXPECT_TRUE(is_aligned(range.begin, kAligned));
}

TEST_F(Reservations, begin_at_pages_where_chunks_are_pages) {
  config.page_chunks = true;
  ASSERT_EQ(three().size(), 3u);
  EXPECT_EQ(driver.alignments, Vector<Bytes>(3, kPage));
}

TEST_F(Reservations, of_a_driver_that_aligns_to_no_more_begin_at_pages) {
  driver.most_alignment = kPage;
  ASSERT_EQ(three().size(), 3u);
  EXPECT_EQ(driver.alignments, Vector<Bytes>(3, kPage));
}

TEST_F(Reservations, are_smaller_before_they_are_aligned_to_less) {
  config.va_size = kGiB;
  driver.most_size = 100 * kPage;
  const Vector<AddressRange> all = three();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].size, 64 * kPage);
  EXPECT_EQ(driver.alignments, Vector<Bytes>{kAligned});
}

TEST_F(Reservations, that_the_driver_refuses_altogether_are_an_error_that_loses_nothing) {
  open();
  driver.most_size = 0;
  const auto refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("mem_address_reserve"));
  driver.most_size = kGiB;
  give_back(take(1, a));
}

}  // namespace
}  // namespace vpmm::pool
