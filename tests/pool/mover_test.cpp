// pool: what becomes of a plan that is carried out.
#include "pool/mover.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "observe/log.hpp"
#include "pool/mover_world.hpp"

namespace vpmm::pool {
namespace {

class MoverTest : public testing::Test, protected MoverWorld {
 protected:
  std::string picture() const { return memory.index.picture(); }
  // Pages of the chunks inside, by address.
  Vector<Bytes> chunks_of(AddressRange range) const {
    Vector<Bytes> pages;
    for (const vm::Mapping& mapping : memory.chunks.inside(range)) pages.push_back(mapping.chunk->size / kPage);
    return pages;
  }
  region::Region* take(const Plan& plan) {
    const Result<region::Region*> taken = carry_out(plan);
    EXPECT_TRUE(taken.ok());
    EXPECT_EQ(broken(), "");
    if (taken) use(taken.value());
    return taken ? taken.value() : nullptr;
  }
  // Of the driver, by `act`.
  template <typename Act>
  std::uint64_t calls_of(Act&& act) {
    faults.set_plan({{}, 1'000'000, driver::CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
    act();
    return faults.counted();
  }
};

TEST_F(MoverTest, a_hit_costs_no_driver_call) {
  map_free(0, {4, 2});
  map_pending(6, {1, 8});
  EXPECT_EQ(picture(), "[-6][-9]");
  EXPECT_EQ(calls_of([&] { take(plan(ask(3), fit)); }), 0u);
  EXPECT_EQ(picture(), "[-4][3][-8]");
}

TEST_F(MoverTest, a_hit_of_one_region_leaves_the_rest_free) {
  map_free(0, {4, 2, 8});
  EXPECT_EQ(calls_of([&] { take(plan(ask(6), fit)); }), 0u);
  EXPECT_EQ(picture(), "[6][-8]");
}

TEST_F(MoverTest, each_plan_is_logged_with_its_price) {
  Vector<std::string> lines;
  map_free(0, {32});
  allocated(32, 1);
  map_free(33, {32});
  allocated(65, 1);
  observe::set_log_level(observe::LogLevel::debug);
  observe::set_log_sink([&](observe::LogLevel, std::string_view line) { lines.emplace_back(line); });
  take(plan(ask(80)));
  observe::set_log_sink({});
  observe::set_log_level(observe::LogLevel::warning);
  EXPECT_EQ(lines, (Vector<std::string>{"plan: 80 = move 32 of [-32] move 32 of [-32] create 16 for 278 us"}));
}

TEST_F(MoverTest, new_chunks_stand_behind_what_is_kept) {
  allocated(0, 1);
  map_free(1, {2, 1});
  const region::Region* const region = take(plan(ask(12)));
  EXPECT_EQ(picture(), "[1][12]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{2, 1, 8, 1}));
}

TEST_F(MoverTest, new_chunks_stand_before_what_is_kept_where_the_hole_is) {
  map_free(10, {1, 2});
  allocated(13, 1);
  const region::Region* const region = take(plan(ask(5)));
  EXPECT_EQ(picture(), "[*8][5][1]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{2, 1, 2}));
}

TEST_F(MoverTest, moved_and_new_chunks_stand_in_order_of_their_size) {
  map_free(0, {1, 2});
  allocated(3, 1);
  map_free(4, {4});
  allocated(8, 1);
  const region::Region* const region = take(plan(ask(10)));
  EXPECT_EQ(picture(), "[~3][1][~4][1][10]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{4, 3, 2, 1}));
  EXPECT_EQ(memory.counters.chunks_moved, 3u);
  EXPECT_EQ(memory.counters.bytes_moved, 7 * kPage);
}

TEST_F(MoverTest, an_old_address_stays_mapped_until_the_work_through_it_is_over) {
  map_pending(0, {4});
  allocated(4, 1);
  take(plan(ask(5)));
  EXPECT_EQ(picture(), "[~4][1][5]");
  EXPECT_TRUE(reclaimer.sweep(lock, 100).ok());
  EXPECT_EQ(picture(), "[~4][1][5]");
  finish_work();
  EXPECT_TRUE(reclaimer.sweep(lock, 100).ok());
  EXPECT_EQ(picture(), "[*4][1][5]");
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, a_split_leaves_the_rest_free_where_it_was) {
  map_free(0, {64});
  allocated(64, 1);
  const Bytes held = memory.held_bytes();
  const region::Region* const region = take(plan(ask(10)));
  EXPECT_EQ(picture(), "[-54][*10][1][10]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{8, 2}));
  EXPECT_EQ(chunks_of({page(0), 64 * kPage}), (Vector<Bytes>{32, 16, 6}));
  EXPECT_TRUE(at(0)->stamp.is_complete());
  EXPECT_EQ(memory.held_bytes(), held) << "no growth";
}

TEST_F(MoverTest, a_split_leaves_the_back_free_and_joined_with_what_is_behind) {
  allocated(0, 1);
  map_free(1, {16, 64});
  allocated(81, 1);
  take(plan(ask(6)));
  EXPECT_EQ(picture(), "[1][*6][-74][1][6]");
}

TEST_F(MoverTest, a_chunk_may_be_split_in_the_region_that_also_moves_and_is_kept) {
  allocated(0, 1);
  map_free(1, {2, 16, 4, 1});
  const Plan all = plan(ask(12));
  ASSERT_EQ(to_string(all, kPage), "12 = keep 5 move 2 of [-23] split 16 create 5");
  take(all);
  EXPECT_EQ(picture(), "[1][~2][-11][*5][12]");
}

TEST_F(MoverTest, an_allocation_with_slack_owns_all_of_its_chunks) {
  map_free(0, {8});
  allocated(8, 1);
  Ask loose = ask(7);
  loose.slack = kPage;
  const region::Region* const region = take(plan(loose, fit));
  EXPECT_EQ(region->range.size, 8 * kPage);
  EXPECT_EQ(region->owner.requested, 7 * kPage);
}

TEST_F(MoverTest, what_was_created_for_a_plan_that_is_undone_counts_in_the_peak) {
  faults.set_plan({{driver::Call::mem_create}, 3, driver::CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(carry_out(plan(ask(25))).ok()) << "16, 8 and 1";
  EXPECT_EQ(memory.held_bytes(), 0u);
  EXPECT_EQ(memory.counters.peak_mapped_bytes, 24 * kPage);
  EXPECT_EQ(memory.counters.peak_chunks, 2u);
}

TEST_F(MoverTest, filled_memory_is_free_at_once) {
  map_free(3, {4, 2});
  EXPECT_EQ(picture(), "[*3][-6]");
  EXPECT_TRUE(at(3)->stamp.is_complete());
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, what_is_tried_out_goes_back) {
  const Result<bool> tried = mover.try_out(lock, 100 * kPage);
  ASSERT_TRUE(tried.ok());
  EXPECT_TRUE(tried.value());
  EXPECT_EQ(memory.held_bytes(), 0u);
  EXPECT_EQ(memory.counters.peak_mapped_bytes, 100 * kPage) << "it was there for a moment";
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, what_cannot_be_created_in_one_piece_is_no_error) {
  faults.set_plan({{driver::Call::mem_create}, 1, driver::CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  const Result<bool> tried = mover.try_out(lock, kPage);
  ASSERT_TRUE(tried.ok());
  EXPECT_FALSE(tried.value());
}

TEST_F(MoverTest, what_was_tried_out_and_cannot_go_back_is_quarantined) {
  faults.set_plan({{driver::Call::mem_release}, 1, driver::CuResult::invalid_value, driver::FaultPlan::Repeat::once});
  const Result<bool> tried = mover.try_out(lock, 3 * kPage);
  ASSERT_TRUE(tried.ok());
  EXPECT_FALSE(tried.value());
  EXPECT_EQ(memory.quarantine.bytes(), 3 * kPage);
  EXPECT_EQ(broken(), "");
  EXPECT_TRUE(reclaimer.sweep(lock, 0).ok());
  EXPECT_EQ(memory.held_bytes(), 0u);
}

}  // namespace
}  // namespace vpmm::pool
