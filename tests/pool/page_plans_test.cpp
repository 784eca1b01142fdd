// SPDX-License-Identifier: Apache-2.0
// pool: the specification's order, with one chunk per page, as printed plans.
#include "pool/strategies.hpp"

#include <gtest/gtest.h>

#include <string>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

using time::Stamp;

class PagePlans : public testing::Test, protected PlanWorld {
 protected:
  PagePlans() : PlanWorld(page_chunks()) {}
  static settings::Config page_chunks() {
    settings::Config config;
    config.page_chunks = true;
    return config;
  }
  // As page mode asks: what others still use is waited for before anything moves or is created.
  std::string text(const Ask& ask) const {
    Ask waiting = ask;
    waiting.takes_waiting = ask.own.has_value();
    return PlanWorld::text(stitch, waiting);
  }
};

TEST_F(PagePlans, an_empty_pool_creates_everything_at_the_lowest_address) {
  EXPECT_EQ(text(ask(3)), "3 = create 1 create 1 create 1 at 0");
}

TEST_F(PagePlans, only_the_shortfall_is_created) {
  free(0, 2);
  allocated(2, 1);
  EXPECT_EQ(text(ask(4)), "4 = move 2 of [-2] create 1 create 1 at 3");
}

TEST_F(PagePlans, a_free_range_next_to_a_hole_is_extended_and_only_the_rest_moves) {
  free(0, 10);
  allocated(10, 1);
  free(11, 7);
  EXPECT_EQ(text(ask(11)), "11 = keep 7 move 4 of [-10] at 11");
}

TEST_F(PagePlans, the_largest_extensible_range_is_extended) {
  free(0, 3);
  allocated(10, 1);
  free(20, 5);
  allocated(40, 1);
  EXPECT_EQ(text(ask(6)), "6 = keep 5 move 1 of [-3] at 20");
}

TEST_F(PagePlans, a_range_is_extended_downwards_when_the_hole_is_before_it) {
  allocated(0, 1);
  free(5, 4);
  allocated(9, 1);
  EXPECT_EQ(text(ask(6)), "6 = keep 4 create 1 create 1 at 3");
}

TEST_F(PagePlans, the_oldest_range_gives_first_and_each_from_its_front) {
  allocated(0, 1);
  allocated(4, 1);
  allocated(9, 1);
  free(5, 4);
  free(1, 3);
  EXPECT_EQ(text(ask(5)), "5 = move 4 of [-4] move 1 of [-3] at 10");
  EXPECT_EQ(plan(stitch, ask(5)).moves[1].part.range.begin, page(1));
}

TEST_F(PagePlans, the_smallest_hole_that_fits_is_taken) {
  allocated(4, 1);  // a hole of 4 before it
  allocated(8, 1);  // one of 3
  EXPECT_EQ(text(ask(3)), "3 = create 1 create 1 create 1 at 5");
  EXPECT_EQ(text(ask(4)), "4 = create 1 create 1 create 1 create 1 at 0");
}

TEST_F(PagePlans, memory_of_other_streams_is_waited_for_before_anything_is_created) {
  free(0, 3, pending(other));
  allocated(3, 1);
  EXPECT_EQ(text(ask(4)), "4 = move 3 of [-3] create 1 after 1 waits at 4");
}

TEST_F(PagePlans, own_memory_goes_before_memory_that_must_be_waited_for) {
  free(0, 3, pending(other));
  allocated(3, 1);
  free(4, 3, pending(own));
  allocated(7, 1);
  EXPECT_EQ(text(ask(4)), "4 = move 3 of [-3] move 1 of [-3] after 1 waits at 8");
  EXPECT_EQ(plan(stitch, waiting(4)).moves.front().part.range.begin, page(4));
}

TEST_F(PagePlans, memory_without_an_event_to_wait_for_is_left_alone) {
  free(0, 3, pending(other, Closed::no));
  allocated(3, 1);
  EXPECT_EQ(text(ask(2)), "2 = create 1 create 1 at 4");
}

TEST_F(PagePlans, waits_on_one_stream_become_the_latest_of_them) {
  free(0, 1, pending(other));
  allocated(1, 1);
  free(2, 1, pending(other));
  allocated(3, 1);
  free(4, 1, pending(third));
  allocated(5, 1);
  const Plan moving = plan(stitch, waiting(3));
  ASSERT_EQ(moving.waits.size(), 2u);
  EXPECT_EQ(moving.waits[0], (time::StampPart{other.timeline->id, 2}));
  EXPECT_EQ(moving.waits[1], (time::StampPart{third.timeline->id, 1}));
}

TEST_F(PagePlans, a_caller_that_may_not_wait_takes_complete_memory_only) {
  free(0, 3, pending(other));
  allocated(3, 1);
  free(4, 1);
  allocated(5, 1);
  free(6, 2, pending(own));
  allocated(8, 1);
  Ask any_stream = ask(2);
  any_stream.own.reset();
  EXPECT_EQ(text(any_stream), "2 = move 1 of [-1] create 1 at 9");
}

TEST_F(PagePlans, two_part_memory_is_waited_for_on_the_foreign_part_only) {
  const Stamp on_own = pending(own);
  const Stamp on_other = pending(other);
  free(0, 2, Stamp(on_own.parts()[0], on_other.parts()[0]));
  allocated(2, 1);
  const Plan moving = plan(stitch, waiting(3));
  ASSERT_EQ(moving.waits.size(), 1u);
  EXPECT_EQ(moving.waits[0].timeline, other.timeline->id);
}

TEST_F(PagePlans, no_plan_says_how_much_memory_is_missing) {
  free(0, 2);
  allocated(2, 1);
  Ask limited = ask(6);
  limited.growth_room = 3 * kPage;
  EXPECT_EQ(text(limited), "no plan: 1 missing");
}

TEST_F(PagePlans, no_plan_says_that_address_space_is_missing) {
  allocated(999, 1);
  EXPECT_EQ(text(ask(1000)), "no plan: address space");
}

TEST_F(PagePlans, an_aligned_request_begins_at_its_alignment) {
  allocated(0, 1);
  EXPECT_EQ(text(aligned(3, 4)), "3 = create 1 create 1 create 1 at 4");
}

TEST_F(PagePlans, an_aligned_request_keeps_the_aligned_part_of_a_range) {
  allocated(0, 1);
  free(1, 5);
  EXPECT_EQ(text(aligned(4, 4)), "4 = keep 2 move 2 of [-5] at 4") << "the rest of the range moves";
}

}  // namespace
}  // namespace vpmm::pool
