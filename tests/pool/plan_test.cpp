// pool: figures, price and text of a plan.
#include "pool/plan.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "support/page_size.hpp"

namespace vpmm::pool {
namespace {

constexpr DevicePtr kStart{0x7000'0000'0000};

class PlanPrice : public testing::Test {
 protected:
  static Plan creating(const Vector<Bytes>& pages) {
    Plan plan;
    for (const Bytes size : pages) plan.creates.push_back(size * kPage);
    plan.request = plan.created_bytes();
    plan.mapped = {kStart, plan.request};
    return plan;
  }
  Part part(Bytes first, Bytes pages) { return {&from, {kStart + first * kPage, pages * kPage}, {}}; }
  // Of chunks of a page each.
  Move move(Bytes first, Bytes pages) {
    Move move{part(first, pages), {}};
    for (Bytes i = 0; i < pages; ++i) move.chunks.push_back({kStart + (first + i) * kPage, &one_page});
    return move;
  }
  // Of a chunk of eight pages, of which so many stay free in as many chunks.
  Split split(Bytes pages_left) {
    return {part(0, 8), {kStart, &eight_pages}, {kStart, pages_left * kPage}, Vector<Bytes>(pages_left, kPage)};
  }
  static std::uint64_t us(const Plan& plan) { return plan.price().driver_us; }

  region::Region from;
  vm::Chunk one_page;
  vm::Chunk eight_pages;
  PlanPrice() {
    from.range = {kStart, 100 * kPage};
    one_page.size = kPage;
    eight_pages.size = 8 * kPage;
  }
};

TEST_F(PlanPrice, a_hit_costs_nothing) {
  Plan hit;
  hit.request = 3 * kPage;
  hit.slack = kPage;
  hit.kept = {part(0, 2), part(2, 2)};
  EXPECT_TRUE(hit.is_hit());
  EXPECT_EQ(hit.pieces(), 0u);
  EXPECT_EQ(us(hit), 0u);
  EXPECT_EQ(hit.price().growth, 0u);
  EXPECT_EQ(hit.price().slack, kPage);
  EXPECT_EQ(hit.kept_bytes(), 4 * kPage);
}

TEST_F(PlanPrice, what_is_created_costs_by_the_chunk_and_not_by_the_page) {
  EXPECT_GT(us(creating({1})), 0u);
  EXPECT_EQ(us(creating({128})), us(creating({1})));
  EXPECT_EQ(us(creating({2, 1, 1})), 3 * us(creating({4})));
  EXPECT_EQ(creating({2, 1, 1}).price().growth, 4 * kPage);
}

TEST_F(PlanPrice, what_moves_costs_by_the_chunk_and_grows_nothing) {
  Plan one;
  one.moves = {move(0, 1)};
  Plan five;
  five.moves = {move(0, 3), move(10, 2)};
  EXPECT_EQ(five.pieces(), 5u);
  EXPECT_EQ(five.moved_bytes(), 5 * kPage);
  EXPECT_EQ(us(five), 5 * us(one));
  EXPECT_EQ(five.price().growth, 0u);
}

TEST_F(PlanPrice, a_split_costs_what_it_gives_back_and_makes_anew_and_grows_nothing) {
  Plan splitting = creating({3});
  splitting.split = split(5);
  EXPECT_EQ(splitting.pieces(), 6u);
  EXPECT_GT(us(splitting), us(creating({1, 1, 1, 1, 1, 3})));
  EXPECT_EQ(splitting.growth(), 0u);
  splitting.creates.push_back(2 * kPage);
  EXPECT_EQ(splitting.growth(), 2 * kPage);
}

TEST_F(PlanPrice, tells_of_waits) {
  Plan hit;
  EXPECT_FALSE(hit.price().has_waits);
  hit.waits = {{time::TimelineId{1}, 1}};
  EXPECT_TRUE(hit.price().has_waits);
}

TEST_F(PlanPrice, a_plan_is_complete_where_all_that_it_takes_is) {
  Plan plan = creating({1});
  plan.kept = {part(0, 1)};
  plan.moves = {move(1, 1)};
  EXPECT_TRUE(plan.is_complete());
  plan.kept[0].stamp = time::Stamp({time::TimelineId{1}, 1});
  EXPECT_FALSE(plan.is_complete());
  std::swap(plan.kept[0].stamp, plan.moves[0].part.stamp);
  EXPECT_FALSE(plan.is_complete());
}

TEST_F(PlanPrice, is_of_a_plan_that_prints_itself) {
  Plan plan = creating({2, 1});
  plan.request = 11 * kPage;
  plan.slack = kPage;
  plan.kept = {part(0, 2), part(2, 1)};
  plan.moves = {move(10, 4)};
  plan.split = split(5);
  plan.waits = {{time::TimelineId{1}, 1}};
  EXPECT_EQ(to_string(plan, kPage), "11 = keep 3 move 4 of [-100] split 8 create 2 create 1 slack 1 after 1 waits");
}

}  // namespace
}  // namespace vpmm::pool
