// SPDX-License-Identifier: Apache-2.0
// pool: figures and text of a plan.
#include "pool/plan.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "support/page_size.hpp"

namespace vpmm::pool {
namespace {

constexpr DevicePtr kStart{0x7000'0000'0000};

class PlanFigures : public testing::Test {
 protected:
  static Plan creating(const Vector<Bytes>& pages) {
    Plan plan;
    for (const Bytes size : pages) plan.creates.push_back(size * kPage);
    plan.request = plan.growth();
    plan.mapped = {kStart, plan.request};
    return plan;
  }
  Part part(Bytes first, Bytes pages) {
    return {&from, {kStart + first * kPage, pages * kPage}, {}};
  }
  // Of chunks of a page each.
  Move move(Bytes first, Bytes pages) {
    Move move{part(first, pages), {}};
    for (Bytes i = 0; i < pages; ++i)
      move.chunks.push_back({kStart + (first + i) * kPage, &one_page});
    return move;
  }
  region::Region from;
  vm::Chunk one_page;
  PlanFigures() {
    from.range = {kStart, 100 * kPage};
    one_page.size = kPage;
  }
};

TEST_F(PlanFigures, a_hit_costs_nothing) {
  Plan hit;
  hit.request = 3 * kPage;
  hit.kept = {part(0, 2), part(2, 1)};
  hit.allocation = kStart;
  EXPECT_TRUE(hit.is_hit());
  EXPECT_EQ(hit.pieces(), 0u);
  EXPECT_EQ(hit.driver_us(), 0u);
  EXPECT_EQ(hit.growth(), 0u);
  EXPECT_EQ(hit.kept_bytes(), 3 * kPage);
  EXPECT_EQ(hit.range(), (AddressRange{kStart, 3 * kPage}));
}

TEST_F(PlanFigures, what_is_created_costs_by_the_chunk_and_not_by_the_page) {
  EXPECT_GT(creating({1}).driver_us(), 0u);
  EXPECT_EQ(creating({128}).driver_us(), creating({1}).driver_us());
  EXPECT_EQ(creating({2, 1, 1}).driver_us(), 3 * creating({4}).driver_us());
  EXPECT_EQ(creating({2, 1, 1}).growth(), 4 * kPage);
}

TEST_F(PlanFigures, what_moves_costs_by_the_chunk_and_grows_nothing) {
  Plan one;
  one.moves = {move(0, 1)};
  Plan five;
  five.moves = {move(0, 3), move(10, 2)};
  EXPECT_EQ(five.pieces(), 5u);
  EXPECT_EQ(five.moved_bytes(), 5 * kPage);
  EXPECT_EQ(five.driver_us(), 5 * one.driver_us());
  EXPECT_EQ(five.growth(), 0u);
}

TEST_F(PlanFigures, tells_on_which_side_of_what_is_kept_it_maps) {
  Plan plan = creating({2});
  EXPECT_FALSE(plan.is_mapped_in_front()) << "nothing is kept";
  plan.kept = {part(2, 1)};
  EXPECT_TRUE(plan.is_mapped_in_front());
  plan.mapped = {kStart + 3 * kPage, 2 * kPage};
  EXPECT_FALSE(plan.is_mapped_in_front());
}

TEST_F(PlanFigures, a_plan_is_complete_where_all_that_it_takes_is) {
  Plan plan = creating({1});
  plan.kept = {part(0, 1)};
  plan.moves = {move(1, 1)};
  EXPECT_TRUE(plan.is_complete());
  plan.kept[0].stamp = time::Stamp({time::TimelineId{1}, 1});
  EXPECT_FALSE(plan.is_complete());
  std::swap(plan.kept[0].stamp, plan.moves[0].part.stamp);
  EXPECT_FALSE(plan.is_complete());
}

TEST_F(PlanFigures, print_as_text) {
  Plan plan = creating({8});
  plan.request = 11 * kPage;
  plan.kept = {part(0, 2), part(2, 1)};
  plan.moves = {move(10, 4)};
  plan.waits = {{time::TimelineId{1}, 1}};
  EXPECT_EQ(to_string(plan, kPage), "11 = keep 3 move 4 of [-100] create 8 after 1 waits")
      << "4 of the 15 stay free";
}

}  // namespace
}  // namespace vpmm::pool
