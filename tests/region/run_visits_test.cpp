// SPDX-License-Identifier: Apache-2.0
// region tests: how often a search for runs with memory of one timeline comes to a run, and what
// neighbours keep that are joined or cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "region/region_index_fixture.hpp"

namespace vpmm::region {
namespace {

class RunVisits : public RegionIndexTest {
 protected:
  RunVisits() { index.add_reservation(pages(0, 400)); }
  // Free regions side by side from page `first` on, of A and B in turn.
  void alternate(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) map(first + i, 1, on(i % 2 == 0 ? A : B, 1));
  }
  // Pages at which the visited runs begin, in the order of the visits.
  Vector<std::uint64_t> visited(time::TimelineId own) const {
    Vector<std::uint64_t> begins;
    index.for_each_run_with(own, [&](const Vector<Region*>& run) {
      begins.push_back((run.front()->range.begin - kStart) / kPage);
      return true;
    });
    return begins;
  }
};

// A search costs a visit for each junction or for each region of the timeline, whichever are fewer.
TEST_F(RunVisits, come_once_to_a_run_with_no_more_junctions_than_regions_of_the_timeline) {
  for (std::uint64_t i = 0; i < 3; ++i) map(100 + 2 * i, 1, on(A, 2));  // each alone
  alternate(0, 5);
  EXPECT_EQ(visited(A), (Vector<std::uint64_t>{0})) << "four junctions, six regions";
  index.release(allocate(104, 1), complete());
  index.release(allocate(102, 1), complete());
  EXPECT_EQ(visited(A), (Vector<std::uint64_t>{0})) << "four of each";
  index.release(allocate(100, 1), complete());
  EXPECT_EQ(visited(A), (Vector<std::uint64_t>{0, 0, 0})) << "one for each of three regions";
}

TEST_F(RunVisits, come_to_no_run_without_the_timeline_where_it_has_fewer_regions) {
  for (const std::uint64_t first : {0u, 20u, 40u}) {
    map(first, 1, on(B, 1));
    map(first + 1, 1, on(C, 1));
  }
  map(60, 1, on(B, 1));
  map(61, 1, on(A, 1));
  EXPECT_EQ(visited(A), (Vector<std::uint64_t>{60}));
  EXPECT_TRUE(visited(time::TimelineId{77}).empty());
  EXPECT_EQ(runs(), (Vector<Vector<std::uint64_t>>{{0, 1}, {20, 21}, {40, 41}, {60, 61}}));
}

// --- ages ---

// The room above links allocated regions by age, and the index leaves that alone.
TEST_F(RunVisits, an_allocation_keeps_the_age_that_the_room_above_gave_it_when_it_is_joined) {
  map(0, 6);
  for (const std::uint64_t of_back : {3u, 9u}) {
    Region* const front = allocate(0, 2);
    Region* const back = allocate(2, 4);
    front->by_age.number = 7;
    back->by_age.number = of_back;
    EXPECT_EQ(index.join(front, back)->age(), 7u);
    front->by_age.number = 0;
    index.release(front, complete());
  }
}

TEST_F(RunVisits, what_is_in_flight_has_the_older_age_of_those_that_are_joined) {
  for (const bool is_front_older : {true, false}) {
    map(is_front_older ? 0 : 2, 2);
    map(is_front_older ? 2 : 0, 2, on(A, 1));
    Region* const front = index.detach(region_at(index, 0), pages(0, 2));
    Region* const back = index.detach(region_at(index, 2), pages(2, 2));
    const std::uint64_t older = std::min(front->age(), back->age());
    ASSERT_EQ(front->age() == older, is_front_older);
    Region* const joined = index.join(front, back);
    EXPECT_EQ(joined->age(), older);
    EXPECT_EQ(joined->range, pages(0, 4));
    index.attach_hole(joined);
  }
}

TEST_F(RunVisits, zombies_are_told_of_until_the_last_is_gone) {
  map(0, 4);
  EXPECT_FALSE(index.has_zombies());
  for (const std::uint64_t at : {0u, 2u})
    index.attach_zombie(index.detach(region_at(index, at), pages(at, 2)), on(A, 1));
  EXPECT_TRUE(index.has_zombies());
  index.advance(A, 1);
  EXPECT_TRUE(index.has_zombies()) << "complete ones, too";
  for (const std::uint64_t at : {0u, 2u}) {
    EXPECT_TRUE(index.has_zombies());
    index.attach_hole(index.detach(region_at(index, at), pages(at, 2)));
  }
  EXPECT_FALSE(index.has_zombies());
}

// --- what is cut from a region that waits for two timelines ---

// The middle goes, and both ends wait for what they waited for, each in its place.
TEST_F(RunVisits, both_ends_of_a_cut_wait_for_each_timeline_of_the_whole) {
  const struct {
    time::Stamp stamp;
    Bytes of_a, of_b;  // pages of both ends that wait
  } cases[] = {{complete(), 0, 0}, {on(A, 5), 6, 0}, {on(B, 5), 0, 6}, {on(A, 5, B, 6), 6, 6}};
  for (const bool is_zombie : {false, true})
    for (const auto& each : cases) {
      Region* whole = map(0, 10, each.stamp);
      if (is_zombie) whole = index.attach_zombie(index.detach(whole, whole->range), each.stamp);
      Region* const middle = index.detach(whole, pages(4, 4));
      EXPECT_EQ(index.validate(), "");
      EXPECT_EQ(region_at(index, 0)->stamp, each.stamp);
      EXPECT_EQ(region_at(index, 8)->stamp, each.stamp);
      const bool counts = !is_zombie;
      EXPECT_EQ(index.pending_bytes(A), counts ? each.of_a * kPage : 0);
      EXPECT_EQ(index.pending_bytes(B), counts ? each.of_b * kPage : 0);
      index.advance(A, 5);
      EXPECT_EQ(region_at(index, 8)->stamp,
                each.of_b > 0 ? on(B, each.of_a > 0 ? 6 : 5) : complete());
      EXPECT_EQ(region_at(index, 0)->stamp, region_at(index, 8)->stamp);
      index.advance(B, 6);
      EXPECT_TRUE(region_at(index, 8)->stamp.is_complete());
      EXPECT_TRUE(region_at(index, 0)->stamp.is_complete());
      index.attach_hole(middle);
      for (const std::uint64_t at : {0u, 8u}) {
        Region* const end = region_at(index, at);
        index.attach_hole(index.detach(end, end->range));
      }
    }
}

}  // namespace
}  // namespace vpmm::region
