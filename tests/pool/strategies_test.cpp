// pool: what the planner decides, as printed plans.
#include "pool/planner.hpp"

#include <gtest/gtest.h>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

using time::Stamp;

using PagePlans = PlanWorld;

TEST_F(PagePlans, an_empty_pool_creates_everything_at_the_lowest_address) {
  EXPECT_EQ(text(need(3)), "3 = create 1 create 1 create 1 at 0");
}

TEST_F(PagePlans, only_the_shortfall_is_created) {
  free(0, 2);
  allocated(2, 1);
  EXPECT_EQ(text(need(4)), "4 = move 2 of [-2] create 1 create 1 at 3");
}

TEST_F(PagePlans, a_free_range_next_to_a_hole_is_extended_and_only_the_rest_moves) {
  free(0, 10);
  allocated(10, 1);
  free(11, 7);
  EXPECT_EQ(text(need(11)), "11 = keep 7 move 4 of [-10] at 11");
}

TEST_F(PagePlans, the_largest_extensible_range_is_extended) {
  free(0, 3);
  allocated(10, 1);
  free(20, 5);
  allocated(40, 1);
  EXPECT_EQ(text(need(6)), "6 = keep 5 move 1 of [-3] at 20");
}

TEST_F(PagePlans, a_range_is_extended_downwards_when_the_hole_is_before_it) {
  allocated(0, 1);
  free(5, 4);
  allocated(9, 1);
  EXPECT_EQ(text(need(6)), "6 = keep 4 create 1 create 1 at 3");
}

TEST_F(PagePlans, the_oldest_range_gives_first_and_each_from_its_front) {
  allocated(0, 1);
  allocated(4, 1);
  allocated(9, 1);
  free(5, 4);
  free(1, 3);
  EXPECT_EQ(text(need(5)), "5 = move 4 of [-4] move 1 of [-3] at 10");
  EXPECT_EQ(std::get<Plan>(decide(need(5))).moves[1].range.begin, page(1));
}

TEST_F(PagePlans, the_smallest_hole_that_fits_is_taken) {
  allocated(4, 1);  // a hole of 4 before it
  allocated(8, 1);  // one of 3
  EXPECT_EQ(text(need(3)), "3 = create 1 create 1 create 1 at 5");
  EXPECT_EQ(text(need(4)), "4 = create 1 create 1 create 1 create 1 at 0");
}

TEST_F(PagePlans, memory_of_other_streams_is_waited_for_before_anything_is_created) {
  free(0, 3, pending(other));
  allocated(3, 1);
  EXPECT_EQ(text(need(4)), "4 = move 3 of [-3] create 1 after 1 waits at 4");
}

TEST_F(PagePlans, own_memory_goes_before_memory_that_must_be_waited_for) {
  free(0, 3, pending(other));
  allocated(3, 1);
  free(4, 3, pending(own));
  allocated(7, 1);
  EXPECT_EQ(text(need(4)), "4 = move 3 of [-3] move 1 of [-3] after 1 waits at 8");
  EXPECT_EQ(std::get<Plan>(decide(need(4))).moves.front().range.begin, page(4));
}

TEST_F(PagePlans, memory_without_an_event_to_wait_for_is_left_alone) {
  free(0, 3, pending(other, Closed::no));
  allocated(3, 1);
  EXPECT_EQ(text(need(2)), "2 = create 1 create 1 at 4");
}

TEST_F(PagePlans, waits_on_one_stream_become_the_latest_of_them) {
  free(0, 1, pending(other));
  allocated(1, 1);
  free(2, 1, pending(other));
  allocated(3, 1);
  free(4, 1, pending(third));
  allocated(5, 1);
  const std::variant<Plan, NoPlan> decided = decide(need(3));
  const Plan& plan = std::get<Plan>(decided);
  ASSERT_EQ(plan.waits.size(), 2u);
  EXPECT_EQ(plan.waits[0], (time::StampPart{other.timeline->id, 2}));
  EXPECT_EQ(plan.waits[1], (time::StampPart{third.timeline->id, 1}));
}

TEST_F(PagePlans, a_caller_that_may_not_wait_takes_complete_memory_only) {
  free(0, 3, pending(other));
  allocated(3, 1);
  free(4, 1);
  allocated(5, 1);
  free(6, 2, pending(own));
  allocated(8, 1);
  Need any_stream = need(2);
  any_stream.own.reset();
  any_stream.may_wait = false;
  EXPECT_EQ(text(any_stream), "2 = move 1 of [-1] create 1 at 9");
}

TEST_F(PagePlans, two_part_memory_is_waited_for_on_the_foreign_part_only) {
  const Stamp on_own = pending(own);
  const Stamp on_other = pending(other);
  free(0, 2, Stamp(on_own.parts()[0], on_other.parts()[0]));
  allocated(2, 1);
  const std::variant<Plan, NoPlan> decided = decide(need(3));
  ASSERT_EQ(std::get<Plan>(decided).waits.size(), 1u);
  EXPECT_EQ(std::get<Plan>(decided).waits[0].timeline, other.timeline->id);
}

TEST_F(PagePlans, no_plan_says_how_much_memory_is_missing) {
  free(0, 2);
  allocated(2, 1);
  Need limited = need(6);
  limited.growth_room = 3 * kPage;
  EXPECT_EQ(text(limited), "no plan: 1 missing");
}

TEST_F(PagePlans, no_plan_says_that_address_space_is_missing) {
  allocated(999, 1);
  EXPECT_EQ(text(need(1000)), "no plan: address space");
}

TEST_F(PagePlans, an_aligned_request_begins_at_its_alignment) {
  allocated(0, 1);
  Need aligned = need(3);
  aligned.alignment = 4 * kPage;
  EXPECT_EQ(text(aligned), "3 = create 1 create 1 create 1 at 4");
}

TEST_F(PagePlans, an_aligned_request_keeps_the_aligned_part_of_a_range) {
  allocated(0, 1);
  free(1, 5);
  Need aligned = need(4);
  aligned.alignment = 4 * kPage;
  EXPECT_EQ(text(aligned), "4 = keep 2 create 1 create 1 at 4");
}

TEST_F(PagePlans, at_the_limit_of_mappings_one_chunk_is_created_and_none_is_moved) {
  free(0, 2);
  allocated(2, 1);
  EXPECT_EQ(text(need(4), Effort::grow_only), "4 = create 4 at 3");
}

class AdaptivePlans : public PlanWorld {
 protected:
  AdaptivePlans() : PlanWorld(Config{}) {}
  Need tight(Bytes pages) const {  // the largest use so far leaves no budget
    Need tight = need(pages);
    tight.peak_used = 0;
    return tight;
  }
};

TEST_F(AdaptivePlans, chunks_are_moved_whole_so_the_span_may_be_larger_than_the_request) {
  map_free(0, {4, 4});
  allocated(8, 1);
  const std::variant<Plan, NoPlan> decided = decide(tight(9));
  EXPECT_EQ(to_string(std::get<Plan>(decided), kPage), "9 = move 8 of [-8] create 1");
  allocated(9, 1);
  map_free(10, {4});
  allocated(14, 1);
  EXPECT_EQ(text(tight(10)), "10 = move 8 of [-8] move 4 of [-4] at 15");
}

TEST_F(AdaptivePlans, ranges_of_large_chunks_give_before_older_ones_of_small_chunks) {
  map_free(0, {2, 1, 1});
  allocated(4, 1);
  map_free(5, {2, 6});
  allocated(13, 1);
  EXPECT_EQ(text(tight(8)), "8 = move 8 of [-8] at 14");
  EXPECT_EQ(text(tight(10)), "10 = move 8 of [-8] move 2 of [-4] at 14");
}

TEST_F(AdaptivePlans, between_two_powers_of_two_the_oldest_range_gives_first) {
  map_free(0, {2, 2});
  allocated(4, 1);
  map_free(5, {3, 3});
  allocated(11, 1);
  EXPECT_EQ(text(tight(7)), "7 = move 4 of [-4] move 3 of [-6] at 12");
}

TEST_F(AdaptivePlans, what_counts_is_the_size_of_chunks_and_not_of_ranges) {
  map_free(0, Vector<Bytes>(8, 1));
  allocated(8, 1);
  map_free(9, {4});
  allocated(13, 1);
  EXPECT_EQ(text(tight(6)), "6 = move 4 of [-4] move 2 of [-8] at 14");
}

TEST_F(AdaptivePlans, a_chunk_that_is_larger_than_what_is_wanted_moves_last) {
  map_free(0, {60});
  allocated(60, 1);
  for (const Bytes first : {61, 63}) {
    map_free(first, {1});
    allocated(first + 1, 1);
  }
  EXPECT_EQ(text(tight(2)), "2 = move 1 of [-1] move 1 of [-1] at 65");
  EXPECT_EQ(text(tight(4)), "4 = move 1 of [-1] move 1 of [-1] move 60 of [-60] at 65");
}

TEST_F(AdaptivePlans, the_last_chunk_may_stand_next_to_what_its_range_gives) {
  map_free(0, {2, 3});
  allocated(5, 1);
  map_free(6, {4, 4});
  index.allocate(at(10), {page(10), kPage}, {});
  allocated(14, 1);
  EXPECT_EQ(text(tight(8)), "8 = move 4 of [-4] move 5 of [-5] at 15");
}

TEST_F(AdaptivePlans, a_range_without_a_whole_chunk_gives_nothing) {
  map_free(0, {4});
  index.allocate(at(0), {page(0), kPage}, {});
  index.allocate(at(1), {page(3), kPage}, {});
  allocated(4, 1);
  map_free(5, {2});
  allocated(7, 1);
  EXPECT_EQ(text(tight(3)), "3 = move 2 of [-2] create 1 at 8");
}

// Chunks of which pages are in use from the beginning, or up to the end.
class EndPlans : public AdaptivePlans {
 protected:
  // A chunk of `pages` at `first` with `used` pages in use: those in front, or else those at its end.
  enum class Used { front, back };
  region::Region* chunk_in_use(Bytes first, Bytes pages, Bytes used, Used where, const time::Stamp& stamp = {}) {
    region::Region* whole = map_free(first, {pages}, stamp);
    const Bytes begin = where == Used::front ? first : first + pages - used;
    index.allocate(whole, {page(begin), used * kPage}, region::Tenant{used * kPage, own.timeline->id, {}, 0});
    return at(where == Used::front ? first + used : first);
  }
  // Nothing borders on a hole but what a test puts there.
  void wall(Bytes number) { allocated(number, 1); }
};

TEST_F(EndPlans, a_free_back_is_where_the_span_begins) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  EXPECT_EQ(text(tight(5)), "5 = back 3 of 4 create 1 create 1 at 6") << "behind a shadow of one page";
  const Plan plan = std::get<Plan>(decide(tight(5)));
  EXPECT_EQ(plan.mapped, (AddressRange{page(5), 6 * kPage}));
  EXPECT_EQ(plan.rest_before(), kPage);
}

TEST_F(EndPlans, a_free_front_is_where_the_span_ends) {
  wall(0);
  chunk_in_use(1, 4, 1, Used::back);
  EXPECT_EQ(text(tight(5)), "5 = create 1 create 1 front 3 of 4 at 5");
  const Plan plan = std::get<Plan>(decide(tight(5)));
  EXPECT_EQ(plan.mapped, (AddressRange{page(5), 6 * kPage}));
  EXPECT_EQ(plan.rest_behind(), kPage);
}

TEST_F(EndPlans, between_two_ends_stands_what_moves_and_what_is_created) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  chunk_in_use(5, 4, 2, Used::back);
  map_free(10, {2});
  wall(9);
  wall(12);
  EXPECT_EQ(text(tight(9)), "9 = back 3 of 4 move 2 of [-2] create 1 create 1 front 2 of 4 at 14");
  EXPECT_EQ(text(tight(7)), "7 = back 3 of 4 move 2 of [-2] front 2 of 4 at 14");
}

TEST_F(EndPlans, of_ends_that_are_large_enough_the_smallest_is_taken_and_else_the_largest) {
  for (const Bytes first : {0, 10, 20}) wall(first + 8);
  chunk_in_use(0, 8, 1, Used::front);
  chunk_in_use(10, 8, 4, Used::front);
  chunk_in_use(20, 8, 6, Used::front);
  for (const Bytes first : {9, 19, 29}) wall(first);
  EXPECT_EQ(text(tight(9)), "9 = back 7 of 8 create 1 create 1 at 31");
  map_free(30, {2});
  wall(32);
  EXPECT_EQ(text(tight(8)), "8 = back 6 of 8 move 2 of [-2] at 35") << "no more of the end than is lacking";
  EXPECT_EQ(std::get<Plan>(decide(tight(8))).first->range, (AddressRange{page(2), 6 * kPage}));
}

TEST_F(EndPlans, one_end_that_is_enough_is_all_that_is_taken) {
  chunk_in_use(0, 8, 1, Used::front);
  wall(8);
  chunk_in_use(9, 8, 4, Used::back);
  map_free(18, {5});
  wall(17);
  wall(23);
  EXPECT_EQ(text(tight(8)), "8 = move 5 of [-5] front 3 of 8 at 24");
}

TEST_F(EndPlans, the_two_ends_of_one_chunk_are_not_both_taken) {
  map_free(0, {9});
  index.allocate(at(0), {page(3), 2 * kPage}, {});
  wall(9);
  EXPECT_EQ(text(tight(10)), "10 = back 4 of 9 create 1 create 1 create 1 create 1 create 1 create 1 at 15");
}

TEST_F(EndPlans, what_lies_in_the_middle_of_a_chunk_stays_there) {
  map_free(0, {9});
  index.allocate(at(0), {page(0), kPage}, {});
  index.allocate(at(1), {page(8), kPage}, {});
  wall(9);
  EXPECT_EQ(text(tight(8)), "8 = create 1 create 1 create 1 create 1 create 1 create 1 create 1 create 1 at 10");
}

TEST_F(EndPlans, a_range_that_is_extended_upwards_takes_a_front_and_downwards_a_back) {
  chunk_in_use(0, 8, 4, Used::front);
  wall(8);
  chunk_in_use(9, 8, 5, Used::back);
  wall(17);
  map_free(18, {2});
  EXPECT_EQ(text(tight(5)), "5 = keep 2 front 3 of 8 at 18");
  wall(20);
  map_free(40, {2});
  wall(42);
  EXPECT_EQ(text(tight(6)), "6 = keep 2 back 2 of 8 move 2 of [-2] at 36");
}

TEST_F(EndPlans, while_growth_is_within_the_budget_chunks_in_use_are_left_alone) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  Need ample = need(5);
  ample.peak_used = 100 * kPage;
  EXPECT_EQ(text(ample), "5 = create 1 create 1 create 1 create 1 create 1 at 5");
}

TEST_F(EndPlans, an_end_that_is_little_beside_what_is_mapped_is_taken_only_when_memory_is_short_or_too_much_is_mapped) {
  chunk_in_use(0, 4, 3, Used::front);
  wall(4);
  Need much = tight(2);
  much.mapped = much.peak_asked = 4001 * kPage;
  EXPECT_EQ(text(much), "2 = create 2 at 5");
  much.peak_asked = 3850 * kPage;
  EXPECT_EQ(text(much), "2 = back 1 of 4 create 1 at 8");
  EXPECT_EQ(text(much, Effort::move_first), "2 = back 1 of 4 create 1 at 8");
}

TEST_F(EndPlans, when_an_eighth_of_what_is_mapped_is_shadows_ends_are_taken_only_when_memory_is_short) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  map_free(10, {10});
  index.allocate(at(10), {page(10), 10 * kPage}, {});
  const auto add_shadow = [&](Bytes first) {
    map_free(first, {1});
    index.attach_shadow(index.detach(at(first), {page(first), kPage}), {});
  };
  for (const Bytes first : {80, 82}) add_shadow(first);
  EXPECT_EQ(text(tight(4)), "4 = back 3 of 4 create 1 at 6") << "two of 17 pages";
  add_shadow(84);
  EXPECT_EQ(text(tight(4)), "4 = create 1 create 1 create 1 create 1 at 5") << "three of 18";
  EXPECT_EQ(text(tight(4), Effort::move_first), "4 = back 3 of 4 create 1 at 6");
}

TEST_F(EndPlans, what_others_still_use_is_taken_behind_a_wait_or_not_at_all) {
  chunk_in_use(0, 4, 1, Used::front, pending(other));
  wall(4);
  EXPECT_EQ(text(tight(4)), "4 = create 1 create 1 create 1 create 1 at 5");
  EXPECT_EQ(text(tight(4), Effort::wait_too), "4 = back 3 of 4 create 1 after 1 waits at 6");
}

TEST_F(EndPlans, a_back_that_would_not_begin_aligned_is_left_alone) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  chunk_in_use(6, 4, 2, Used::front);
  wall(10);
  Need aligned = tight(4);
  aligned.alignment = 2 * kPage;
  EXPECT_EQ(text(aligned), "4 = back 2 of 4 create 1 create 1 at 14") << "the other has three pages";
}

TEST_F(EndPlans, a_new_chunk_for_the_request_alone_takes_no_end) {
  chunk_in_use(0, 4, 1, Used::front);
  wall(4);
  EXPECT_EQ(text(tight(4), Effort::apart), "4 = create 4 at 5");
  EXPECT_EQ(text(tight(4), Effort::grow_only), "4 = create 4 at 5");
}

// What two ends are together, in place of an idle chunk.
class JointPlans : public EndPlans {
 protected:
  // [2][-6] [-5][3], and an idle chunk.
  JointPlans() {
    chunk_in_use(0, 8, 2, Used::front);
    wall(8);
    chunk_in_use(9, 8, 3, Used::back);
    wall(17);
    map_free(18, {20});
    wall(38);
  }
  Need wide(Bytes pages) const {  // of a pool in which two chunks may become shadows
    Need wide = need(pages);
    wide.mapped = 1000 * kPage;
    return wide;
  }
  std::string joint(const Need& need) const {
    const std::optional<Plan> plan = Planner(index, chunks, timelines, *policy, kPage).join(need);
    if (!plan) return "none";
    return to_string(*plan, kPage) + " at " + std::to_string((plan->allocation - kStart) / kPage);
  }
};

TEST_F(JointPlans, two_ends_that_are_large_enough_serve_it) {
  EXPECT_EQ(joint(wide(11)), "11 = back 6 of 8 front 5 of 8 at 41") << "behind a shadow of two";
  EXPECT_EQ(joint(wide(12)), "none");
}

TEST_F(JointPlans, what_is_not_needed_of_them_stays_where_it_is) {
  EXPECT_EQ(joint(wide(8)), "8 = back 6 of 8 front 2 of 8 at 41");
  const Plan plan = *Planner(index, chunks, timelines, *policy, kPage).join(wide(8));
  EXPECT_EQ(plan.last->range, (AddressRange{page(9), 2 * kPage}));
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_TRUE(plan.creates.empty());
}

TEST_F(JointPlans, nobody_waits_for_them) {
  chunk_in_use(50, 20, 2, Used::front, pending(other));
  wall(70);
  EXPECT_EQ(joint(wide(20)), "none");
  chunk_in_use(80, 20, 2, Used::front, pending(own));
  wall(100);
  EXPECT_EQ(joint(wide(20)), "20 = back 18 of 20 front 2 of 8 at 103");
}

TEST_F(JointPlans, no_more_than_an_eighth_of_what_is_mapped_becomes_shadows) {
  Need ample = need(11);
  ample.mapped = 127 * kPage;
  EXPECT_EQ(joint(ample), "none") << "two chunks of eight";
  map_free(50, {5});
  index.attach_shadow(index.detach(at(50), {page(50), 5 * kPage}), {});
  ample.mapped = 167 * kPage;
  EXPECT_EQ(joint(ample), "none");
  ample.mapped = 168 * kPage;
  EXPECT_EQ(joint(ample), "11 = back 6 of 8 front 5 of 8 at 57");
}

TEST_F(JointPlans, are_looked_for_in_the_oldest_1024_ranges) {
  index.add_reservation({page(1000), 2100 * kPage});
  for (Bytes first = 1000; first < 1000 + 2 * 1021; first += 2) {
    free(first, 1);
    allocated(first + 1, 1);
  }
  chunk_in_use(600, 20, 2, Used::front);
  wall(620);
  EXPECT_EQ(joint(wide(20)), "none") << "number 1025";
  index.allocate(at(1000), {page(1000), kPage}, {});
  EXPECT_EQ(joint(wide(20)), "20 = back 18 of 20 front 2 of 8 at 3044");
}

TEST_F(JointPlans, begin_aligned) {
  Need aligned = wide(9);
  aligned.alignment = 2 * kPage;
  EXPECT_EQ(joint(aligned), "9 = back 6 of 8 front 3 of 8 at 42");
  aligned.alignment = 4 * kPage;
  EXPECT_EQ(joint(aligned), "none") << "the back begins at the third page of its chunk";
}

TEST_F(JointPlans, need_a_hole_for_both_chunks) {
  map_free(39, Vector<Bytes>(1, 950));
  EXPECT_EQ(joint(wide(11)), "none") << "holes of eleven pages";
}

TEST_F(AdaptivePlans, the_last_chunk_moved_is_the_one_that_fits_best) {
  map_free(0, {8, 8});
  allocated(16, 1);
  map_free(17, {4});
  allocated(21, 1);
  map_free(22, {3});
  allocated(25, 1);
  map_free(26, {1});
  allocated(27, 1);
  EXPECT_EQ(text(tight(10)), "10 = move 8 of [-16] move 1 of [-1] move 3 of [-3] at 28");
  EXPECT_EQ(text(tight(2)), "2 = move 1 of [-1] move 3 of [-3] at 28");
  EXPECT_EQ(text(tight(12)), "12 = move 8 of [-16] move 4 of [-4] at 28");
  EXPECT_EQ(text(tight(13)), "13 = move 8 of [-16] move 4 of [-4] move 1 of [-1] at 28");
  EXPECT_EQ(text(tight(18)), "18 = move 16 of [-16] move 1 of [-1] move 3 of [-3] at 28");
}

TEST_F(AdaptivePlans, the_chunk_that_fits_best_is_not_one_that_others_use_or_that_is_partly_in_use) {
  map_free(0, {8});
  allocated(8, 1);
  map_free(9, {2}, pending(other));
  allocated(11, 1);
  index.allocate(map_free(12, {3}), {page(12), kPage}, region::Tenant{kPage, own.timeline->id, {}, 0});
  allocated(15, 1);
  EXPECT_EQ(text(tight(2)), "2 = move 8 of [-8] at 16");
}

TEST_F(AdaptivePlans, a_chunk_apart_is_new_and_of_the_request_alone) {
  map_free(0, {8});
  allocated(8, 1);
  map_free(9, {2});
  EXPECT_EQ(text(need(4), Effort::apart), "4 = create 4 at 11");
}

TEST_F(AdaptivePlans, within_the_budget_it_grows_although_idle_chunks_could_move) {
  free(0, 2);
  allocated(2, 1);
  Need rich = need(4);
  rich.peak_used = 100 * kPage;
  EXPECT_EQ(text(rich), "4 = create 1 create 1 create 1 create 1 at 3");
  EXPECT_EQ(text(tight(4)), "4 = move 2 of [-2] create 1 create 1 at 3");
}

TEST_F(AdaptivePlans, other_streams_are_waited_for_as_a_last_resort_only) {
  free(0, 3, pending(other));
  allocated(3, 1);
  EXPECT_EQ(text(tight(2)), "2 = create 1 create 1 at 4");
  EXPECT_EQ(text(tight(2), Effort::move_first), "2 = create 1 create 1 at 4");
  EXPECT_EQ(text(tight(2), Effort::wait_too), "2 = move 2 of [-3] after 1 waits at 4");
}

class FootprintPlans : public AdaptivePlans {
 protected:
  FootprintPlans() {
    Config config;
    config.prefer = Prefer::footprint;
    policy = make_chunk_policy(config, kPage);
  }
};

TEST_F(FootprintPlans, wait_for_other_streams_only_where_growing_would_break_the_budget) {
  free(0, 3, pending(other));
  allocated(3, 1);
  Need rich = need(2);
  rich.peak_used = 100 * kPage;
  EXPECT_EQ(text(rich), "2 = create 1 create 1 at 4");
  EXPECT_EQ(text(tight(2)), "2 = move 2 of [-3] after 1 waits at 4");
}

TEST_F(FootprintPlans, idle_chunks_move_before_anybody_waits) {
  free(0, 3, pending(other));
  allocated(3, 1);
  free(4, 2);
  allocated(6, 1);
  EXPECT_EQ(text(tight(2)), "2 = move 2 of [-2] at 7");
  EXPECT_EQ(text(tight(4)), "4 = move 2 of [-2] move 2 of [-3] after 1 waits at 7");
}

}  // namespace
}  // namespace vpmm::pool
