// SPDX-License-Identifier: Apache-2.0
// region tests: what RegionIndex does, one sentence each.
#include "region/region_index.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "region/region_index_fixture.hpp"

namespace vpmm::region {
namespace {

// Twenty pages: [4][-6][1][*9], as small examples need them.
class MappedRegionIndex : public RegionIndexTest {
 protected:
  MappedRegionIndex() {
    index.add_reservation(pages(0, 20));
    map(0, 11);
    allocate(0, 4);
    allocate(10, 1);
  }
};

using RegionIndexMerge = RegionIndexTest;
using RegionIndexFit = RegionIndexTest;
using RegionIndexRuns = RegionIndexTest;
using RegionIndexAge = RegionIndexTest;
using RegionIndexAdvance = RegionIndexTest;
using RegionIndexFlight = RegionIndexTest;
using RegionIndexOwner = RegionIndexTest;
using RegionIndexFigures = RegionIndexTest;
using RegionIndexPicture = RegionIndexTest;

// --- allocate and release ---

TEST_F(MappedRegionIndex, an_allocation_leaves_what_it_does_not_need_on_both_sides) {
  allocate(6, 2);
  EXPECT_EQ(index.picture(), "[4][-2][2][-2][1]");
}

TEST_F(MappedRegionIndex, leftovers_keep_stamp_and_age) {
  index.release(region_at(index, 0), on(A, 1));
  index.release(region_at(index, 10), on(A, 2));
  ASSERT_EQ(by_age(), (Vector<std::uint64_t>{4, 0, 10}));
  allocate(1, 2);
  EXPECT_EQ(index.picture(), "[-1][2][-1][-6][-1]");
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{4, 0, 3, 10}));
  EXPECT_EQ(region_at(index, 3)->stamp, on(A, 1));
}

TEST_F(MappedRegionIndex, a_release_forgets_the_tenant) {
  Region* const region =
      index.allocate(region_at(index, 4), pages(4, 1), Owner{kPage - 7, B, {C}, 9});
  EXPECT_EQ(region->owner.other_uses, Vector<time::TimelineId>{C});
  EXPECT_EQ(index.requested_bytes(), 6 * kPage - 7);
  index.release(region, on(B, 1));
  EXPECT_EQ(region_at(index, 4)->owner.timeline, std::nullopt);
  EXPECT_EQ(index.requested_bytes(), 5 * kPage);
}

TEST_F(MappedRegionIndex, an_allocation_that_is_handed_over_is_the_next_tenants_where_it_stands) {
  int room = 0;
  Region* const region =
      index.allocate(region_at(index, 4), pages(5, 1), Owner{kPage - 7, B, {C}, 9});
  region->holder = &room;
  const std::string before = index.picture();
  index.hand_over(region, Owner{kPage - 100, A, {}, 0});
  EXPECT_EQ(index.picture(), before);
  EXPECT_EQ(index.allocated_around(page(5)), region);
  EXPECT_EQ(region->owner.timeline, A);
  EXPECT_TRUE(region->owner.other_uses.empty());
  EXPECT_EQ(region->holder, nullptr);
  EXPECT_EQ(index.requested_bytes(), 6 * kPage - 100);
  EXPECT_EQ(index.validate(), "");
}

TEST_F(MappedRegionIndex,
       parts_of_an_allocation_that_is_split_are_its_owners_and_share_the_requested_bytes) {
  Region* const front =
      index.allocate(region_at(index, 4), pages(5, 3), Owner{3 * kPage - 7, B, {}, 0});
  const Bytes requested = index.requested_bytes();
  Region* const back = index.split_allocated(front, page(6));
  EXPECT_EQ(index.allocated_around(page(5)), front);
  EXPECT_EQ(index.allocated_around(page(7)), back);
  EXPECT_EQ(back->range, pages(6, 2));
  EXPECT_EQ(back->owner.timeline, B);
  EXPECT_EQ(front->owner.requested, kPage);
  EXPECT_EQ(index.requested_bytes(), requested);
  EXPECT_EQ(index.validate(), "");
}

TEST_F(MappedRegionIndex,
       neighbours_that_are_joined_are_one_allocation_with_the_owner_of_the_first) {
  Region* const front = index.allocate(region_at(index, 4), pages(4, 2), Owner{kPage, A, {}, 0});
  Region* const back =
      index.allocate(region_at(index, 6), pages(6, 2), Owner{2 * kPage, B, {A}, 0});
  front->has_own_chunks = true;
  const Bytes requested = index.requested_bytes();
  EXPECT_EQ(index.join(front, back), front);
  EXPECT_EQ(front->range, pages(4, 4));
  EXPECT_EQ(front->owner.timeline, A);
  EXPECT_FALSE(front->has_own_chunks) << "others touch those of the back";
  EXPECT_EQ(index.allocated_around(page(7)), front);
  EXPECT_EQ(index.requested_bytes(), requested);
  EXPECT_EQ(index.validate(), "");
  Region* const next = index.allocate(region_at(index, 8), pages(8, 1), Owner{});
  ASSERT_EQ(next, back) << "a node used again";
  EXPECT_TRUE(next->owner.other_uses.empty());
  EXPECT_FALSE(next->has_own_chunks);
}

TEST_F(MappedRegionIndex, a_holder_stays_with_the_allocation_and_goes_with_it) {
  int room = 0;
  Region* const region = index.allocate(region_at(index, 4), pages(5, 2), Owner{});
  EXPECT_EQ(region->holder, nullptr);
  region->holder = &room;
  index.release(region_at(index, 0), complete());
  EXPECT_EQ(index.allocated_around(page(6))->holder, &room);
  Region* const freed = index.release(region, on(A, 1));
  EXPECT_EQ(freed->holder, nullptr);
  EXPECT_EQ(index.allocate(freed, freed->range, Owner{})->holder, nullptr);
}

TEST_F(MappedRegionIndex, an_allocation_is_neither_suspended_nor_alone_in_its_chunks_until_told) {
  Region* const first = index.allocate(region_at(index, 4), pages(4, 6), Owner{});
  EXPECT_FALSE(first->is_suspended);
  EXPECT_FALSE(first->has_own_chunks);
  first->is_suspended = first->has_own_chunks = true;
  index.release(first, complete());
  for (const std::uint64_t at : {4U, 7U}) {
    const Region* const next = allocate(at, 3);
    EXPECT_FALSE(next->is_suspended);
    EXPECT_FALSE(next->has_own_chunks);
  }
}

// --- merging ---

TEST_F(RegionIndexMerge, freed_neighbours_on_one_stream_become_one_region_with_the_later_number) {
  index.add_reservation(pages(0, 6));
  map(0, 6);
  Region* const regions[] = {allocate(0, 2), allocate(2, 2), allocate(4, 2)};
  index.release(regions[0], on(A, 7));
  index.release(regions[2], on(A, 5));
  EXPECT_EQ(index.picture(), "[-2][2][-2]");
  const Region* const merged = index.release(regions[1], on(A, 6));
  EXPECT_EQ(index.picture(), "[-6]");
  EXPECT_EQ(merged->range, pages(0, 6));
  EXPECT_EQ(merged->stamp, on(A, 7));
}

TEST_F(RegionIndexMerge, a_merged_region_is_as_old_as_its_oldest_part) {
  index.add_reservation(pages(0, 8));
  map(0, 8);
  Region* const regions[] = {allocate(0, 1), allocate(1, 1), allocate(4, 1)};
  index.release(regions[1], on(A, 1));
  index.release(regions[2], on(B, 1));
  index.release(regions[0], on(A, 2));
  EXPECT_EQ(index.picture(), "[-2][-2][-1][-3]");
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{2, 5, 0, 4}));
}

TEST_F(RegionIndexMerge, complete_neighbours_become_one_region) {
  index.add_reservation(pages(0, 6));
  map(0, 2);
  map(4, 2);
  EXPECT_EQ(index.picture(), "[-2][*2][-2]");
  map(2, 2);
  EXPECT_EQ(index.picture(), "[-6]");
}

TEST_F(RegionIndexMerge, pending_regions_of_different_streams_stay_apart) {
  index.add_reservation(pages(0, 6));
  map(0, 2, on(A, 1));
  map(2, 2, on(B, 1));
  map(4, 2, complete());
  EXPECT_EQ(index.picture(), "[-2][-2][-2]");
}

TEST_F(RegionIndexMerge, regions_with_two_parts_stay_apart_even_from_their_like) {
  index.add_reservation(pages(0, 6));
  map(0, 2, on(A, 1, B, 1));
  map(2, 2, on(A, 1, B, 1));
  map(4, 2, on(A, 1));
  EXPECT_EQ(index.picture(), "[-2][-2][-2]");
}

TEST_F(RegionIndexMerge, holes_become_one_and_zombies_do_not) {
  index.add_reservation(pages(0, 6));
  map(0, 6);
  Region* const all = index.detach(region_at(index, 0), pages(0, 6));
  const auto [front, rest] = index.split_in_flight(all, page(1));
  const auto [second, third] = index.split_in_flight(rest, page(2));
  index.attach_zombie(front, on(A, 1));
  index.attach_zombie(second, on(A, 1));
  EXPECT_EQ(index.picture(), "[~1][~1][#4]");
  const auto [hole, last] = index.split_in_flight(third, page(4));
  index.attach_hole(hole);
  EXPECT_EQ(index.picture(), "[~1][~1][*2][#2]");
  EXPECT_EQ(index.attach_hole(last)->range, pages(2, 4));
  EXPECT_EQ(index.count(RegionState::hole), 1U);
}

// --- best fit ---

TEST_F(RegionIndexFit, the_smallest_region_that_fits_wins_and_the_lowest_among_equals) {
  index.add_reservation(pages(0, 30));
  map(0, 5);
  map(6, 3);
  map(10, 3);
  map(14, 8);
  EXPECT_EQ(index.best_fit(2 * kPage, kPage, std::nullopt)->range, pages(6, 3));
  EXPECT_EQ(index.best_fit(4 * kPage, kPage, std::nullopt)->range, pages(0, 5));
  EXPECT_EQ(index.best_fit(6 * kPage, kPage, std::nullopt)->range, pages(14, 8));
  EXPECT_EQ(index.best_fit(9 * kPage, kPage, std::nullopt), nullptr);
}

TEST_F(RegionIndexFit, a_stream_gets_its_own_pending_memory_and_nobody_elses) {
  index.add_reservation(pages(0, 30));
  map(0, 5);
  map(6, 3, on(A, 1));
  map(10, 2, on(B, 1));
  map(13, 1, on(A, 1, B, 1));
  EXPECT_EQ(index.best_fit(kPage, kPage, A)->range, pages(6, 3));
  EXPECT_EQ(index.best_fit(kPage, kPage, B)->range, pages(10, 2));
  EXPECT_EQ(index.best_fit(kPage, kPage, C)->range, pages(0, 5));
  EXPECT_EQ(index.best_fit(kPage, kPage, std::nullopt)->range, pages(0, 5));
  std::optional<time::TimelineId> none = A;  // no timeline, whatever its bytes are
  none.reset();
  EXPECT_EQ(index.best_fit(kPage, kPage, none)->range, pages(0, 5));
  EXPECT_EQ(index.lowest_fit(6 * kPage, kPage, none), nullptr);
}

TEST_F(RegionIndexFit, of_complete_and_own_regions_of_one_size_the_lowest_wins) {
  index.add_reservation(pages(0, 30));
  map(0, 3, on(B, 1));
  map(4, 3);
  map(8, 3, on(A, 1));
  EXPECT_EQ(index.best_fit(3 * kPage, kPage, B)->range, pages(0, 3));
  EXPECT_EQ(index.best_fit(3 * kPage, kPage, A)->range, pages(4, 3));
}

TEST_F(RegionIndexFit, large_alignments_pass_over_regions_they_do_not_fit_in) {
  index.add_reservation(pages(0, 30));
  map(1, 3);
  map(5, 4);
  map(13, 6);
  const Region* const found = index.best_fit(3 * kPage, 4 * kPage, std::nullopt);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->range, pages(13, 6));
  EXPECT_EQ(aligned_start(found->range, 3 * kPage, 4 * kPage), page(16));
  EXPECT_EQ(aligned_start(found->range, 4 * kPage, 4 * kPage), std::nullopt);
  EXPECT_EQ(index.best_fit(kPage, 4 * kPage, std::nullopt)->range, pages(5, 4));
}

TEST_F(RegionIndexFit, own_pending_memory_goes_before_complete_memory_where_it_is_asked_for) {
  constexpr auto kOwn = RegionIndex::First::own;
  index.add_reservation(pages(0, 40));
  map(0, 2);
  map(3, 9, on(A, 1));
  map(13, 4, on(A, 2));
  map(18, 12);
  map(31, 1, on(B, 1));
  EXPECT_EQ(index.best_fit(2 * kPage, kPage, A)->range, pages(0, 2));
  EXPECT_EQ(index.best_fit(2 * kPage, kPage, A, kOwn)->range, pages(13, 4))
      << "the smallest of its own";
  EXPECT_EQ(index.best_fit(5 * kPage, kPage, A, kOwn)->range, pages(3, 9));
  EXPECT_EQ(index.best_fit(10 * kPage, kPage, A, kOwn)->range, pages(18, 12))
      << "its own are too small";
  EXPECT_EQ(index.best_fit(2 * kPage, 8 * kPage, A, kOwn)->range, pages(3, 9))
      << "page 8 lies in it";
  EXPECT_EQ(index.best_fit(2 * kPage, kPage, C, kOwn)->range, pages(0, 2))
      << "it has none of its own";
  EXPECT_EQ(index.best_fit(2 * kPage, kPage, std::nullopt, kOwn)->range, pages(0, 2));
  EXPECT_EQ(index.best_fit(13 * kPage, kPage, A, kOwn), nullptr);
}

TEST_F(RegionIndexFit, a_visit_of_fits_comes_to_own_pending_memory_first_where_it_is_asked_for) {
  index.add_reservation(pages(0, 40));
  map(0, 2);
  map(3, 9, on(A, 1));
  map(13, 4, on(A, 2));
  map(18, 12);
  map(31, 3, on(B, 1));
  const auto sizes = [&](RegionIndex::First first, std::size_t most) {
    Vector<Bytes> seen;
    index.for_each_fit(3 * kPage, A, first, [&](Region* region) {
      seen.push_back(region->range.size / kPage);
      return seen.size() < most;
    });
    return seen;
  };
  EXPECT_EQ(sizes(RegionIndex::First::smaller, 9), (Vector<Bytes>{4, 9, 12}));
  EXPECT_EQ(sizes(RegionIndex::First::own, 9), (Vector<Bytes>{4, 9, 12}));
  map(35, 3);
  EXPECT_EQ(sizes(RegionIndex::First::smaller, 9), (Vector<Bytes>{3, 4, 9, 12}));
  EXPECT_EQ(sizes(RegionIndex::First::own, 9), (Vector<Bytes>{4, 9, 3, 12}));
  EXPECT_EQ(sizes(RegionIndex::First::own, 3), (Vector<Bytes>{4, 9, 3}))
      << "until it is told to stop";
}

TEST_F(RegionIndexFit, the_lowest_region_that_fits_is_found_whatever_its_size) {
  index.add_reservation(pages(0, 40));
  map(0, 1);
  map(2, 9, on(A, 1));
  map(12, 2);
  map(15, 5, on(B, 1));
  EXPECT_EQ(index.lowest_fit(kPage, kPage, A)->range, pages(0, 1));
  EXPECT_EQ(index.lowest_fit(2 * kPage, kPage, A)->range, pages(2, 9));
  EXPECT_EQ(index.lowest_fit(2 * kPage, kPage, std::nullopt)->range, pages(12, 2))
      << "others' is left alone";
  EXPECT_EQ(index.lowest_fit(3 * kPage, kPage, B)->range, pages(15, 5));
  EXPECT_EQ(index.lowest_fit(4 * kPage, 16 * kPage, B)->range, pages(15, 5))
      << "page 16 lies in it";
  EXPECT_EQ(index.lowest_fit(3 * kPage, kPage, C), nullptr);
}

// --- holes ---

TEST_F(RegionIndexFit, holes_are_visited_from_the_smallest_that_is_large_enough) {
  index.add_reservation(pages(0, 20));
  index.add_reservation(pages(100, 5));
  map(3, 1);
  map(5, 1);
  map(8, 1);
  const auto begins = [&](std::uint64_t at_least, std::size_t most) {
    Vector<std::uint64_t> seen;
    index.for_each_hole(at_least * kPage, [&](Region* hole) {
      seen.push_back((hole->range.begin - kStart) / kPage);
      return seen.size() < most;
    });
    return seen;
  };
  EXPECT_EQ(begins(1, 9), (Vector<std::uint64_t>{4, 6, 0, 100, 9})) << "1, 2, 3, 5 and 11 pages";
  EXPECT_EQ(begins(3, 9), (Vector<std::uint64_t>{0, 100, 9}));
  EXPECT_EQ(begins(3, 2), (Vector<std::uint64_t>{0, 100})) << "until it is told to stop";
  EXPECT_TRUE(begins(12, 9).empty());
}

// --- runs ---

TEST_F(RegionIndexRuns, a_run_is_as_long_as_free_regions_touch) {
  index.add_reservation(pages(0, 20));
  map(0, 1, on(A, 1));
  map(1, 1, on(B, 1));
  map(2, 1, complete());
  map(5, 2, on(A, 2));
  map(8, 1, complete());
  map(9, 1, on(A, 3, B, 3));
  EXPECT_EQ(runs(), (Vector<Vector<std::uint64_t>>{{0, 1, 2}, {8, 9}}));
  EXPECT_TRUE(index.has_runs());
  allocate(1, 1);
  EXPECT_EQ(runs(), (Vector<Vector<std::uint64_t>>{{8, 9}}));
  EXPECT_TRUE(index.has_runs()) << "of one junction";
  allocate(8, 1);
  EXPECT_FALSE(index.has_runs());
}

// Fewer regions are pending on the timeline than there are junctions, so the search begins at
// those.
TEST_F(RegionIndexRuns, runs_with_a_region_of_a_timeline_are_found_from_its_regions) {
  index.add_reservation(pages(0, 40));
  for (std::uint64_t at = 0; at < 5; ++at) map(at, 1, on(at % 2 == 0 ? B : C, at + 1));
  map(10, 1, on(B, 10));
  map(11, 1, on(C, 11));
  map(12, 1, on(A, 1));  // the last of its run
  map(20, 2, on(A, 2));  // alone
  map(30, 2, on(A, 3));  // the first of its run
  map(32, 2, complete());
  Vector<Vector<std::uint64_t>> found;
  const auto visit = [&](const Vector<Region*>& run) {
    found.emplace_back();
    for (const Region* region : run) found.back().push_back((region->range.begin - kStart) / kPage);
    return true;
  };
  index.for_each_run_with(A, visit);
  EXPECT_EQ(found, (Vector<Vector<std::uint64_t>>{{10, 11, 12}, {30, 32}})) << "smallest first";
  found.clear();
  index.for_each_run_with(A, [&](const Vector<Region*>& run) { return visit(run) && false; });
  EXPECT_EQ(found, (Vector<Vector<std::uint64_t>>{{10, 11, 12}})) << "until it is told to stop";
  found.clear();
  index.for_each_run_with(time::TimelineId{77}, visit);
  EXPECT_TRUE(found.empty()) << "it has no region";
}

TEST_F(RegionIndexRuns,
       a_region_that_waits_for_less_still_touches_its_neighbour_until_it_is_taken) {
  index.add_reservation(pages(0, 20));
  map(0, 1, on(A, 1, B, 1));
  map(1, 1, on(C, 1));
  index.advance(A, 1);
  EXPECT_EQ(runs(), (Vector<Vector<std::uint64_t>>{{0, 1}}));
  allocate(1, 1);
  EXPECT_FALSE(index.has_runs());
  EXPECT_TRUE(runs().empty());
}

TEST_F(RegionIndexRuns, the_visit_stops_when_told) {
  index.add_reservation(pages(0, 20));
  for (const std::uint64_t at : {0U, 4U, 8U}) {
    map(at, 1, on(A, 1));
    map(at + 1, 1, on(B, 1));
  }
  index.add_reservation(pages(40, 20));
  map(40, 1, on(A, 1));
  map(41, 1, on(B, 1));
  for (const int most : {1, 2, 3, 4}) {
    int visits = 0;
    index.for_each_run([&](const Vector<Region*>&) { return ++visits < most; });
    EXPECT_EQ(visits, most);
  }
}

// --- age ---

TEST_F(RegionIndexAge, a_region_taken_back_is_as_old_as_it_was) {
  index.add_reservation(pages(0, 20));
  map(0, 2);
  map(4, 2, on(A, 4));
  map(8, 2);
  Region* const flying = index.detach(region_at(index, 4), pages(4, 2));
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{0, 8}));
  index.attach_free(flying, flying->stamp, flying->age());
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{0, 4, 8}));
  EXPECT_EQ(region_at(index, 4)->stamp, on(A, 4));
}

TEST_F(RegionIndexAge, part_of_a_region_taken_back_restores_the_picture) {
  index.add_reservation(pages(0, 20));
  map(0, 6, on(A, 4));
  map(8, 2);
  Region* const flying = index.detach(region_at(index, 0), pages(2, 2));
  EXPECT_EQ(index.picture(), "[-2][#2][-2][*2][-2]");
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{0, 4, 8}));
  index.attach_free(flying, flying->stamp, flying->age());
  EXPECT_EQ(index.picture(), "[-6][*2][-2]");
  EXPECT_EQ(by_age(), (Vector<std::uint64_t>{0, 8}));
}

TEST_F(RegionIndexAge, zombies_come_in_the_order_they_were_made) {
  index.add_reservation(pages(0, 20));
  map(0, 6);
  for (const std::uint64_t at : {4U, 0U, 2U})
    index.attach_zombie(index.detach(region_at(index, at), pages(at, 1)), on(A, at + 1));
  Vector<std::uint64_t> order;
  index.for_each_zombie([&](Region* zombie) {
    order.push_back((zombie->range.begin - kStart) / kPage);
    return true;
  });
  EXPECT_EQ(order, (Vector<std::uint64_t>{4, 0, 2}));
}

TEST_F(RegionIndexAge, what_is_left_of_a_zombie_stays_a_zombie_in_its_place) {
  index.add_reservation(pages(0, 20));
  map(0, 8);
  index.attach_zombie(index.detach(region_at(index, 4), pages(4, 3)), on(A, 2));
  index.attach_zombie(index.detach(region_at(index, 0), pages(0, 1)), on(A, 1));
  index.attach_hole(index.detach(region_at(index, 5), pages(5, 1)));
  EXPECT_EQ(index.picture(), "[~1][-3][~1][*1][~1][-1]");
  Vector<std::uint64_t> order;
  index.for_each_zombie([&](Region* zombie) {
    order.push_back((zombie->range.begin - kStart) / kPage);
    return true;
  });
  EXPECT_EQ(order, (Vector<std::uint64_t>{4, 6, 0}));
}

// --- advance ---

TEST_F(RegionIndexAdvance, completed_neighbours_become_one_region) {
  index.add_reservation(pages(0, 10));
  map(0, 2, on(A, 3));
  map(2, 2, on(B, 1));
  map(4, 2, on(A, 5));
  index.advance(A, 3);
  EXPECT_EQ(index.picture(), "[-2][-2][-2]");
  EXPECT_TRUE(region_at(index, 0)->stamp.is_complete());
  index.advance(B, 1);
  EXPECT_EQ(index.picture(), "[-4][-2]");
  index.advance(A, 5);
  EXPECT_EQ(index.picture(), "[-6]");
}

TEST_F(RegionIndexAdvance, the_number_itself_is_complete_and_the_next_is_not) {
  index.add_reservation(pages(0, 10));
  map(0, 2, on(A, 3));
  index.advance(A, 2);
  EXPECT_FALSE(region_at(index, 0)->stamp.is_complete());
  index.advance(A, 3);
  EXPECT_TRUE(region_at(index, 0)->stamp.is_complete());
}

TEST_F(RegionIndexAdvance,
       a_region_that_loses_one_of_two_parts_joins_its_neighbours_of_the_other_stream) {
  index.add_reservation(pages(0, 10));
  map(0, 2, on(B, 9));
  map(2, 2, on(A, 1, B, 4));
  map(4, 2, on(B, 2));
  index.advance(A, 1);
  EXPECT_EQ(index.picture(), "[-6]");
  EXPECT_EQ(region_at(index, 0)->stamp, on(B, 9));
}

TEST_F(RegionIndexAdvance, either_of_two_parts_may_complete_first) {
  index.add_reservation(pages(0, 10));
  map(0, 2, on(A, 1, B, 1));
  map(4, 2, on(A, 1, B, 1));
  index.advance(B, 1);
  EXPECT_EQ(region_at(index, 0)->stamp, on(A, 1));
  EXPECT_EQ(index.best_fit(kPage, kPage, A)->range, pages(0, 2));
  index.advance(A, 1);
  EXPECT_TRUE(region_at(index, 4)->stamp.is_complete());
}

TEST_F(RegionIndexAdvance, zombies_lose_their_parts_too) {
  index.add_reservation(pages(0, 10));
  map(0, 4);
  index.attach_zombie(index.detach(region_at(index, 0), pages(0, 2)), on(A, 1, B, 6));
  index.advance(A, 4);
  EXPECT_EQ(region_at(index, 0)->stamp, on(B, 6));
  index.advance(B, 6);
  EXPECT_TRUE(region_at(index, 0)->stamp.is_complete());
  EXPECT_EQ(index.picture(), "[~2][-2]");
}

TEST_F(RegionIndexAdvance, what_is_attached_later_waits_for_the_next_advance) {
  index.add_reservation(pages(0, 10));
  map(0, 1);
  Region* const flying = index.detach(region_at(index, 0), pages(0, 1));
  index.advance(A, 5);
  index.attach_free(flying, on(A, 4));
  EXPECT_EQ(index.pending_bytes(), kPage);
  index.advance(A, 5);
  EXPECT_EQ(index.pending_bytes(), 0U);
}

TEST_F(RegionIndexAdvance, timelines_that_come_and_go_do_not_disturb_each_other) {
  index.add_reservation(pages(0, 10));
  map(0, 4);
  for (std::uint64_t stream = 1; stream <= 200; ++stream) {
    const time::TimelineId timeline{stream};
    index.release(allocate(stream % 2 * 2, 1), on(timeline, stream));
    if (stream > 1) index.advance(time::TimelineId{stream - 1}, stream - 1);
    ASSERT_EQ(index.validate(), "");
    ASSERT_EQ(index.pending_bytes(timeline), kPage);
  }
  EXPECT_EQ(index.pending_bytes(), kPage);
}

// --- flights ---

TEST_F(RegionIndexFlight, what_is_in_flight_is_found_by_no_search) {
  index.add_reservation(pages(0, 10));
  map(0, 4, on(A, 1));
  index.detach(region_at(index, 0), pages(0, 4));
  index.detach(region_at(index, 4), pages(4, 6));
  EXPECT_EQ(index.picture(), "[#4][#6]");
  EXPECT_EQ(index.best_fit(kPage, kPage, A), nullptr);
  EXPECT_EQ(index.smallest_hole(kPage, kPage), nullptr);
  EXPECT_EQ(index.allocated_around(page(0)), nullptr);
  EXPECT_EQ(index.bytes(RegionState::in_flight), 10 * kPage);
}

TEST_F(RegionIndexFlight, flights_split_and_join) {
  index.add_reservation(pages(0, 10));
  map(0, 4, on(A, 1));
  Region* const flying = index.detach(region_at(index, 0), pages(0, 4));
  const std::uint64_t age = flying->age();
  const auto [front, back] = index.split_in_flight(flying, page(1));
  EXPECT_EQ(index.picture(), "[#1][#3]");
  EXPECT_EQ(back->stamp, on(A, 1));
  EXPECT_EQ(back->age(), age);
  EXPECT_EQ(index.join(front, back)->range, pages(0, 4));
  EXPECT_EQ(index.picture(), "[#4]");
}

TEST_F(RegionIndexFlight, harvested_pages_land_as_an_allocation_behind_their_zombie) {
  index.add_reservation(pages(0, 12));
  map(0, 4);
  Region* const source = index.detach(region_at(index, 0), pages(0, 3));
  Region* const target = index.detach(index.smallest_hole(3 * kPage, kPage), pages(4, 3));
  EXPECT_EQ(index.picture(), "[#3][-1][#3]");
  index.attach_zombie(source, on(A, 1));
  index.attach_allocated(target, Owner{3 * kPage, A, {}, 0});
  EXPECT_EQ(index.picture(), "[~3][-1][3]");
  EXPECT_EQ(index.allocated_around(page(6))->range, pages(4, 3));
  index.advance(A, 1);
  index.attach_hole(index.detach(region_at(index, 0), pages(0, 3)));
  EXPECT_EQ(index.picture(), "[*3][-1][3]");
}

// --- owner ---

TEST_F(RegionIndexOwner, every_byte_of_an_allocation_has_its_owner_and_no_other_byte) {
  index.add_reservation(pages(2, 10));
  map(2, 6);
  Region* const region = allocate(3, 2);
  EXPECT_EQ(index.allocated_around(page(3)), region);
  EXPECT_EQ(index.allocated_around(page(5) - 1), region);
  EXPECT_EQ(index.allocated_around(page(3) - 1), nullptr);
  EXPECT_EQ(index.allocated_around(page(5)), nullptr);
  EXPECT_EQ(index.allocated_around(page(1)), nullptr);
  EXPECT_EQ(index.allocated_around(page(12)), nullptr);
  EXPECT_EQ(index.allocated_around(DevicePtr{}), nullptr);
  index.release(region, complete());
  EXPECT_EQ(index.allocated_around(page(3)), nullptr);
}

TEST_F(RegionIndexOwner, an_address_far_inside_a_large_allocation_has_its_owner) {
  index.add_reservation({kStart, 8 * kTiB});
  map(0, 3'000'000);
  Region* const front = allocate(70, 2);
  Region* const large = allocate(1'000, 2'000'000);
  for (const std::uint64_t at : {1'000U, 1'001U, 1'024U, 5'000U, 262'144U, 300'000U, 2'000'999U})
    EXPECT_EQ(index.allocated_around(page(at) + 1), large) << at;
  for (const std::uint64_t at : {0U, 69U, 72U, 999U, 2'001'000U, 2'999'999U, 3'500'000U})
    EXPECT_EQ(index.allocated_around(page(at)), nullptr) << at;
  index.release(large, on(A, 1));
  EXPECT_EQ(index.allocated_around(page(300'000)), nullptr);
  EXPECT_EQ(index.allocated_around(page(71)), front);
}

TEST_F(RegionIndexOwner, a_free_region_behind_another_has_no_owner) {
  index.add_reservation(pages(0, 10));
  map(0, 10);
  Region* const last = allocate(6, 4);
  index.release(last, on(A, 1));
  ASSERT_EQ(index.picture(), "[-6][-4]");
  for (std::uint64_t at = 0; at < 10; ++at) EXPECT_EQ(index.allocated_around(page(at)), nullptr);
}

// --- figures ---

TEST_F(RegionIndexFigures,
       pending_bytes_count_a_region_once_in_all_and_once_on_each_of_its_streams) {
  index.add_reservation(pages(0, 20));
  map(0, 1, complete());
  map(2, 2, on(A, 1));
  map(5, 3, on(A, 2, B, 2));
  index.attach_zombie(index.detach(region_at(index, 10), pages(10, 4)), on(A, 3));
  EXPECT_EQ(index.pending_bytes(), 5 * kPage);
  EXPECT_EQ(index.pending_bytes(A), 5 * kPage);
  EXPECT_EQ(index.pending_bytes(B), 3 * kPage);
  EXPECT_EQ(index.pending_bytes(C), 0U);
}

TEST_F(RegionIndexFigures, the_largest_free_region_may_have_any_stamp) {
  index.add_reservation(pages(0, 20));
  EXPECT_EQ(index.largest_free(), 0U);
  map(0, 2, complete());
  EXPECT_EQ(index.largest_free(), 2 * kPage);
  map(3, 3, on(A, 1));
  EXPECT_EQ(index.largest_free(), 3 * kPage);
  map(7, 4, on(A, 1, B, 1));
  EXPECT_EQ(index.largest_free(), 4 * kPage);
}

// --- pictures ---

TEST_F(RegionIndexPicture, sizes_are_in_the_unit_asked_for_with_at_most_two_decimals) {
  index.add_reservation({kStart, 8 * kGiB});
  map(0, 512);    // 1 GiB
  map(600, 768);  // 1.5 GiB
  map(1400, 3);   // 6 MiB
  EXPECT_EQ(index.picture(kGiB), "[-1][*0.17][-1.5][*0.06][-0.01]");
  EXPECT_EQ(index.picture(kMiB), "[-1024][*176][-1536][*64][-6]");
  EXPECT_EQ(index.picture(), "[-512][*88][-768][*32][-3]");
}

TEST_F(RegionIndexPicture, reservations_follow_one_another_each_without_its_trailing_hole) {
  index.add_reservation(pages(100, 10));
  index.add_reservation(pages(0, 10));
  map(101, 2);
  map(0, 1);
  EXPECT_EQ(index.picture(), "[-1][*1][-2]");
}

}  // namespace
}  // namespace vpmm::region
