// SPDX-License-Identifier: Apache-2.0
// region tests: reservations, which come and go as wholes.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "region/region_index_fixture.hpp"

namespace vpmm::region {
namespace {

using RegionIndexReservation = RegionIndexTest;
using RegionIndexReservationDeathTest = RegionIndexTest;

TEST_F(RegionIndexReservation, a_new_reservation_is_one_hole_that_the_picture_leaves_out) {
  index.add_reservation(pages(0, 20));
  EXPECT_EQ(index.picture(), "");
  EXPECT_EQ(index.bytes(RegionState::hole), 20 * kPage);
  EXPECT_EQ(index.count(RegionState::hole), 1U);
}

TEST_F(RegionIndexReservation, regions_of_adjacent_reservations_never_merge) {
  index.add_reservation(pages(4, 4));
  index.add_reservation(pages(0, 4));
  EXPECT_EQ(index.count(RegionState::hole), 2U);
  map(0, 4);
  map(4, 4);
  EXPECT_EQ(index.picture(), "[-4][-4]");
  EXPECT_EQ(index.best_fit(5 * kPage, kPage, std::nullopt), nullptr);
  EXPECT_EQ(runs().size(), 0U);
}

TEST_F(RegionIndexReservation,
       a_reservation_that_starts_between_pages_counts_pages_from_its_start) {
  RegionIndex odd(6 * kMiB);
  const DevicePtr start = kStart + 2 * kMiB;
  odd.add_reservation({start, 5 * 6 * kMiB});
  Region* const free = odd.attach_free(
      odd.detach(odd.smallest_hole(12 * kMiB, 256), {start, 12 * kMiB}), complete());
  Region* const region = odd.allocate(free, {start + 6 * kMiB, 6 * kMiB}, Owner{});
  EXPECT_EQ(odd.picture(), "[-1][1]");
  EXPECT_EQ(odd.allocated_around(start + 12 * kMiB - 1), region);
  EXPECT_EQ(odd.allocated_around(start + 6 * kMiB - 1), nullptr);
  EXPECT_EQ(odd.validate(), "");
}

TEST_F(RegionIndexReservation, a_hole_is_found_by_any_of_its_addresses) {
  index.add_reservation(pages(0, 10));
  map(3, 2);
  EXPECT_EQ(index.hole_around(page(0))->range, pages(0, 3));
  EXPECT_EQ(index.hole_around(page(3) - 1)->range, pages(0, 3));
  EXPECT_EQ(index.hole_around(page(3)), nullptr) << "free";
  EXPECT_EQ(index.hole_around(page(9))->range, pages(5, 5));
  EXPECT_EQ(index.hole_around(page(10)), nullptr) << "of no reservation";
}

TEST_F(RegionIndexReservation, a_removed_reservation_is_found_by_no_search_and_can_be_added_again) {
  index.add_reservation(pages(0, 4));
  index.add_reservation(pages(4, 6));
  map(4, 1);
  index.remove_reservation(pages(0, 4));
  EXPECT_EQ(index.smallest_hole(kPage, kPage)->range, pages(5, 5));
  EXPECT_EQ(index.bytes(RegionState::hole), 5 * kPage);
  EXPECT_EQ(index.allocated_around(page(0)), nullptr);
  EXPECT_EQ(index.validate(), "");
  index.add_reservation(pages(0, 2));
  map(0, 2);
  allocate(0, 1);
  EXPECT_EQ(index.picture(), "[1][-1][-1]");
}

TEST_F(RegionIndexReservation, a_reservation_of_one_complete_free_region_is_removed_with_it) {
  index.add_reservation(pages(0, 4));
  map(0, 4, on(A, 1));
  index.advance(A, 1);
  index.remove_reservation(pages(0, 4));
  EXPECT_EQ(index.count(RegionState::free), 0U);
  EXPECT_EQ(index.best_fit(kPage, kPage, A), nullptr);
  EXPECT_EQ(index.picture(), "");
}

TEST_F(RegionIndexReservation, a_reservation_used_and_removed_leaves_no_owner_to_its_successor) {
  index.add_reservation(pages(0, 4));
  map(0, 4);
  index.release(allocate(1, 2), complete());
  index.remove_reservation(pages(0, 4));
  index.add_reservation(pages(0, 4));
  map(0, 4);
  for (std::uint64_t at = 0; at < 4; ++at) EXPECT_EQ(index.allocated_around(page(at)), nullptr);
}

TEST_F(RegionIndexReservation, a_hundred_thousand_reservations_come_and_go_in_any_order) {
  constexpr Bytes kUnit = 16 * kKiB;
  constexpr std::uint64_t kReservations = 100'000;
  const auto reservation = [](std::uint64_t i) { return AddressRange{page(i), kPage}; };
  Vector<std::uint64_t> order(kReservations);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::mt19937_64 random(1);
  std::shuffle(order.begin(), order.end(), random);
  RegionIndex many(kUnit);
  for (const std::uint64_t i : order) many.add_reservation(reservation(i));
  EXPECT_EQ(many.count(RegionState::hole), kReservations);
  EXPECT_EQ(many.smallest_hole(kUnit, kUnit)->range, reservation(0));
  std::shuffle(order.begin(), order.end(), random);
  for (const std::uint64_t i : order) {
    if (i % 1000 == 0) continue;
    many.remove_reservation(reservation(i));
  }
  EXPECT_EQ(many.count(RegionState::hole), kReservations / 1000);
  EXPECT_EQ(many.bytes(RegionState::hole), kReservations / 1000 * kPage);
  EXPECT_EQ(many.validate(), "");
}

TEST_F(RegionIndexReservation, eight_tebibytes_are_reserved_and_used_at_both_ends) {
  index.add_reservation({kStart, 8 * kTiB});
  const std::uint64_t last = 8 * kTiB / kPage - 1;
  map(0, 1);
  map(last, 1);
  Region* const region = allocate(last, 1);
  EXPECT_EQ(index.allocated_around(page(last) + (kPage - 1)), region);
  EXPECT_EQ(index.allocated_around(page(last / 2)), nullptr);
  EXPECT_EQ(index.picture(kTiB), "[-0.00][*8][0.00]");
}

TEST_F(RegionIndexReservation, the_smallest_hole_that_fits_is_found_lowest_first) {
  index.add_reservation(pages(0, 20));
  for (const std::uint64_t at : {0U, 4U, 7U, 10U}) map(at, 1);
  ASSERT_EQ(index.picture(), "[-1][*3][-1][*2][-1][*2][-1]");
  EXPECT_EQ(index.smallest_hole(kPage, kPage)->range, pages(5, 2));
  EXPECT_EQ(index.smallest_hole(3 * kPage, kPage)->range, pages(1, 3));
  EXPECT_EQ(index.smallest_hole(4 * kPage, kPage)->range, pages(11, 9));
  EXPECT_EQ(index.smallest_hole(10 * kPage, kPage), nullptr);
}

TEST_F(RegionIndexReservation, a_hole_too_small_for_the_alignment_is_passed_over) {
  index.add_reservation(pages(0, 20));
  for (const std::uint64_t at : {0U, 4U, 8U}) map(at, 1);
  ASSERT_EQ(index.picture(), "[-1][*3][-1][*3][-1]");
  EXPECT_EQ(index.smallest_hole(3 * kPage, 2 * kPage)->range, pages(9, 11));
  EXPECT_EQ(index.smallest_hole(2 * kPage, 2 * kPage)->range, pages(1, 3));
}

TEST_F(RegionIndexReservationDeathTest, removing_a_reservation_in_use_aborts_with_the_picture) {
  index.add_reservation(pages(0, 10));
  map(0, 10);
  allocate(2, 1);
  EXPECT_DEATH(index.remove_reservation(pages(0, 10)), "\\[-2\\]\\[1\\]\\[-7\\]");
  index.release(region_at(index, 2), on(A, 1));
  EXPECT_DEATH(index.remove_reservation(pages(0, 10)), "\\[-2\\]\\[-1\\]\\[-7\\]");
}

TEST_F(RegionIndexReservationDeathTest, removing_a_pending_reservation_aborts) {
  index.add_reservation(pages(0, 10));
  map(0, 10, on(A, 1));
  EXPECT_DEATH(index.remove_reservation(pages(0, 10)), "\\[-10\\]");
}

TEST_F(RegionIndexReservationDeathTest, removing_what_is_no_whole_reservation_aborts) {
  index.add_reservation(pages(0, 10));
  EXPECT_DEATH(index.remove_reservation(pages(0, 5)), "are no reservation");
  EXPECT_DEATH(index.remove_reservation(pages(2, 8)), "are no reservation");
}

TEST_F(RegionIndexReservationDeathTest, reserving_what_is_reserved_aborts) {
  index.add_reservation(pages(0, 10));
  EXPECT_DEATH(index.add_reservation(pages(9, 2)), "is reserved already");
  index.add_reservation(pages(20, 10));
  EXPECT_DEATH(index.add_reservation(pages(15, 10)), "is reserved already");
  EXPECT_DEATH(index.add_reservation(pages(20, 1)), "is reserved already");
}

}  // namespace
}  // namespace vpmm::region
