// pool: what is kept, moved, split and created, as printed plans.
#include "pool/strategies.hpp"

#include <gtest/gtest.h>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

// --- stitch: what is kept -------------------------------------------------------------------------------------------

class Stitch : public testing::Test, protected PlanWorld {};

TEST_F(Stitch, an_empty_pool_creates_everything_at_the_lowest_address) {
  EXPECT_EQ(text(stitch, ask(3)), "3 = create 3 at 0");
  EXPECT_EQ(text(stitch, ask(300)), "300 = create 128 create 128 create 32 create 8 create 4 at 0");
}

TEST_F(Stitch, only_what_is_lacking_is_created) {
  map_free(0, {2});
  allocated(2, 1);
  EXPECT_EQ(text(stitch, ask(4)), "4 = move 2 of [-2] create 2 at 3");
}

// Of very many idle chunks not all are looked at, unless those lack something.
TEST_F(Stitch, what_only_the_last_of_very_many_idle_chunks_give_is_found) {
  index.add_reservation({page(1000), 10'000 * kPage});
  map_free(1000, Vector<Bytes>(2100, 4), pending(own));  // too large, and nobody can split them yet
  allocated(9500, 1);
  map_free(9501, {2, 1});
  allocated(9504, 1);
  Ask no_growth = ask(3);
  no_growth.growth_room = 0;
  EXPECT_EQ(text(stitch, no_growth), "3 = move 3 of [-3] at 9400");
  no_growth.size = 4 * kPage;
  EXPECT_EQ(text(stitch, no_growth), "4 = keep 4 at 9396");
  no_growth.size = 7 * kPage;
  EXPECT_EQ(text(stitch, no_growth), "7 = keep 4 move 3 of [-3] at 9396");
}

TEST_F(Stitch, the_back_of_a_stretch_beside_a_hole_is_kept) {
  map_free(0, {8, 2, 1});
  EXPECT_EQ(text(stitch, ask(5)), "5 = keep 3 split 8 create 2 at 8");
  EXPECT_EQ(text(stitch, ask(12)), "12 = keep 11 create 1 at 0");
}

TEST_F(Stitch, the_front_of_a_stretch_behind_a_hole_is_kept) {
  map_free(10, {1, 2, 8});
  allocated(21, 1);
  EXPECT_EQ(text(stitch, ask(5)), "5 = keep 3 split 8 create 2 at 8") << "two pages before page 10";
  EXPECT_EQ(text(stitch, ask(12)), "12 = keep 11 create 1 at 9");
}

TEST_F(Stitch, the_largest_end_is_kept) {
  allocated(9, 1);
  map_free(10, {3});
  allocated(30, 1);
  map_free(31, {5});
  allocated(50, 1);
  EXPECT_EQ(text(stitch, ask(6)), "6 = keep 5 split 3 create 1 at 31");
  EXPECT_EQ(text(stitch, ask(4)), "4 = keep 3 split 5 create 1 at 10") << "five are too many";
}

TEST_F(Stitch, what_is_kept_may_lie_over_several_regions) {
  allocated(0, 1);
  map_free(1, {8, 2});
  map_free(11, {1}, pending(own));
  map_free(12, {2});
  EXPECT_EQ(text(stitch, ask(6)), "6 = keep 5 split 8 create 1 at 9");
  EXPECT_EQ(plan(stitch, ask(6)).kept.size(), 3u);
  map_free(30, {2});
  map_free(32, {1}, pending(own));
  map_free(33, {4, 64});
  allocated(101, 1);
  EXPECT_EQ(text(stitch, ask(9)), "9 = keep 7 move 2 of [-10] at 28") << "at its front, too";
}

TEST_F(Stitch, what_another_stream_still_uses_is_not_kept) {
  allocated(0, 1);
  map_free(1, {2});
  map_free(3, {2}, pending(other));
  EXPECT_EQ(text(stitch, ask(4)), "4 = move 2 of [-2] create 2 at 5");
}

TEST_F(Stitch, an_end_whose_hole_is_too_small_is_not_kept) {
  allocated(0, 1);
  map_free(1, {8});  // one page of hole behind it
  allocated(10, 1);
  map_free(11, {2});
  EXPECT_EQ(text(stitch, ask(11)), "11 = keep 2 move 8 of [-8] create 1 at 11");
}

TEST_F(Stitch, where_slack_is_too_much_for_the_hole_everything_moves) {
  allocated(0, 1);
  map_free(1, {8});
  allocated(11, 1);  // two pages of hole before it
  map_free(12, {3});
  allocated(15, 1);
  EXPECT_EQ(text(stitch, with_slack(10, 1)), "10 = move 8 of [-8] move 3 of [-3] slack 1 at 16");
  EXPECT_EQ(text(stitch, ask(10)), "10 = keep 8 split 3 create 2 at 1") << "it fits without";
}

TEST_F(Stitch, a_kept_back_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 1, 1});
  EXPECT_EQ(text(stitch, aligned(4, 4)), "4 = keep 2 move 2 of [-5] at 4");
  EXPECT_EQ(text(stitch, aligned(4, 8)), "4 = move 4 of [-5] at 8");
}

TEST_F(Stitch, nothing_is_kept_behind_a_hole_where_alignment_is_asked_for) {
  map_free(10, {2});
  allocated(12, 1);
  EXPECT_EQ(text(stitch, aligned(4, 4)), "4 = move 2 of [-2] create 2 at 0");
}

// --- stitch: what moves ---------------------------------------------------------------------------------------------

TEST_F(Stitch, of_chunks_that_are_not_too_large_the_largest_move_first) {
  map_free(0, {4, 1});
  allocated(5, 1);
  map_free(6, {2, 32});
  allocated(40, 1);
  map_free(41, {8});
  allocated(49, 1);
  EXPECT_EQ(text(stitch, ask(14)), "14 = move 8 of [-8] move 4 of [-5] move 2 of [-34] at 50");
  EXPECT_EQ(text(stitch, ask(7)), "7 = move 5 of [-5] move 2 of [-34] at 50");
}

TEST_F(Stitch, of_chunks_of_one_size_those_of_the_smallest_stretch_move_first) {
  map_free(0, {16, 4});
  allocated(20, 1);
  map_free(21, {4, 8});
  allocated(33, 1);
  map_free(34, {4, 9});
  allocated(47, 1);
  EXPECT_EQ(text(stitch, ask(4)), "4 = move 4 of [-12] at 48");
  EXPECT_EQ(plan(stitch, ask(4)).moves.front().part.range.begin, page(21));
}

TEST_F(Stitch, a_stretch_counts_over_the_borders_of_its_regions) {
  map_free(0, {4});
  map_free(4, {16}, pending(own));
  allocated(20, 1);
  map_free(21, {4, 9});
  allocated(34, 1);
  EXPECT_EQ(text(stitch, ask(4)), "4 = move 4 of [-13] at 35");
}

TEST_F(Stitch, chunks_side_by_side_leave_together_and_others_apart) {
  map_free(0, {2, 2, 32, 2});
  allocated(38, 1);
  EXPECT_EQ(text(stitch, ask(6)), "6 = move 4 of [-38] move 2 of [-38] at 39");
  const Plan moving = plan(stitch, ask(6));
  EXPECT_EQ(moving.moves[0].chunks.size(), 2u);
  EXPECT_EQ(moving.moves[1].part.range.begin, page(36));
}

TEST_F(Stitch, what_is_kept_does_not_move) {
  map_free(0, {4, 2});
  EXPECT_EQ(text(stitch, ask(7)), "7 = keep 6 create 1 at 0");
}

TEST_F(Stitch, every_idle_chunk_moves_before_anything_is_created) {
  map_free(0, {7, 5, 3});
  allocated(15, 1);
  map_free(16, {1, 1});
  allocated(18, 1);
  EXPECT_EQ(text(stitch, ask(20)), "20 = move 15 of [-15] move 2 of [-2] create 3 at 19");
}

TEST_F(Stitch, what_others_still_use_moves_last_and_behind_waits) {
  map_free(0, {8}, pending(other));
  allocated(8, 1);
  map_free(9, {2});
  allocated(11, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = move 2 of [-2] create 8 at 12");
  EXPECT_EQ(text(stitch, waiting(10)), "10 = move 2 of [-2] move 8 of [-8] after 1 waits at 12");
  EXPECT_EQ(text(stitch, waiting(2)), "2 = move 2 of [-2] at 12");
}

// --- stitch: a chunk that is too large ------------------------------------------------------------------------------

TEST_F(Stitch, a_larger_chunk_is_taken_whole_where_its_slack_is_allowed) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {2});
  allocated(7, 1);
  EXPECT_EQ(text(stitch, with_slack(5, 1)), "5 = move 4 of [-4] move 2 of [-2] slack 1 at 8");
  EXPECT_EQ(text(stitch, with_slack(3, 1)), "3 = move 2 of [-2] split 4 create 1 at 8") << "three would be too much";
}

TEST_F(Stitch, a_larger_chunk_is_split_where_its_slack_is_not_allowed) {
  map_free(0, {64});
  allocated(64, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = split 64 create 8 create 2 at 65");
  const Plan splitting = plan(stitch, ask(10));
  EXPECT_EQ(splitting.growth(), 0u);
  EXPECT_EQ(splitting.split->left, (AddressRange{page(0), 54 * kPage}));
  EXPECT_EQ(splitting.split->left_chunks, (Vector<Bytes>{32 * kPage, 16 * kPage, 6 * kPage}));
}

TEST_F(Stitch, the_smallest_chunk_that_is_larger_is_split) {
  map_free(0, {64});
  allocated(64, 1);
  map_free(65, {16});
  allocated(81, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = split 16 create 8 create 2 at 82");
}

TEST_F(Stitch, what_a_split_leaves_stands_beside_what_is_free) {
  allocated(0, 1);
  map_free(1, {16, 64});
  allocated(81, 1);
  EXPECT_EQ(plan(stitch, ask(8)).split->left, (AddressRange{page(9), 8 * kPage})) << "its back, before the 64";
  map_free(82, {64, 12});
  allocated(158, 1);
  EXPECT_EQ(plan(stitch, ask(8)).split->left, (AddressRange{page(146), 4 * kPage})) << "its front, behind the 64";
}

TEST_F(Stitch, pending_chunks_are_not_split_and_the_plan_says_so) {
  map_free(0, {64}, pending(own));
  allocated(64, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = create 8 create 2 at 65");
  EXPECT_EQ(plan(stitch, ask(10)).blocked, 10 * kPage);
  EXPECT_EQ(text(stitch, ask(64)), "64 = move 64 of [-64] at 65") << "whole, it may move";
  EXPECT_EQ(plan(stitch, ask(65)).blocked, 0u);
}

TEST_F(Stitch, a_chunk_that_still_has_its_old_address_is_not_split) {
  map_free(0, {16});
  allocated(16, 1);
  moved_from(100, 0);
  allocated(116, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = create 8 create 2 at 17");
  EXPECT_EQ(plan(stitch, ask(10)).blocked, 10 * kPage);
  EXPECT_EQ(text(stitch, with_slack(15, 1)), "15 = move 16 of [-16] slack 1 at 17");
}

TEST_F(Stitch, a_chunk_that_cannot_be_split_does_not_block_a_larger_one_that_can) {
  map_free(0, {16}, pending(own));
  allocated(16, 1);
  map_free(17, {64});
  allocated(81, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = split 64 create 8 create 2 at 82");
  EXPECT_EQ(plan(stitch, ask(10)).blocked, 0u);
}

// --- stitch: bounds -------------------------------------------------------------------------------------------------

TEST_F(Stitch, growth_stays_within_its_room) {
  map_free(0, {2});
  allocated(2, 1);
  Ask limited = ask(6);
  limited.growth_room = 4 * kPage;
  EXPECT_EQ(text(stitch, limited), "6 = move 2 of [-2] create 4 at 3");
  limited.growth_room = 3 * kPage;
  EXPECT_EQ(text(stitch, limited), "no plan: 1 missing");
}

TEST_F(Stitch, no_growth_room_is_needed_for_a_split) {
  map_free(0, {64});
  allocated(64, 1);
  Ask limited = ask(10);
  limited.growth_room = 0;
  EXPECT_EQ(text(stitch, limited), "10 = split 64 create 8 create 2 at 65");
}

TEST_F(Stitch, no_plan_says_that_address_space_is_missing) {
  allocated(999, 1);
  EXPECT_EQ(text(stitch, ask(1000)), "no plan: address space");
  EXPECT_EQ(std::get<NoPlan>(stitch(view(), ask(1000))).missing, 1000 * kPage);
}

TEST_F(Stitch, the_smallest_hole_that_is_large_enough_is_filled) {
  allocated(4, 1);  // a hole of 4 before it
  allocated(8, 1);  // one of 3
  EXPECT_EQ(text(stitch, ask(3)), "3 = create 3 at 5");
  EXPECT_EQ(text(stitch, ask(4)), "4 = create 4 at 0");
}

TEST_F(Stitch, a_caller_that_may_not_wait_takes_complete_memory_only) {
  map_free(0, {2}, pending(other));
  allocated(2, 1);
  map_free(3, {1});
  allocated(4, 1);
  map_free(5, {2}, pending(own));
  allocated(7, 1);
  Ask any_stream = ask(2);
  any_stream.own.reset();
  EXPECT_EQ(text(stitch, any_stream), "2 = move 1 of [-1] create 1 at 8");
}

}  // namespace
}  // namespace vpmm::pool
