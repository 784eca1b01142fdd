// SPDX-License-Identifier: Apache-2.0
// arena: which free block a request gets, and how blocks are cut and merged.
#include "arena/arena.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "support/page_size.hpp"

namespace vpmm::arena {
namespace {

using time::Stamp;
using time::StampPart;
using time::TimelineId;

constexpr DevicePtr kBase{0x1000'0000};
constexpr StreamKey kA{1};
constexpr StreamKey kB{2};
constexpr TimelineId kTimelineA{11};
constexpr TimelineId kTimelineB{12};

Stamp after(TimelineId timeline, std::uint64_t sequence) {
  return Stamp(StampPart{timeline, sequence});
}

class ArenaTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(arena.validate(), ""); }

  // Where it was put; null: nowhere.
  DevicePtr take(Bytes size, StreamKey key, Reach room = Reach::by_size, Bytes alignment = kGrain) {
    const auto part = arena.find({size, alignment, key}, room);
    if (!part) return {};
    arena.take(*part, {size, key, std::nullopt});
    EXPECT_EQ(arena.validate(), "");
    return part->begin;
  }
  void end(DevicePtr begin, StreamKey key, const Stamp& stamp, bool is_waiting = false) {
    arena.end(begin, {key, stamp, is_waiting});
    EXPECT_EQ(arena.validate(), "");
  }
  void complete(TimelineId timeline, std::uint64_t sequence) {
    arena.refresh([&](const Stamp& stamp) { return stamp.without(timeline, sequence); });
    EXPECT_EQ(arena.validate(), "");
  }
  std::string picture() const { return arena.picture(kGrain); }

  Arena arena{kPage, Splitting::yes};
};

TEST_F(ArenaTest, a_request_is_cut_from_the_front_of_the_smallest_block_that_fits) {
  arena.add({kBase, 4 * kPage}, kA);
  arena.add({kBase + 8 * kPage, 2 * kPage}, kA);
  EXPECT_EQ(take(kPage + 512, kA), kBase + 8 * kPage);
  EXPECT_EQ(arena.picture(512), "[-16384] [4097][-4095]");
}

TEST_F(ArenaTest, among_equals_the_lowest_address_is_taken) {
  arena.add({kBase + 8 * kPage, 2 * kPage}, kA);
  arena.add({kBase, 2 * kPage}, kA);
  EXPECT_EQ(take(2 * kPage, kA), kBase);
}

TEST_F(ArenaTest, freed_neighbours_of_one_stream_become_one_block_with_the_later_number) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr first = take(512, kA), second = take(1024, kA), third = take(512, kA);
  end(first, kA, after(kTimelineA, 1));
  end(second, kA, after(kTimelineA, 2));
  EXPECT_EQ(picture(), "[-3][1][-4092]");
  EXPECT_EQ(arena.block_around(first)->stamp, after(kTimelineA, 2));
  end(third, kA, after(kTimelineA, 3));
  EXPECT_EQ(picture(), "[-4096]");
}

TEST_F(ArenaTest, stamps_of_the_same_two_timelines_are_one_stamp) {
  const Stamp first({kTimelineA, 1}, {kTimelineB, 4});
  const Stamp second({kTimelineA, 3}, {kTimelineB, 2});
  EXPECT_EQ(joined(first, second), Stamp({kTimelineA, 3}, {kTimelineB, 4}));
  EXPECT_EQ(joined(first, after(TimelineId{13}, 1)), std::nullopt);
}

TEST_F(ArenaTest, of_runs_of_one_size_the_lowest_is_taken) {
  for (const DevicePtr begin : {kBase, kBase + 8 * kPage}) {
    arena.add({begin, kPage}, kA);
    arena.take({begin, kPage / 2}, {kPage / 2, kB, std::nullopt});
    arena.take({begin + kPage / 2, kPage / 2}, {kPage / 2, kA, std::nullopt});
    end(begin, kB, {});
    end(begin + kPage / 2, kA, {});
  }
  EXPECT_EQ(picture(), "[-2048][-2048] [-2048][-2048]");
  EXPECT_EQ(take(kPage, kA), kBase);
}

TEST_F(ArenaTest, an_idle_stretch_is_looked_for_from_an_address_on) {
  EXPECT_EQ(arena.idle_stretch(), nullptr);
  for (const Bytes page : {0U, 2U, 4U}) arena.add({kBase + page * kPage, kPage}, kEverybody);
  arena.take({kBase + 4 * kPage, kPage}, {kPage, kA, std::nullopt});
  EXPECT_EQ(arena.idle_stretch()->range.begin, kBase);
  EXPECT_EQ(arena.idle_stretch(kBase)->range.begin, kBase);
  EXPECT_EQ(arena.idle_stretch(kBase + 1)->range.begin, kBase + 2 * kPage);
  EXPECT_EQ(arena.idle_stretch(kBase + 3 * kPage), nullptr) << "the last is in use";
  EXPECT_EQ(arena.idle_stretch(kBase + 5 * kPage), nullptr);
}

TEST_F(ArenaTest, what_a_stream_freed_goes_before_a_smaller_piece_that_others_are_done_with) {
  arena.add({kBase, 16 * kGrain}, kEverybody);
  const DevicePtr own = take(4 * kGrain, kA);
  take(kGrain, kA);
  const DevicePtr other = take(2 * kGrain, kB);
  take(9 * kGrain, kA);
  end(own, kA, after(kTimelineA, 1));
  end(other, kB, after(kTimelineB, 1));
  complete(kTimelineB, 1);
  EXPECT_EQ(take(2 * kGrain, kA), own);
  EXPECT_EQ(take(2 * kGrain, kA), own + 2 * kGrain);
  EXPECT_EQ(take(2 * kGrain, kA), other);
}

TEST_F(ArenaTest, an_idle_stretch_can_be_divided) {
  arena.add({kBase, 4 * kPage}, kA);
  arena.divide(kBase + kPage);
  EXPECT_EQ(arena.validate(), "");
  EXPECT_EQ(arena.picture(kPage), "[-1] [-3]");
}

TEST_F(ArenaTest, without_streams_complete_blocks_are_one_and_everybodys) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr first = take(512, kA), second = take(512, kB), live = take(512, kB);
  end(first, kA, {});
  end(second, kB, {});
  EXPECT_EQ(picture(), "[-1][-1][1][-4093]");
  arena.forget_streams();
  EXPECT_EQ(picture(), "[-2][1][-4093]");
  EXPECT_EQ(arena.block_around(first)->key, kEverybody);
  EXPECT_EQ(arena.block_around(live)->key, kEverybody);
}

TEST_F(ArenaTest, a_stream_has_what_it_freed_at_once_and_others_when_the_work_is_over) {
  arena.add({kBase, kPage}, kA);
  end(take(kPage, kA), kA, after(kTimelineA, 7));
  EXPECT_EQ(take(kPage, kB), DevicePtr{}) << "the work of the other stream may still run";
  complete(kTimelineA, 6);
  EXPECT_EQ(take(kPage, kB), DevicePtr{});
  complete(kTimelineA, 7);
  EXPECT_EQ(take(kPage, kB), kBase);
  end(kBase, kB, after(kTimelineB, 1));
  EXPECT_EQ(take(kPage, kB), kBase) << "at once";
}

TEST_F(ArenaTest, in_a_pinned_arena_a_stream_has_only_what_it_freed_itself) {
  arena.add({kBase, kPage}, kA);
  arena.pin();
  EXPECT_EQ(take(kPage, kB), DevicePtr{}) << "it is complete, and a graph may use it";
  const DevicePtr first = take(kPage, kA);
  end(first, kA, {});
  EXPECT_EQ(take(kPage, kB), DevicePtr{});
  EXPECT_EQ(take(kPage, kA), first);
}

TEST_F(ArenaTest, what_waits_serves_nobody_before_its_stamp_is_complete) {
  arena.add({kBase, kPage}, kA);
  arena.pin();
  end(take(kPage, kA), kA, Stamp({kTimelineA, 1}, {kTimelineB, 4}), true);
  EXPECT_EQ(picture(), "[~4096]");
  EXPECT_EQ(take(512, kA), DevicePtr{});
  EXPECT_TRUE(arena.has_pending_for(kA, 512));
  EXPECT_FALSE(arena.has_pending_for(kB, 512)) << "the arena is pinned, and it is not B's";
  complete(kTimelineB, 4);
  EXPECT_EQ(take(512, kA), DevicePtr{});
  complete(kTimelineA, 1);
  EXPECT_EQ(take(512, kB), DevicePtr{});
  EXPECT_EQ(take(512, kA), kBase);
}

TEST_F(ArenaTest, a_stream_has_something_to_wait_for_if_others_may_be_done_with_it_soon) {
  arena.add({kBase, 2 * kPage}, kA);
  const DevicePtr first = take(kPage, kA), second = take(kPage, kA);
  EXPECT_FALSE(arena.has_pending_for(kA, 512) || arena.has_pending_for(kB, 512)) << "all is live";
  end(first, kA, after(kTimelineA, 1));
  EXPECT_FALSE(arena.has_pending_for(kA, 512)) << "it has this at once";
  EXPECT_TRUE(arena.has_pending_for(kB, kPage));
  EXPECT_FALSE(arena.has_pending_for(kB, kPage + 1)) << "its neighbour is live";
  end(second, kA, Stamp({kTimelineA, 2}, {kTimelineB, 1}), true);
  EXPECT_TRUE(arena.has_pending_for(kA, 2 * kPage) && arena.has_pending_for(kB, 2 * kPage));
  EXPECT_FALSE(arena.has_pending_for(kB, 2 * kPage + 1));
  complete(kTimelineB, 1);
  complete(kTimelineA, 2);
  EXPECT_FALSE(arena.has_pending_for(kA, 512) || arena.has_pending_for(kB, 512))
      << "all is complete";
}

TEST_F(ArenaTest, what_waits_between_live_blocks_is_waited_for_alone) {
  arena.add({kBase, 5 * kPage}, kA);
  for (int i = 0; i < 5; ++i) take(kPage, kA);
  for (const Bytes i : {0, 2, 4}) end(kBase + i * kPage, kA, after(kTimelineA, 1));
  EXPECT_TRUE(arena.has_pending_for(kB, kPage));
  EXPECT_FALSE(arena.has_pending_for(kB, kPage + 1));
  end(kBase + 3 * kPage, kA, after(kTimelineA, 2));
  EXPECT_TRUE(arena.has_pending_for(kB, 3 * kPage));
  EXPECT_FALSE(arena.has_pending_for(kB, 3 * kPage + 1));
}

TEST_F(ArenaTest, what_waits_merges_when_it_waits_no_longer) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr first = take(512, kA), second = take(512, kA), third = take(512, kA);
  end(first, kA, {});
  end(third, kA, {});
  end(second, kA, after(kTimelineB, 1), true);
  EXPECT_EQ(picture(), "[-1][~1][-4094]");
  complete(kTimelineB, 1);
  EXPECT_EQ(picture(), "[-4096]");
}

TEST_F(ArenaTest, refresh_asks_for_no_stamp_once_all_free_blocks_are_complete) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr first = take(512, kA), second = take(512, kA);
  int asked = 0;
  const auto refresh = [&](std::uint64_t sequence) {
    asked = 0;
    arena.refresh([&](const Stamp& stamp) {
      ++asked;
      return stamp.without(kTimelineA, sequence);
    });
    return asked;
  };
  EXPECT_EQ(refresh(9), 0) << "the rest of the page is complete";
  end(first, kA, after(kTimelineA, 1));
  EXPECT_EQ(refresh(0), 1);
  EXPECT_EQ(refresh(1), 1);
  EXPECT_EQ(refresh(1), 0);
  EXPECT_FALSE(arena.has_pending_for(kB, 512));
  end(second, kA, after(kTimelineA, 2));
  EXPECT_TRUE(arena.has_pending_for(kB, 512));
  EXPECT_EQ(refresh(2), 1);
  EXPECT_EQ(picture(), "[-4096]");
}

TEST_F(ArenaTest, a_wait_for_nothing_is_none) {
  arena.add({kBase, kPage}, kA);
  end(take(kPage, kA), kA, {}, true);
  EXPECT_EQ(take(kPage, kA), kBase);
}

TEST_F(ArenaTest, neighbours_of_several_streams_serve_together_where_none_is_enough_alone) {
  arena.add({kBase, 4 * kPage}, kA);
  const DevicePtr first = take(2 * kPage, kA), second = take(2 * kPage, kB);
  end(first, kA, after(kTimelineA, 1));
  end(second, kB, after(kTimelineB, 1));
  EXPECT_EQ(take(3 * kPage, kA), DevicePtr{});
  complete(kTimelineB, 1);
  EXPECT_EQ(take(3 * kPage, kA), kBase);
  EXPECT_EQ(arena.block_around(kBase + 3 * kPage)->key, kB) << "what is left is the other's still";
}

TEST_F(ArenaTest, the_smallest_block_that_another_stream_is_done_with_goes_before_several) {
  arena.add({kBase, 4 * kPage}, kA);
  arena.add({kBase + 8 * kPage, 4 * kPage}, kA);
  const DevicePtr three = take(3 * kPage, kB), one = take(kPage, kA);
  const DevicePtr more = take(3 * kPage + 512, kB);
  ASSERT_EQ(one, three + 3 * kPage);
  end(three, kB, after(kTimelineB, 1));
  end(one, kA, after(kTimelineA, 1));
  end(more, kB, after(kTimelineB, 2));
  complete(kTimelineB, 2);
  EXPECT_EQ(take(3 * kPage, kA), three) << "with its neighbour it is larger than the other";
}

TEST_F(ArenaTest, what_any_of_several_streams_is_done_with_serves_another) {
  constexpr StreamKey kC{3}, kD{4};
  arena.add({kBase, 16 * kGrain}, kEverybody);
  std::vector<DevicePtr> blocks;
  for (const Bytes grains : {2U, 1U, 3U, 1U, 5U, 1U}) blocks.push_back(take(grains * kGrain, kA));
  end(blocks[0], kA, {});
  end(blocks[2], kB, {});
  end(blocks[4], kC, {});
  take(3 * kGrain, kEverybody);  // of the rest of the stretch
  EXPECT_EQ(picture(), "[-2][1][-3][1][-5][1][3]");
  EXPECT_EQ(take(4 * kGrain, kD), blocks[4]) << "of the last of them";
  EXPECT_EQ(take(3 * kGrain, kD), blocks[2]);
  EXPECT_EQ(take(2 * kGrain, kD), blocks[0]);
}

TEST_F(ArenaTest, of_several_stretches_of_neighbours_the_smallest_serves) {
  constexpr Bytes kHalf = kPage / 2;
  const Bytes sizes[] = {3 * kPage, 2 * kPage, 4 * kPage};
  Vector<DevicePtr> blocks;
  for (Bytes i = 0; i < 3; ++i) {
    arena.add({kBase + 8 * i * kPage, sizes[i]}, kA);
    for (const StreamKey key : {kA, kB}) blocks.push_back(take(sizes[i] / 2, key));
  }
  for (std::size_t i = 0; i < 6; ++i) end(blocks[i], i % 2 == 0 ? kA : kB, {});
  EXPECT_EQ(arena.picture(kHalf), "[-3][-3] [-2][-2] [-4][-4]");
  EXPECT_EQ(take(4 * kPage, kA), kBase + 16 * kPage);
  EXPECT_EQ(take(2 * kPage, kA), kBase + 8 * kPage);
}

TEST_F(ArenaTest, small_requests_stay_out_of_a_page_beside_a_large_one) {
  arena.add({kBase, 2 * kPage}, kA);
  take(kPage, kA);
  EXPECT_EQ(take(kPage / 2, kA), DevicePtr{});
  EXPECT_EQ(take(kPage / 2 + 512, kA), kBase + kPage) << "more than half a page";
}

TEST_F(ArenaTest, small_requests_stay_out_of_large_free_blocks_unless_memory_is_short) {
  arena.add({kBase, 4 * kPage}, kA);
  EXPECT_EQ(take(kPage / 2, kA), DevicePtr{});
  EXPECT_EQ(take(kPage / 2, kA, Reach::everywhere), kBase);
}

TEST_F(ArenaTest, small_requests_use_what_large_ones_leave_of_a_page) {
  arena.add({kBase, 2 * kPage}, kA);
  EXPECT_EQ(take(kPage + 512, kA), kBase);
  EXPECT_EQ(take(512, kA), kBase + kPage + 512);
}

TEST_F(ArenaTest, an_alignment_leaves_the_front_of_the_block_free) {
  arena.add({kBase, kPage}, kA);
  take(512, kA);
  EXPECT_EQ(take(1024, kA, Reach::by_size, 4096), kBase + 4096);
  EXPECT_EQ(picture(), "[1][-7][2][-4086]");
}

TEST_F(ArenaTest, a_place_that_is_named_may_be_of_several_free_blocks) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr first = take(1024, kA), second = take(1024, kB);
  end(first, kA, after(kTimelineA, 1));
  end(second, kB, after(kTimelineB, 1), true);
  const AddressRange named{kBase + 512, 1024};
  ASSERT_TRUE(arena.is_free(named));
  arena.take(named, {1024, kB, std::nullopt});
  EXPECT_EQ(picture(), "[-1][2][~1][-4092]");
  EXPECT_FALSE(arena.is_free({kBase, 1024}));
  EXPECT_FALSE(arena.is_free({kBase + kPage - 512, 1024})) << "it ends outside";
}

TEST_F(ArenaTest, an_idle_stretch_goes_back_with_the_stamps_of_its_blocks) {
  arena.add({kBase, 2 * kPage}, kA);
  const DevicePtr first = take(kPage + 512, kA), second = take(kPage - 512, kB);
  end(first, kA, after(kTimelineA, 3));
  EXPECT_EQ(arena.idle_stretch(), nullptr);
  end(second, kB, after(kTimelineB, 4));
  ASSERT_NE(arena.idle_stretch(), nullptr);
  EXPECT_EQ(arena.idle_stretch()->range.size, 2 * kPage);
  EXPECT_EQ(arena.stamp_of(*arena.stretch_around(kBase)), Stamp({kTimelineA, 3}, {kTimelineB, 4}));
  arena.remove(*arena.stretch_around(kBase));
  EXPECT_EQ(picture(), "[]");
  EXPECT_EQ(arena.held_bytes(), 0u);
}

TEST_F(ArenaTest, a_stretch_that_three_streams_use_has_more_than_a_stamp_holds) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr blocks[] = {take(512, kA), take(512, kA), take(512, kA)};
  for (std::uint64_t i = 0; i < 3; ++i)
    end(blocks[i], StreamKey{i + 1}, after(TimelineId{i + 1}, 1));
  EXPECT_FALSE(arena.stamp_of(*arena.stretch_around(kBase)).has_value());
}

TEST_F(ArenaTest, a_stream_that_becomes_known_takes_its_blocks_along) {
  arena.add({kBase, kPage}, kA);
  arena.pin();
  const DevicePtr first = take(512, kA);
  end(first, kB, {});
  EXPECT_EQ(picture(), "[-1][-4095]");
  arena.rename(kB, kA);
  EXPECT_EQ(picture(), "[-4096]");
  EXPECT_FALSE(arena.is_used_by(kB));
}

TEST_F(ArenaTest, what_is_complete_is_everybodys_when_the_streams_are_gone) {
  arena.add({kBase, kPage}, kA);
  arena.pin();
  end(take(512, kA), kA, {});
  arena.forget_streams();
  EXPECT_EQ(take(512, kB), kBase);
}

TEST_F(ArenaTest, a_use_is_noted_once_and_forgotten_with_the_block) {
  arena.add({kBase, kPage}, kA);
  const DevicePtr block = take(512, kA);
  EXPECT_TRUE(arena.record_use(block, kTimelineB));
  EXPECT_FALSE(arena.record_use(block, kTimelineB));
  end(block, kA, {});
  take(512, kA);
  EXPECT_TRUE(arena.block_around(block)->other_uses.empty());
}

TEST(UnsplitArena, gives_a_whole_stretch_that_is_at_most_twice_as_large) {
  Arena arena(kPage, Splitting::no);
  arena.add({kBase, 4 * kPage}, kA);
  arena.add({kBase + 8 * kPage, kPage}, kA);
  EXPECT_EQ(arena.find({512, kGrain, kA}, Reach::by_size),
            (AddressRange{kBase + 8 * kPage, kPage}));
  EXPECT_EQ(arena.find({2 * kPage, kGrain, kA}, Reach::by_size), (AddressRange{kBase, 4 * kPage}));
  EXPECT_FALSE(arena.find({kPage + 512, kGrain, kA}, Reach::by_size).has_value());
}

TEST(UnsplitArena, gives_what_another_stream_is_done_with_and_what_is_everybodys) {
  Arena arena(kPage, Splitting::no);
  arena.add({kBase, 2 * kPage}, kA);
  arena.add({kBase + 8 * kPage, kPage}, kA);
  EXPECT_EQ(arena.find({kPage, kGrain, kB}, Reach::by_size),
            (AddressRange{kBase + 8 * kPage, kPage}));
  arena.pin();
  EXPECT_FALSE(arena.find({kPage, kGrain, kB}, Reach::by_size).has_value());
  arena.add({kBase + 12 * kPage, kPage}, kEverybody);
  EXPECT_EQ(arena.find({kPage, kGrain, kB}, Reach::by_size),
            (AddressRange{kBase + 12 * kPage, kPage}));
}

TEST(UnsplitArena, gives_no_stretch_that_begins_before_the_alignment) {
  Arena arena(kPage, Splitting::no);
  arena.add({kBase + kPage, 4 * kPage}, kA);
  EXPECT_FALSE(arena.find({3 * kPage, 2 * kPage, kA}, Reach::by_size).has_value());
  EXPECT_TRUE(arena.find({3 * kPage, kPage, kA}, Reach::by_size).has_value());
}

TEST(SmallSplitting, large_requests_have_stretches_of_their_own_and_small_ones_leave_them_whole) {
  Arena arena(kPage, Splitting::small);
  const auto find = [&](Bytes size, Reach room = Reach::by_size) {
    return arena.find({size, kGrain, kA}, room);
  };
  arena.add({kBase, 64 * kPage}, kA);
  arena.add({kBase + 100 * kPage, 4 * kPage}, kA);
  EXPECT_EQ(find(40 * kPage), std::nullopt);
  EXPECT_EQ(find(40 * kPage, Reach::everywhere)->begin, kBase) << "where memory is short";
  EXPECT_EQ(find(63 * kPage)->begin, kBase) << "a 32nd is lost at most";
  for (const Bytes size : {15 * kPage + 512, 16 * kPage, 16 * kPage + 512, 17 * kPage - 512}) {
    Arena fresh(kPage, Splitting::small);
    fresh.add({kBase, round_up(size, kPage)}, kA);
    EXPECT_TRUE(fresh.find({size, kGrain, kA}, Reach::by_size).has_value()) << size;
  }
  Arena cut(kPage, Splitting::small);
  cut.add({kBase, 20 * kPage}, kA);
  cut.take({kBase, 16 * kPage}, {16 * kPage, kA, std::nullopt});
  EXPECT_EQ(cut.find({4 * kPage, kGrain, kA}, Reach::by_size), std::nullopt) << "of a large one";
  EXPECT_EQ(find(kPage)->begin, kBase + 100 * kPage);
  EXPECT_EQ(find(5 * kPage), std::nullopt);
  EXPECT_EQ(arena.validate(), "");
}

}  // namespace
}  // namespace vpmm::arena
