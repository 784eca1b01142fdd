// SPDX-License-Identifier: Apache-2.0
// pool: hits, and single chunks, as printed plans.
#include "pool/strategies.hpp"

#include <gtest/gtest.h>

#include "pool/plan_world.hpp"

namespace vpmm::pool {
namespace {

// --- fit

class Fit : public testing::Test, protected PlanWorld {};

TEST_F(Fit, a_region_of_the_size_is_a_hit) {
  allocated(0, 1);
  map_free(1, {4, 2, 1});
  EXPECT_EQ(text(fit, ask(7)), "7 = keep 7 at 1");
  const Plan hit = plan(fit, ask(7));
  EXPECT_TRUE(hit.is_hit());
  EXPECT_EQ(hit.driver_us(), 0u);
  EXPECT_EQ(hit.range(), pages(1, 7));
}

TEST_F(Fit, the_smallest_region_that_is_large_enough_is_cut) {
  map_free(0, {8});
  allocated(8, 1);
  map_free(9, {6});
  EXPECT_EQ(text(fit, ask(5)), "5 = keep 5 at 9");
  EXPECT_EQ(text(fit, ask(7)), "7 = keep 7 at 0");
  EXPECT_EQ(text(fit, ask(9)), "no plan: 9 missing");
}

TEST_F(Fit, an_allocation_begins_and_ends_anywhere_in_a_chunk) {
  map_free(0, {8});
  used(pages(0, 3));
  EXPECT_EQ(text(fit, ask(2)), "2 = keep 2 at 3");
  map_free(20, {16, 16});
  EXPECT_EQ(text(fit, ask(20)), "20 = keep 20 at 20") << "over the border of two";
}

TEST_F(Fit, an_allocation_is_of_whole_grains) {
  map_free(0, {2});
  Ask half = ask(1);
  half.size = kPage / 2;
  EXPECT_EQ(plan(fit, half).range(), grains(0, 16));
  used(grains(0, 16));
  half.size = tuning.grain;
  EXPECT_EQ(plan(fit, half).range(), grains(16, 1));
}

// --- fit: Note [Cut at the better end]

TEST_F(Fit, the_end_is_cut_that_leaves_more_whole_chunks) {
  map_free(0, {8, 4, 4});
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 13") << "12 stay whole, and 8 at the front";
  EXPECT_EQ(text(fit, ask(10)), "10 = keep 10 at 0") << "4 stay whole, and none at the back";
  map_free(20, {4, 4, 8});
  used(pages(0, 16));
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 20");
}

TEST_F(Fit, the_front_is_cut_where_both_ends_leave_as_much) {
  map_free(0, {4, 4});
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 0");
  EXPECT_EQ(text(fit, ask(5)), "5 = keep 5 at 0");
}

TEST_F(Fit, what_is_trapped_already_is_cut_first) {
  map_free(0, {8, 4});
  used(pages(0, 4));
  EXPECT_EQ(text(fit, ask(2)), "2 = keep 2 at 4");
  map_free(20, {4, 8});
  used(pages(28, 4));
  used(pages(4, 8));
  EXPECT_EQ(text(fit, ask(2)), "2 = keep 2 at 26") << "at the back, too";
}

TEST_F(Fit, either_end_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 4, 1});
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 4");
  EXPECT_EQ(text(fit, aligned(5, 4)), "5 = keep 5 at 4");
  EXPECT_EQ(text(fit, aligned(2, 8)), "no plan: 2 missing");
  map_free(16, {8, 4, 4});
  used(pages(1, 8));
  EXPECT_EQ(text(fit, aligned(3, 4)), "3 = keep 3 at 28");
}

TEST_F(Fit, a_larger_region_is_cut_where_the_smallest_lacks_the_alignment) {
  map_free(1, {4});
  allocated(5, 1);
  map_free(6, {8});
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 8");
}

// --- fit: Note [Shared pages go low], Note [Own memory first]

TEST_F(Fit, what_goes_low_is_the_front_of_the_lowest_region) {
  map_free(0, {8, 4});
  allocated(12, 1);
  map_free(13, {2});
  Ask low = ask(2);
  EXPECT_EQ(text(fit, low), "2 = keep 2 at 13");
  low.goes_low = true;
  EXPECT_EQ(text(fit, low), "2 = keep 2 at 0") << "although the back would leave eight whole";
}

TEST_F(Fit, own_memory_goes_first_where_it_is_asked_for) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {8}, pending(own));
  Ask first = ask(4);
  EXPECT_EQ(text(fit, first), "4 = keep 4 at 0");
  first.own_first = true;
  EXPECT_EQ(text(fit, first), "4 = keep 4 at 5");
}

// --- fit: Note [Spare whole chunks]

TEST_F(Fit, where_memory_is_scarce_what_is_trapped_already_goes_before_whole_chunks) {
  map_free(0, {4});
  allocated(4, 1);
  map_free(5, {8});
  used(pages(5, 3));
  Ask scarce = ask(3);
  EXPECT_EQ(text(fit, scarce), "3 = keep 3 at 0");
  scarce.spares_chunks = true;
  EXPECT_EQ(text(fit, scarce), "3 = keep 3 at 8");
}

TEST_F(Fit, the_smallest_goes_first_where_as_much_is_spared_and_four_are_looked_at) {
  Ask scarce = ask(3);
  scarce.spares_chunks = true;
  for (Bytes first = 0; first < 40; first += 10) {
    map_free(first, {4});
    allocated(first + 4, 1);
  }
  map_free(50, {8});
  used(pages(50, 3));
  EXPECT_EQ(text(fit, scarce), "3 = keep 3 at 0") << "the fifth is not looked at";
  used(pages(0, 4));
  EXPECT_EQ(text(fit, scarce), "3 = keep 3 at 53");
  used(pages(53, 5));
  EXPECT_EQ(text(fit, scarce), "3 = keep 3 at 10");
}

// --- fit: neighbours that only their stamps divide

TEST_F(Fit, a_hit_may_lie_over_the_border_of_two_stamps) {
  map_free(0, {2, 4});
  map_free(6, {4}, pending(own));
  ASSERT_NE(at(0), at(6)) << "two regions";
  EXPECT_EQ(text(fit, ask(7)), "7 = keep 7 at 3") << "the front chunk stays whole";
  const Plan hit = plan(fit, ask(7));
  ASSERT_EQ(hit.kept.size(), 2u);
  EXPECT_EQ(hit.kept[0].range, pages(3, 3));
  EXPECT_EQ(hit.kept[1].range, pages(6, 4));
  EXPECT_FALSE(hit.is_complete());
}

TEST_F(Fit, a_hit_may_lie_over_three_regions) {
  map_free(0, {2, 1});
  map_free(3, {2}, pending(own));
  map_free(5, {1, 8});
  EXPECT_EQ(text(fit, ask(14)), "14 = keep 14 at 0");
  EXPECT_EQ(plan(fit, ask(14)).kept.size(), 3u);
}

TEST_F(Fit, a_hit_may_lie_over_two_stamps_of_one_chunk) {
  map_free(0, {8});
  used(pages(0, 3));
  used(pages(3, 5));
  freed(page(0));
  freed(page(3), pending(own));
  ASSERT_NE(at(0), at(3)) << "two regions";
  EXPECT_EQ(text(fit, ask(8)), "8 = keep 8 at 0");
}

TEST_F(Fit, of_several_stretches_the_smallest_is_cut) {
  map_free(0, {2});
  map_free(2, {2}, pending(own));
  allocated(4, 1);
  map_free(5, {1});
  map_free(6, {2}, pending(own));
  EXPECT_EQ(text(fit, ask(3)), "3 = keep 3 at 5");
}

TEST_F(Fit, one_region_goes_before_a_smaller_stretch_of_several) {
  map_free(0, {2});
  map_free(2, {2}, pending(own));
  allocated(4, 1);
  map_free(5, {9});
  EXPECT_EQ(text(fit, ask(4)), "4 = keep 4 at 5");
}

TEST_F(Fit, a_hit_over_borders_begins_at_the_alignment) {
  allocated(0, 1);
  map_free(1, {1, 1, 1, 2});
  map_free(6, {2, 1}, pending(own));
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 4");
  EXPECT_EQ(text(fit, aligned(4, 8)), "no plan: 4 missing");
}

TEST_F(Fit, regions_before_the_alignment_are_no_part_of_a_hit) {
  map_free(2, {2});
  map_free(4, {2}, pending(own));
  map_free(6, {2});
  EXPECT_EQ(text(fit, aligned(4, 4)), "4 = keep 4 at 4");
  EXPECT_EQ(plan(fit, aligned(4, 4)).kept.size(), 2u);
}

// --- fit: whose memory it is

TEST_F(Fit, what_another_stream_still_uses_ends_a_stretch) {
  map_free(0, {4, 2});
  map_free(6, {1}, pending(other));
  map_free(7, {1});
  EXPECT_EQ(text(fit, ask(7)), "no plan: 7 missing");
  EXPECT_EQ(text(fit, ask(6)), "6 = keep 6 at 0");
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

TEST_F(Fit, of_what_is_behind_waits_the_smallest_is_cut_too) {
  map_free(0, {8}, pending(other));
  allocated(8, 1);
  map_free(9, {6}, pending(third));
  EXPECT_EQ(text(fit, waiting(4)), "4 = keep 4 after 1 waits at 9");
}

TEST_F(Fit, memory_without_an_event_to_wait_for_is_left_alone) {
  map_free(0, {4}, pending(other, Closed::no));
  EXPECT_EQ(text(fit, waiting(4)), "no plan: 4 missing");
}

TEST_F(Fit, a_hit_of_several_regions_waits_for_each_stream_once) {
  map_free(0, {1}, pending(other));
  map_free(1, {1}, pending(third));
  map_free(2, {1}, pending(other));
  EXPECT_EQ(text(fit, waiting(3)), "3 = keep 3 after 2 waits at 0");
  const Plan hit = plan(fit, waiting(3));
  EXPECT_EQ(hit.waits[0], (time::StampPart{other.timeline->id, 2})) << "the later of the two";
  EXPECT_EQ(hit.waits[1], (time::StampPart{third.timeline->id, 1}));
}

// --- own chunks: Note [Own chunks]

class OwnChunks : public testing::Test, protected PlanWorld {
 protected:
  static Ask own_chunks(Ask ask) {
    ask.chunks = Chunks::own;
    return ask;
  }
};

TEST_F(OwnChunks, a_hit_is_whole_chunks_side_by_side_and_at_most_an_eighth_larger) {
  map_free(0, {4, 8, 8, 2});
  EXPECT_EQ(text(fit, own_chunks(ask(16))), "16 = keep 16 at 4");
  EXPECT_EQ(text(fit, own_chunks(ask(15))), "16 = keep 16 at 4");
  EXPECT_EQ(text(fit, own_chunks(ask(14))), "no plan: 14 missing")
      << "16 is more than an eighth too much";
  EXPECT_EQ(text(fit, own_chunks(ask(2))), "2 = keep 2 at 20");
  EXPECT_EQ(text(fit, own_chunks(ask(3))), "no plan: 3 missing");
  EXPECT_EQ(plan(fit, own_chunks(ask(15))).range(), pages(4, 16))
      << "all of it is the allocation's";
}

TEST_F(OwnChunks, of_a_range_the_stretch_closest_to_the_size_is_taken) {
  map_free(0, {9, 8, 1, 8});
  EXPECT_EQ(text(fit, own_chunks(ask(8))), "8 = keep 8 at 9");
  EXPECT_EQ(text(fit, own_chunks(ask(17))), "17 = keep 17 at 0");
}

TEST_F(OwnChunks, of_ranges_the_smallest_that_has_a_stretch_is_cut) {
  map_free(0, {8, 2});
  allocated(10, 1);
  map_free(11, {9});
  EXPECT_EQ(text(fit, own_chunks(ask(8))), "9 = keep 9 at 11");
  EXPECT_EQ(text(fit, own_chunks(ask(2))), "2 = keep 2 at 8")
      << "of one chunk of nine nothing can be taken";
}

TEST_F(OwnChunks, a_chunk_that_is_used_in_part_is_not_taken) {
  map_free(0, {2, 4, 2});
  used(pages(0, 1));
  used(grains(7 * 32 + 31, 1));
  EXPECT_EQ(text(fit, own_chunks(ask(2))), "no plan: 2 missing");
  EXPECT_EQ(text(fit, own_chunks(ask(4))), "4 = keep 4 at 2");
  EXPECT_EQ(text(stitch, own_chunks(ask(5))), "5 = move 4 of [-6] create 1 at 8");
}

TEST_F(OwnChunks, a_hit_may_lie_over_several_stamps) {
  map_free(0, {8, 2});
  used(pages(0, 3));
  used(pages(3, 5));
  freed(page(0));
  freed(page(3), pending(own));
  EXPECT_EQ(text(fit, own_chunks(ask(8))), "8 = keep 8 at 0");
  EXPECT_EQ(text(fit, own_chunks(ask(10))), "10 = keep 10 at 0");
}

TEST_F(OwnChunks, that_others_still_use_are_taken_behind_waits_or_not_at_all) {
  map_free(0, {4, 4}, pending(other));
  allocated(8, 1);
  map_free(9, {4, 1}, pending(third));
  EXPECT_EQ(text(fit, own_chunks(ask(4))), "no plan: 4 missing");
  EXPECT_EQ(text(fit, own_chunks(waiting(4))), "4 = keep 4 after 1 waits at 9");
}

TEST_F(OwnChunks, begin_at_the_alignment) {
  map_free(1, {2, 1, 2, 2});
  EXPECT_EQ(text(fit, own_chunks(aligned(2, 4))), "2 = keep 2 at 4");
  EXPECT_EQ(text(fit, own_chunks(aligned(2, 8))), "no plan: 2 missing");
}

TEST_F(OwnChunks, the_last_new_chunk_is_cut_to_size) {
  EXPECT_EQ(text(stitch, own_chunks(with_chunks(10, 4))), "10 = create 4 create 4 create 2 at 0");
  EXPECT_EQ(plan(stitch, own_chunks(with_chunks(10, 4))).mapped, pages(0, 10))
      << "nothing is too much";
  Ask early = own_chunks(with_chunks(10, 4));
  early.early_growth = 10 * kPage;
  EXPECT_EQ(text(stitch, early), "10 = create 4 create 4 create 2 at 0");
  Ask limited = own_chunks(with_chunks(10, 4));
  limited.growth_room = 9 * kPage;
  EXPECT_EQ(text(stitch, limited), "no plan: 1 missing");
}

TEST_F(OwnChunks, whole_chunks_beside_a_hole_are_kept) {
  map_free(0, {8, 8, 2, 1});
  EXPECT_EQ(text(stitch, own_chunks(ask(13))), "13 = keep 11 create 1 create 1 at 8")
      << "the chunk in front is larger than what lacks";
  used(pages(0, 9));
  EXPECT_EQ(text(stitch, own_chunks(ask(5))), "5 = keep 3 create 1 create 1 at 16")
      << "seven of a chunk used in part are not";
}

TEST_F(OwnChunks, whole_chunks_behind_a_hole_are_kept) {
  map_free(20, {1, 2, 8});
  used(pages(28, 3));
  EXPECT_EQ(text(stitch, own_chunks(ask(5))), "5 = keep 3 create 1 create 1 at 18");
  EXPECT_EQ(text(stitch, own_chunks(aligned(6, 8))),
            "6 = move 3 of [-8] create 1 create 1 create 1 at 0")
      << "neither 1 nor 3 end six behind a multiple of eight";
  EXPECT_EQ(text(stitch, own_chunks(aligned(7, 2))),
            "7 = keep 3 create 1 create 1 create 1 create 1 at 16");
}

TEST_F(OwnChunks, only_idle_chunks_that_fit_in_what_lacks_move) {
  map_free(0, {8});
  allocated(8, 1);
  map_free(9, {4, 2});
  allocated(15, 1);
  EXPECT_EQ(text(stitch, own_chunks(with_chunks(5, 8))), "5 = move 4 of [-6] create 1 at 16");
  EXPECT_EQ(text(stitch, own_chunks(with_chunks(15, 8))),
            "15 = move 6 of [-6] move 8 of [-8] create 1 at 16");
}

// --- exactly: chunks of the largest size, and one for the rest

class ExactChunks : public testing::Test, protected PlanWorld {
 protected:
  static Ask exact(Ask ask) {
    ask.chunks = Chunks::exact;
    ask.chunk = 8 * kPage;
    return ask;
  }
};

TEST_F(ExactChunks, a_hit_has_just_the_size_and_no_more_chunks_than_new_ones) {
  map_free(0, {8, 8, 3, 2, 2});
  EXPECT_EQ(text(fit, exact(ask(19))), "19 = keep 19 at 0");
  EXPECT_EQ(text(fit, exact(ask(3))), "3 = keep 3 at 16");
  EXPECT_EQ(text(fit, exact(ask(18))), "no plan: 18 missing") << "no eighth too much";
  EXPECT_EQ(text(fit, exact(ask(4))), "no plan: 4 missing") << "2 and 2 are more than one";
}

TEST_F(ExactChunks, only_chunks_of_the_sizes_of_new_ones_move) {
  map_free(0, {3});
  allocated(3, 1);
  map_free(4, {2, 8, 4});
  EXPECT_EQ(text(stitch, exact(ask(11))), "11 = move 3 of [-3] move 8 of [-14] at 18");
  EXPECT_EQ(text(stitch, exact(ask(12))), "12 = move 12 of [-14] at 18");
  Ask grown = exact(ask(13));
  grown.growth_room = 5 * kPage;
  EXPECT_EQ(text(stitch, grown), "13 = move 8 of [-14] create 5 at 18");
}

// --- one chunk

class OneChunk : public testing::Test, protected PlanWorld {
 protected:
  static Ask one(Ask ask) {
    ask.chunks = Chunks::one;
    ask.chunk = ask.size;
    return ask;
  }
};

TEST_F(OneChunk, an_idle_chunk_of_just_the_size_is_a_hit_wherever_it_lies) {
  map_free(0, {4, 2, 8});
  EXPECT_EQ(text(fit, one(ask(2))), "2 = keep 2 at 4");
  EXPECT_TRUE(plan(fit, one(ask(2))).is_hit());
  EXPECT_EQ(text(fit, one(ask(3))), "no plan: 3 missing");
  EXPECT_EQ(text(fit, one(ask(6))), "no plan: 6 missing") << "4 and 2 are two chunks";
}

TEST_F(OneChunk, a_chunk_that_is_used_in_part_is_not_taken) {
  map_free(0, {2, 4});
  used(pages(0, 1));
  EXPECT_EQ(text(fit, one(ask(2))), "no plan: 2 missing");
  EXPECT_EQ(text(fit, one(ask(4))), "4 = keep 4 at 2");
}

TEST_F(OneChunk, begins_at_the_alignment) {
  map_free(1, {2, 1, 2});
  EXPECT_EQ(text(fit, one(aligned(2, 4))), "2 = keep 2 at 4");
  EXPECT_EQ(text(fit, one(aligned(2, 8))), "no plan: 2 missing");
}

TEST_F(OneChunk, of_the_smallest_region_is_taken) {
  map_free(0, {2, 8});
  allocated(10, 1);
  map_free(11, {2, 1});
  EXPECT_EQ(text(fit, one(ask(2))), "2 = keep 2 at 11");
}

TEST_F(OneChunk, that_others_still_use_is_taken_behind_waits_or_not_at_all) {
  map_free(0, {2}, pending(other));
  EXPECT_EQ(text(fit, one(ask(2))), "no plan: 2 missing");
  EXPECT_EQ(text(fit, one(waiting(2))), "2 = keep 2 after 1 waits at 0");
}

TEST_F(OneChunk, is_created_whatever_is_idle) {
  map_free(0, {2});
  allocated(2, 1);
  for (const Strategy grow : {stitch, grow_in_one_chunk}) {
    EXPECT_EQ(text(grow, one(ask(300))), "300 = create 300 at 3");
    Ask limited = one(ask(300));
    limited.growth_room = 299 * kPage;
    EXPECT_EQ(text(grow, limited), "no plan: 1 missing");
  }
}

TEST_F(OneChunk, is_created_at_the_alignment) {
  allocated(0, 1);
  EXPECT_EQ(text(stitch, one(aligned(3, 4))), "3 = create 3 at 4");
  EXPECT_EQ(text(grow_in_one_chunk, aligned(3, 4)), "3 = create 3 at 4");
}

TEST_F(OneChunk, of_just_the_size_moves_where_its_address_is_not_aligned) {
  map_free(1, {2, 3});
  allocated(6, 1);
  EXPECT_EQ(text(fit, one(aligned(3, 4))), "no plan: 3 missing");
  EXPECT_EQ(text(stitch, one(aligned(3, 4))), "3 = move 3 of [-5] at 8");
  EXPECT_EQ(text(stitch, one(ask(5))), "5 = create 5 at 7") << "2 and 3 are two chunks";
}

TEST_F(OneChunk, is_created_of_whole_pages) {
  Ask grains = ask(1);
  grains.size = kPage + tuning.grain;
  const Plan creating = plan(grow_in_one_chunk, grains);
  EXPECT_EQ(creating.creates, (Vector<Bytes>{2 * kPage}));
  EXPECT_EQ(creating.range().size, kPage + tuning.grain);
}

}  // namespace
}  // namespace vpmm::pool
