// SPDX-License-Identifier: Apache-2.0
// pool: what is kept, moved and created, as printed plans.
#include "pool/strategies.hpp"

#include <gtest/gtest.h>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

class Stitch : public testing::Test, protected PlanWorld {
 protected:
  Ask in_bytes(Bytes size) const {
    Ask odd = ask(1);
    odd.size = size;
    return odd;
  }
};

// --- what is created

TEST_F(Stitch, an_empty_pool_creates_everything_at_the_lowest_address) {
  EXPECT_EQ(text(stitch, ask(3)), "3 = create 1 create 1 create 1 at 0");
  EXPECT_EQ(text(stitch, with_chunks(256, 128)), "256 = create 128 create 128 at 0");
}

TEST_F(Stitch, only_what_is_lacking_is_created) {
  map_free(0, {2});
  allocated(2, 1);
  EXPECT_EQ(text(stitch, with_chunks(4, 2)), "4 = move 2 of [-2] create 2 at 3");
}

TEST_F(Stitch, chunks_are_not_cut_to_size) {
  EXPECT_EQ(text(stitch, with_chunks(10, 4)), "10 = create 4 create 4 create 4 at 0");
  const Plan creating = plan(stitch, with_chunks(10, 4));
  EXPECT_EQ(creating.range(), pages(0, 10));
  EXPECT_EQ(creating.mapped, pages(0, 12)) << "two stay free";
}

TEST_F(Stitch, a_new_chunk_is_cut_to_size_where_there_is_no_room_for_all_of_it) {
  Ask limited = with_chunks(10, 8);
  limited.growth_room = 15 * kPage;
  EXPECT_EQ(text(stitch, limited), "10 = create 8 create 2 at 0");
}

TEST_F(Stitch, new_chunks_are_whole_pages_whatever_is_asked_for) {
  const Plan creating = plan(stitch, in_bytes(kPage + tuning.grain));
  EXPECT_EQ(creating.creates, (Vector<Bytes>{kPage, kPage}));
  EXPECT_EQ(creating.range(), grains(0, 33));
}

// --- what is kept

TEST_F(Stitch, a_stretch_before_a_hole_is_kept_whole) {
  map_free(0, {8, 2, 1});
  EXPECT_EQ(text(stitch, ask(12)), "12 = keep 11 create 1 at 0");
}

TEST_F(Stitch, a_stretch_behind_a_hole_is_kept_whole) {
  map_free(10, {1, 2, 8});
  allocated(21, 1);
  EXPECT_EQ(text(stitch, ask(12)), "12 = keep 11 create 1 at 9");
}

TEST_F(Stitch, what_is_idle_of_a_chunk_used_in_part_is_kept) {
  map_free(0, {8});
  used(pages(0, 3));
  EXPECT_EQ(text(stitch, with_chunks(7, 2)), "7 = keep 5 create 2 at 3");
  map_free(20, {8});
  used(pages(27, 1));
  EXPECT_EQ(text(stitch, with_chunks(9, 2)), "9 = keep 7 create 2 at 18") << "before it, too";
}

TEST_F(Stitch, the_largest_stretch_is_kept) {
  allocated(9, 1);
  map_free(10, {3});
  allocated(30, 1);
  map_free(31, {5});
  allocated(50, 1);
  EXPECT_EQ(text(stitch, ask(9)), "9 = keep 5 move 3 of [-3] create 1 at 31");
}

TEST_F(Stitch, of_stretches_of_one_size_the_lowest_is_kept) {
  allocated(0, 1);
  map_free(1, {3});
  allocated(30, 1);
  map_free(31, {3});
  EXPECT_EQ(text(stitch, ask(7)), "7 = keep 3 move 3 of [-3] create 1 at 1");
}

TEST_F(Stitch, of_holes_at_both_ends_the_one_behind_is_filled) {
  allocated(0, 1);
  map_free(10, {3});
  allocated(40, 1);
  EXPECT_EQ(text(stitch, ask(4)), "4 = keep 3 create 1 at 10");
}

TEST_F(Stitch, of_holes_at_both_ends_one_that_has_room_for_whole_chunks_is_filled) {
  allocated(0, 1);
  map_free(10, {3});
  allocated(15, 1);  // two pages of hole before it
  EXPECT_EQ(text(stitch, with_chunks(5, 2)), "5 = keep 3 create 2 at 10");
  EXPECT_EQ(text(stitch, with_chunks(5, 4)), "5 = keep 3 create 4 at 8");
}

TEST_F(Stitch, what_is_kept_may_lie_over_several_regions) {
  allocated(0, 1);
  map_free(1, {8, 2});
  map_free(11, {1}, pending(own));
  map_free(12, {2});
  EXPECT_EQ(text(stitch, ask(14)), "14 = keep 13 create 1 at 1");
  EXPECT_EQ(plan(stitch, ask(14)).kept.size(), 3u);
}

TEST_F(Stitch, what_is_kept_behind_a_hole_may_lie_over_several_regions) {
  map_free(30, {2});
  map_free(32, {1}, pending(own));
  map_free(33, {4});
  allocated(37, 1);
  EXPECT_EQ(text(stitch, ask(9)), "9 = keep 7 create 1 create 1 at 28");
}

TEST_F(Stitch, a_stretch_of_several_regions_is_kept_beside_a_hole_that_is_just_large_enough) {
  allocated(0, 1);
  map_free(1, {3});
  map_free(4, {3}, pending(own));
  allocated(8, 1);  // one page of hole before it
  EXPECT_EQ(text(stitch, ask(7)), "7 = keep 6 create 1 at 1");
}

TEST_F(Stitch, what_another_stream_still_uses_is_not_kept) {
  allocated(0, 1);
  map_free(1, {2});
  map_free(3, {2}, pending(other));
  EXPECT_EQ(text(stitch, with_chunks(4, 2)), "4 = move 2 of [-2] create 2 at 5");
  Ask patient = waiting(5);
  EXPECT_EQ(text(stitch, patient), "5 = keep 4 create 1 after 1 waits at 1");
}

TEST_F(Stitch, a_stretch_whose_hole_is_too_small_is_not_kept) {
  allocated(0, 1);
  map_free(1, {8});  // one page of hole behind it
  allocated(10, 1);
  map_free(11, {2});
  EXPECT_EQ(text(stitch, ask(11)), "11 = keep 2 move 8 of [-8] create 1 at 11");
}

TEST_F(Stitch, where_the_last_chunk_is_too_large_for_the_hole_everything_moves) {
  allocated(0, 1);
  map_free(1, {8});
  allocated(11, 1);  // two pages of hole before it
  map_free(12, {3});
  allocated(15, 1);
  EXPECT_EQ(text(stitch, ask(10)), "10 = move 3 of [-3] move 8 of [-8] at 16");
}

TEST_F(Stitch, what_is_kept_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 1, 1});
  EXPECT_EQ(text(stitch, aligned(4, 4)), "4 = keep 2 move 2 of [-5] at 4");
  EXPECT_EQ(text(stitch, aligned(4, 8)), "4 = move 4 of [-5] at 8");
}

TEST_F(Stitch, what_is_kept_behind_a_hole_ends_where_the_allocation_is_aligned) {
  map_free(10, {2, 1});
  allocated(13, 1);
  EXPECT_EQ(text(stitch, aligned(4, 4)), "4 = keep 2 move 1 of [-3] create 1 at 8");
  EXPECT_EQ(text(stitch, aligned(5, 8)), "5 = keep 3 create 1 create 1 at 8");
  EXPECT_EQ(text(stitch, aligned(6, 8)), "6 = move 3 of [-3] create 1 create 1 create 1 at 0")
      << "page 0 is too far";
}

TEST_F(Stitch, nothing_is_kept_that_would_trap_what_the_request_needs) {
  allocated(0, 1);
  map_free(1, {8});
  Ask no_growth = aligned(8, 8);
  no_growth.growth_room = 0;
  EXPECT_EQ(text(stitch, no_growth), "8 = move 8 of [-8] at 16")
      << "page 8, kept, would hold the chunk where it is";
  no_growth.size = 9 * kPage;
  EXPECT_EQ(text(stitch, no_growth), "no plan: 1 missing");
}

// --- what moves

TEST_F(Stitch, chunks_of_the_smallest_ranges_move_first) {
  map_free(0, {4, 1});
  allocated(5, 1);
  map_free(6, {2});
  allocated(8, 1);
  EXPECT_EQ(text(stitch, ask(7)), "7 = move 2 of [-2] move 5 of [-5] at 9");
  EXPECT_EQ(text(stitch, ask(2)), "2 = move 2 of [-2] at 9");
}

TEST_F(Stitch, chunks_of_own_ranges_move_first_where_it_is_asked_for) {
  map_free(0, {2});
  allocated(2, 1);
  map_free(3, {4}, pending(own));
  allocated(7, 1);
  Ask first = ask(6);
  first.own_first = true;
  EXPECT_EQ(text(stitch, first), "6 = move 4 of [-4] move 2 of [-2] at 8");
}

TEST_F(Stitch, chunks_side_by_side_leave_together) {
  map_free(0, {2, 2, 2});
  allocated(6, 1);
  const Plan moving = plan(stitch, ask(4));
  EXPECT_EQ(text(moving), "4 = move 4 of [-6] at 7");
  EXPECT_EQ(moving.moves[0].chunks.size(), 2u);
}

TEST_F(Stitch, the_last_chunk_may_be_larger_than_what_lacks) {
  map_free(0, {2});
  allocated(2, 1);
  map_free(3, {8});
  allocated(11, 1);
  const Plan moving = plan(stitch, ask(5));
  EXPECT_EQ(text(moving), "5 = move 2 of [-2] move 8 of [-8] at 12");
  EXPECT_EQ(moving.mapped, pages(12, 10)) << "five stay free";
}

TEST_F(Stitch, what_is_too_much_lies_in_front_where_what_is_kept_is_behind) {
  allocated(0, 1);
  map_free(20, {2});
  allocated(22, 1);
  const Plan creating = plan(stitch, with_chunks(5, 8));
  EXPECT_EQ(text(creating), "5 = keep 2 create 8 at 17");
  EXPECT_EQ(creating.mapped, pages(12, 8));
}

TEST_F(Stitch, a_part_of_a_page_is_kept_and_whole_pages_are_mapped_beside_it) {
  map_free(0, {1});
  used(grains(0, 16));
  const Plan behind = plan(stitch, in_bytes(kPage));
  EXPECT_EQ(behind.range(), grains(16, 32));
  EXPECT_EQ(behind.mapped, pages(1, 1)) << "half of it stays free";
  map_free(20, {1});
  used(grains(20 * 32 + 24, 8));
  const Plan in_front = plan(stitch, in_bytes(kPage));
  EXPECT_EQ(in_front.range(), grains(20 * 32 - 8, 32));
  EXPECT_EQ(in_front.mapped, pages(19, 1));
}

TEST_F(Stitch, chunks_that_are_used_in_part_do_not_move) {
  map_free(0, {8, 2, 4});
  used(pages(0, 3));
  used(pages(13, 1));
  EXPECT_EQ(text(stitch, with_chunks(11, 16)), "11 = move 2 of [-10] create 16 at 14");
}

TEST_F(Stitch, a_chunk_under_two_stamps_moves_when_it_is_one_region) {
  map_free(0, {8});
  allocated(8, 1);
  used(pages(0, 3));
  used(pages(3, 5));
  freed(page(0));
  freed(page(3), pending(own));
  EXPECT_EQ(text(stitch, with_chunks(9, 16)), "9 = create 16 at 9");
  index.advance(own.timeline->id, 1);
  EXPECT_EQ(text(stitch, with_chunks(9, 1)), "9 = move 8 of [-8] create 1 at 9");
}

TEST_F(Stitch, every_idle_chunk_moves_before_anything_is_created) {
  map_free(0, {7, 5, 3});
  allocated(15, 1);
  map_free(16, {1, 1});
  allocated(18, 1);
  EXPECT_EQ(text(stitch, with_chunks(20, 3)),
            "20 = move 2 of [-2] move 15 of [-15] create 3 at 19");
}

TEST_F(Stitch, what_others_still_use_moves_last_and_behind_waits) {
  map_free(0, {8}, pending(other));
  allocated(8, 1);
  map_free(9, {2});
  allocated(11, 1);
  EXPECT_EQ(text(stitch, with_chunks(10, 8)), "10 = move 2 of [-2] create 8 at 12");
  EXPECT_EQ(text(stitch, waiting(10)), "10 = move 2 of [-2] move 8 of [-8] after 1 waits at 12");
  EXPECT_EQ(text(stitch, waiting(2)), "2 = move 2 of [-2] at 12");
}

TEST_F(Stitch, of_what_others_still_use_the_oldest_moves_first) {
  map_free(0, {4}, pending(other));
  allocated(4, 1);
  map_free(5, {2}, pending(third));
  allocated(7, 1);
  EXPECT_EQ(text(stitch, waiting(5)), "5 = move 4 of [-4] move 2 of [-2] after 2 waits at 8");
}

TEST_F(Stitch, a_chunk_moves_again_while_work_still_uses_an_old_address_of_it) {
  map_free(0, {16});
  allocated(16, 1);
  moved_from(100, 0);
  allocated(116, 1);
  EXPECT_EQ(text(stitch, ask(16)), "16 = move 16 of [-16] at 17");
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

// --- early growth

TEST_F(Stitch, within_early_growth_new_chunks_stand_beside_what_is_kept) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {2});
  Ask early = with_chunks(6, 4);
  early.early_growth = 4 * kPage;
  EXPECT_EQ(text(stitch, early), "6 = keep 2 create 4 at 5")
      << "although four idle pages could move";
  early.early_growth = 3 * kPage;
  EXPECT_EQ(text(stitch, early), "6 = keep 2 move 4 of [-4] at 5");
}

TEST_F(Stitch, early_growth_counts_whole_chunks) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {2});
  Ask early = with_chunks(6, 8);
  early.early_growth = 7 * kPage;
  EXPECT_EQ(text(stitch, early), "6 = keep 2 move 4 of [-4] at 5");
  early.early_growth = 8 * kPage;
  EXPECT_EQ(text(stitch, early), "6 = keep 2 create 8 at 5");
}

TEST_F(Stitch, early_growth_is_growth) {
  map_free(0, {4});
  allocated(4, 1);
  Ask early = ask(4);
  early.early_growth = 4 * kPage;
  EXPECT_EQ(text(stitch, early), "4 = create 1 create 1 create 1 create 1 at 5");
  early.growth_room = 3 * kPage;
  EXPECT_EQ(text(stitch, early), "4 = move 4 of [-4] at 5");
}

// --- bounds

TEST_F(Stitch, growth_stays_within_its_room) {
  map_free(0, {2});
  allocated(2, 1);
  Ask limited = with_chunks(6, 4);
  limited.growth_room = 4 * kPage;
  EXPECT_EQ(text(stitch, limited), "6 = move 2 of [-2] create 4 at 3");
  limited.growth_room = 3 * kPage;
  EXPECT_EQ(text(stitch, limited), "no plan: 1 missing");
}

TEST_F(Stitch, no_plan_says_how_much_is_missing_beside_what_is_kept) {
  map_free(0, {8});
  used(pages(0, 3));
  Ask limited = with_chunks(9, 1);
  limited.growth_room = 2 * kPage;
  EXPECT_EQ(text(stitch, limited), "no plan: 2 missing");
}

TEST_F(Stitch, no_plan_says_that_address_space_is_missing) {
  allocated(999, 1);
  EXPECT_EQ(text(stitch, ask(1000)), "no plan: address space");
  EXPECT_EQ(std::get<NoPlan>(stitch(view(), ask(1000))).missing, 1000 * kPage);
  Ask roomy = with_chunks(1000, 16);
  roomy.growth_room = 2000 * kPage;
  EXPECT_EQ(std::get<NoPlan>(stitch(view(), roomy)).missing, 1008 * kPage)
      << "with what is too much";
}

TEST_F(Stitch, the_smallest_hole_that_is_large_enough_is_filled) {
  allocated(4, 1);  // a hole of 4 before it
  allocated(8, 1);  // one of 3
  EXPECT_EQ(text(stitch, with_chunks(3, 3)), "3 = create 3 at 5");
  EXPECT_EQ(text(stitch, with_chunks(3, 4)), "3 = create 4 at 0");
}

TEST_F(Stitch, whole_pages_are_mapped_at_the_alignment_of_a_page) {
  Ask odd = in_bytes(kPage);
  odd.alignment = 4 * tuning.grain;
  EXPECT_EQ(plan(stitch, odd).mapped.begin, page(0));
  allocated(0, 1);
  odd.alignment = 4 * kPage;
  EXPECT_EQ(plan(stitch, odd).mapped.begin, page(4));
}

}  // namespace
}  // namespace vpmm::pool
