// SPDX-License-Identifier: Apache-2.0
// region tests: what RegionIndex does where a caller breaks its preconditions, or changes a region
// behind its back.
#include <gtest/gtest.h>

#include <new>

#include "region/region_index.hpp"
#include "region/region_index_fixture.hpp"

namespace vpmm::region {
namespace {

using RegionIndexValidate = RegionIndexTest;
using RegionIndexDeathTest = RegionIndexTest;

// --- broken preconditions ---

TEST_F(RegionIndexDeathTest, releasing_a_free_region_aborts_with_the_picture) {
  index.add_reservation(pages(0, 10));
  map(2, 3);
  EXPECT_DEATH(index.release(region_at(index, 2), complete()), "\\[\\*2\\]\\[-3\\]");
}

TEST_F(RegionIndexDeathTest, allocating_more_than_the_region_has_aborts) {
  index.add_reservation(pages(0, 10));
  map(2, 3);
  EXPECT_DEATH(index.allocate(region_at(index, 2), pages(4, 2), Owner{}), "check failed");
}

TEST_F(RegionIndexDeathTest, detaching_half_a_page_aborts) {
  index.add_reservation(pages(0, 10));
  EXPECT_DEATH(index.detach(region_at(index, 2), {page(2), kPage / 2}), "check failed");
}

TEST_F(RegionIndexDeathTest, joining_anything_but_neighbours_that_are_allocated_aborts) {
  index.add_reservation(pages(0, 10));
  map(0, 10);
  Region* const front = allocate(0, 2);
  Region* const back = allocate(2, 2);
  Region* const far = allocate(6, 1);
  EXPECT_DEATH(index.join(back, front), "check failed");
  EXPECT_DEATH(index.join(back, far), "check failed");
  EXPECT_DEATH(index.join(back, region_at(index, 4)), "check failed");
}

TEST_F(RegionIndexDeathTest, splitting_elsewhere_than_at_a_page_inside_aborts) {
  index.add_reservation(pages(0, 10));
  map(0, 10);
  Region* const allocated = allocate(2, 3);
  for (const DevicePtr at : {page(2), page(3) + kPage / 2, page(5), page(6), page(1)})
    EXPECT_DEATH(index.split_allocated(allocated, at), "check failed");
  Region* const flight = index.detach(region_at(index, 6), pages(6, 3));
  for (const DevicePtr at : {page(6), page(7) + kPage / 2, page(9), page(10), page(5)})
    EXPECT_DEATH(index.split_in_flight(flight, at), "check failed");
}

// --- limits ---

TEST_F(RegionIndexDeathTest, a_reservation_too_large_to_keep_account_of_changes_nothing) {
  RegionIndex fine(4096);  // no table of 2^51 pages has memory
  fine.add_reservation({kStart, 4096});
  fine.attach_free(fine.detach(region_at(fine, 0), {kStart, 4096}), complete());
  EXPECT_THROW(fine.add_reservation({page(1), Bytes{1} << 63}), std::bad_alloc);
  EXPECT_EQ(fine.validate(), "");
  EXPECT_EQ(fine.picture(4096), "[-1]");
}

// --- validate ---

TEST_F(RegionIndexValidate, validate_tells_a_region_changed_behind_its_back) {
  RegionIndex broken(kPage);
  broken.add_reservation(pages(0, 10));
  broken.attach_free(broken.detach(region_at(broken, 0), pages(0, 4)), on(A, 1));
  region_at(broken, 0)->stamp = on(A, 2);
  EXPECT_EQ(broken.validate(), "regions filed under timeline 1 are not those with a part on it");
  region_at(broken, 0)->stamp = complete();
  EXPECT_EQ(broken.validate(), "complete free regions by size are not those regions");
  region_at(broken, 0)->stamp = on(A, 1);
  region_at(broken, 0)->holder = &broken;
  EXPECT_EQ(broken.validate(), "region at 0x7f0000000000 is not allocated but has a holder");
  region_at(broken, 0)->holder = nullptr;
  region_at(broken, 0)->range.size += kPage;
  EXPECT_EQ(broken.validate(),
            "region at 0x7f0000800000 leaves a gap or overlaps the one before it");
}

}  // namespace
}  // namespace vpmm::region
