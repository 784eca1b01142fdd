// pool: windows, growth and the cheapest plan, as printed plans.
#include "pool/strategies.hpp"

#include <gtest/gtest.h>

#include <array>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

// --- fit: windows ---------------------------------------------------------------------------------------------------

class Fit : public testing::Test, protected PlanWorld {};

TEST_F(Fit, a_region_of_the_size_is_a_hit) {
  allocated(0, 1);
  map_free(1, {4, 2, 1});
  EXPECT_EQ(text(fit, ask(7)), "7 = keep 7 at 1");
  const Plan hit = plan(fit, ask(7));
  EXPECT_TRUE(hit.is_hit());
  EXPECT_EQ(hit.price().driver_us, 0u);
}

TEST_F(Fit, the_front_chunks_of_a_region_are_a_window) {
  map_free(0, {4, 2, 8});
  EXPECT_EQ(text(fit, ask(4)), "4 = keep 4 at 0");
  EXPECT_EQ(text(fit, ask(6)), "6 = keep 6 at 0");
}

TEST_F(Fit, the_back_chunks_of_a_region_are_a_window) {
  map_free(0, {8, 2, 4});
  EXPECT_EQ(text(fit, ask(4)), "4 = keep 4 at 10");
  EXPECT_EQ(text(fit, ask(6)), "6 = keep 6 at 8");
}

TEST_F(Fit, chunks_are_never_cut) {
  map_free(0, {8, 8});
  EXPECT_EQ(text(fit, ask(3)), "no plan: 3 missing");
  EXPECT_EQ(text(fit, ask(12)), "no plan: 12 missing");
}

TEST_F(Fit, a_little_more_is_a_window_where_slack_is_allowed) {
  map_free(0, {8, 16});
  EXPECT_EQ(text(fit, with_slack(7, 0)), "no plan: 7 missing");
  EXPECT_EQ(text(fit, with_slack(7, 1)), "7 = keep 8 slack 1 at 0");
  EXPECT_EQ(text(fit, with_slack(6, 1)), "no plan: 6 missing");
}

TEST_F(Fit, of_two_windows_that_spoil_as_much_the_one_with_less_slack_is_taken) {
  map_free(0, {8, 32});
  allocated(40, 1);
  map_free(41, {7, 64});
  EXPECT_EQ(text(fit, with_slack(6, 2)), "6 = keep 7 slack 1 at 41");
  EXPECT_EQ(text(fit, with_slack(8, 2)), "8 = keep 8 at 0");
}

TEST_F(Fit, a_whole_region_goes_before_the_end_of_a_larger_one) {
  map_free(0, {6, 32});
  allocated(38, 1);
  map_free(39, {7});
  EXPECT_EQ(text(fit, with_slack(6, 1)), "6 = keep 7 slack 1 at 39");
}

TEST_F(Fit, a_window_may_lie_over_the_border_of_two_stamps) {
  map_free(0, {4, 2});
  map_free(6, {1, 8}, pending(own));
  ASSERT_NE(at(0), at(6)) << "two regions";
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 4");
  const Plan hit = plan(fit, ask(3));
  ASSERT_EQ(hit.kept.size(), 2u);
  EXPECT_EQ(hit.kept[0].range, (AddressRange{page(4), 2 * kPage}));
  EXPECT_EQ(hit.kept[1].range, (AddressRange{page(6), kPage}));
  EXPECT_FALSE(hit.is_complete());
}

TEST_F(Fit, a_window_may_lie_over_three_regions) {
  map_free(0, {2, 1});
  map_free(3, {2}, pending(own));
  map_free(5, {1, 8});
  EXPECT_EQ(text(fit, ask(4)), "4 = keep 4 at 2");
  EXPECT_EQ(text(fit, ask(14)), "14 = keep 14 at 0");
  EXPECT_EQ(plan(fit, ask(14)).kept.size(), 3u);
}

TEST_F(Fit, of_windows_over_borders_one_at_an_end_goes_before_one_within) {
  map_free(0, {16, 2});
  map_free(18, {1, 16}, pending(own));
  allocated(35, 1);
  map_free(36, {2});
  map_free(38, {1, 16}, pending(own));
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 36");
}

TEST_F(Fit, what_another_stream_still_uses_ends_a_stretch) {
  map_free(0, {4, 2});
  map_free(6, {1}, pending(other));
  map_free(7, {1});
  EXPECT_EQ(text(fit, ask(3)), "no plan: 3 missing");
  EXPECT_EQ(text(fit, ask(2)), "2 = keep 2 at 4");
}

TEST_F(Fit, what_the_own_stream_still_uses_is_usable) {
  map_free(0, {4}, pending(own, Closed::no));
  EXPECT_EQ(text(fit, ask(4)), "4 = keep 4 at 0");
  EXPECT_TRUE(plan(fit, ask(4)).waits.empty());
  Ask any_stream = ask(4);
  any_stream.own.reset();
  EXPECT_EQ(text(fit, any_stream), "no plan: 4 missing");
}

TEST_F(Fit, what_others_still_use_is_taken_behind_waits_or_not_at_all) {
  map_free(0, {4}, pending(other));
  EXPECT_EQ(text(fit, ask(4)), "no plan: 4 missing");
  EXPECT_EQ(text(fit, waiting(4)), "4 = keep 4 after 1 waits at 0");
  EXPECT_EQ(plan(fit, waiting(4)).waits.front(), (time::StampPart{other.timeline->id, 1}));
}

TEST_F(Fit, memory_without_an_event_to_wait_for_is_left_alone) {
  map_free(0, {4}, pending(other, Closed::no));
  EXPECT_EQ(text(fit, waiting(4)), "no plan: 4 missing");
}

TEST_F(Fit, a_window_of_several_regions_waits_for_each_stream_once) {
  map_free(0, {1}, pending(other));
  map_free(1, {1}, pending(third));
  map_free(2, {1}, pending(other));
  EXPECT_EQ(text(fit, waiting(3)), "3 = keep 3 after 2 waits at 0");
  const Plan hit = plan(fit, waiting(3));
  EXPECT_EQ(hit.waits[0], (time::StampPart{other.timeline->id, 2})) << "the later of the two";
  EXPECT_EQ(hit.waits[1], (time::StampPart{third.timeline->id, 1}));
}

TEST_F(Fit, a_window_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 4, 1});
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 4");
  EXPECT_EQ(text(fit, aligned(5, 4)), "5 = keep 5 at 4");
  EXPECT_EQ(text(fit, aligned(2, 8)), "no plan: 2 missing");
}

TEST_F(Fit, a_window_over_borders_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 2});
  map_free(6, {2, 1}, pending(own));
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 4");
  EXPECT_EQ(text(fit, aligned(3, 4)), "no plan: 3 missing");
}

TEST_F(Fit, what_lies_in_the_middle_of_a_region_stays_there) {
  map_free(0, {8, 3, 8});
  EXPECT_EQ(text(fit, ask(3)), "no plan: 3 missing");
}

// --- growth ---------------------------------------------------------------------------------------------------------

class Grow : public testing::Test, protected PlanWorld {};

TEST_F(Grow, within_early_growth_new_memory_stands_beside_a_kept_end) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {2});
  Ask early = ask(6);
  early.early_growth = 4 * kPage;
  EXPECT_EQ(text(grow, early), "6 = keep 2 create 4 at 5") << "although four idle pages could move";
  early.early_growth = 3 * kPage;
  EXPECT_EQ(text(grow, early), "no plan: 1 missing");
}

TEST_F(Grow, early_growth_is_growth) {
  Ask early = ask(6);
  early.early_growth = 6 * kPage;
  early.growth_room = 5 * kPage;
  EXPECT_EQ(text(grow, early), "no plan: 1 missing");
}

TEST_F(Grow, without_early_growth_there_is_none) { EXPECT_EQ(text(grow, ask(1)), "no plan: 1 missing"); }

TEST_F(Grow, one_chunk_is_created_where_mappings_are_few) {
  map_free(0, {2});
  allocated(2, 1);
  EXPECT_EQ(text(grow_in_one_chunk, ask(300)), "300 = create 300 at 3");
  Ask limited = ask(300);
  limited.growth_room = 299 * kPage;
  EXPECT_EQ(text(grow_in_one_chunk, limited), "no plan: 1 missing");
}

TEST_F(Grow, one_chunk_begins_at_the_alignment) {
  allocated(0, 1);
  EXPECT_EQ(text(grow_in_one_chunk, aligned(3, 4)), "3 = create 3 at 4");
}

// --- the cheapest ---------------------------------------------------------------------------------------------------

class Cheapest : public testing::Test, protected PlanWorld {};

TEST_F(Cheapest, a_hit_goes_before_everything) {
  map_free(0, {4});
  allocated(4, 1);
  Ask early = ask(4);
  early.early_growth = 4 * kPage;
  EXPECT_EQ(text(cheapest(std::array<Strategy, 3>{grow, stitch, fit}, view(), early)), "4 = keep 4 at 0");
}

TEST_F(Cheapest, the_plan_whose_calls_take_least_goes_first_whatever_the_order) {
  map_free(0, {1, 1, 1, 1});
  allocated(4, 1);
  Ask early = ask(4);
  early.early_growth = 4 * kPage;
  ASSERT_LT(plan(grow, early).price().driver_us, plan(stitch, early).price().driver_us);
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{grow, stitch}, view(), early)), "4 = create 4 at 5");
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{stitch, grow}, view(), early)), "4 = create 4 at 5");
}

TEST_F(Cheapest, no_plan_says_the_least_that_is_missing) {
  map_free(0, {2});
  allocated(2, 1);
  Ask limited = ask(6);
  limited.growth_room = 3 * kPage;
  EXPECT_EQ(text(fit, limited), "no plan: 6 missing");
  EXPECT_EQ(text(stitch, limited), "no plan: 1 missing");
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{fit, stitch}, view(), limited)), "no plan: 1 missing");
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{stitch, fit}, view(), limited)), "no plan: 1 missing");
}

TEST_F(Cheapest, address_space_is_what_is_missing_where_one_strategy_lacks_nothing_else) {
  allocated(999, 1);
  Ask large = ask(1000);
  large.early_growth = 999 * kPage;
  ASSERT_EQ(text(grow, large), "no plan: 1 missing");
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{grow, stitch}, view(), large)), "no plan: address space");
  EXPECT_EQ(text(cheapest(std::array<Strategy, 2>{stitch, grow}, view(), large)), "no plan: address space")
      << "whatever the order";
}

}  // namespace
}  // namespace vpmm::pool
