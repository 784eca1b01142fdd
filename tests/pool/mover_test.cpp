// SPDX-License-Identifier: Apache-2.0
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
  std::string picture() const { return memory.index.picture(kPage); }
  // Pages of the chunks inside, by address.
  Vector<Bytes> chunks_of(AddressRange range) const {
    Vector<Bytes> pages;
    for (const vm::Mapping& mapping : memory.chunks.inside(range))
      pages.push_back(mapping.chunk->size / kPage);
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
    faults.set_plan(
        {{}, 1'000'000, driver::CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
    act();
    return faults.counted();
  }
};

// --- hits

TEST_F(MoverTest, a_hit_costs_no_driver_call) {
  map_free(0, {2, 4});
  map_pending(6, {4});
  EXPECT_EQ(picture(), "[-6][-4]");
  EXPECT_EQ(calls_of([&] { take(plan(ask(7), fit)); }), 0u);
  EXPECT_EQ(picture(), "[-3][7]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), kPage) << "of the chunk of four";
}

TEST_F(MoverTest, a_hit_of_one_region_leaves_the_rest_free) {
  map_free(0, {4, 2, 8});
  EXPECT_EQ(calls_of([&] { take(plan(ask(5), fit)); }), 0u);
  EXPECT_EQ(picture(), "[5][-9]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), kPage);
}

TEST_F(MoverTest, own_chunks_that_others_could_share_are_told_of) {
  map_free(0, {4});
  region::Region* const taken = take(plan(ask(3), fit));
  taken->has_own_chunks = true;
  EXPECT_NE(memory.validate().find("own chunks"), std::string::npos);
  taken->has_own_chunks = false;
}

TEST_F(MoverTest, several_allocations_share_a_chunk) {
  map_free(0, {8});
  take(plan(ask(3), fit));
  EXPECT_EQ(memory.chunks.trapped_bytes(), 5 * kPage);
  take(plan(ask(5), fit));
  EXPECT_EQ(picture(), "[3][5]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), 0u);
  give_back(0, {});
  EXPECT_EQ(memory.chunks.trapped_bytes(), 3 * kPage);
  EXPECT_EQ(broken(), "");
}

// --- plans

TEST_F(MoverTest, each_plan_is_logged_with_its_price) {
  Vector<std::string> lines;
  map_free(0, {32});
  allocated(32, 1);
  map_free(33, {32});
  allocated(65, 1);
  observe::set_log_level(observe::LogLevel::debug);
  observe::set_log_sink(
      [&](observe::LogLevel, std::string_view line) { lines.emplace_back(line); });
  take(plan(ask(80)));
  observe::set_log_sink({});
  observe::set_log_level(observe::LogLevel::warning);
  EXPECT_EQ(lines,
            (Vector<std::string>{
                "plan: 80 = move 32 of [-32] move 32 of [-32] create 8 create 8 for 354 us"}));
}

TEST_F(MoverTest, new_chunks_stand_behind_what_is_kept) {
  allocated(0, 1);
  map_free(1, {2, 1});
  const region::Region* const region = take(plan(ask(19)));
  EXPECT_EQ(picture(), "[1][19]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{2, 1, 8, 8}));
}

TEST_F(MoverTest, new_chunks_stand_before_what_is_kept_where_the_hole_is) {
  map_free(10, {1, 2});
  allocated(13, 1);
  const region::Region* const region = take(plan(ask(11)));
  EXPECT_EQ(picture(), "[*2][11][1]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{8, 1, 2}));
}

TEST_F(MoverTest, what_moves_stands_beside_what_is_kept_and_what_is_new_behind_it) {
  allocated(0, 1);
  map_free(1, {2});
  allocated(3, 1);
  map_free(4, {3});
  const Plan moving = plan(ask(13));
  ASSERT_EQ(to_string(moving, kPage), "13 = keep 3 move 2 of [-2] create 8");
  const region::Region* const region = take(moving);
  EXPECT_EQ(picture(), "[1][~2][1][13]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{3, 2, 8}));
  EXPECT_EQ(memory.counters.chunks_moved, 1u);
  EXPECT_EQ(memory.counters.bytes_moved, 2 * kPage);
}

TEST_F(MoverTest, what_moves_stands_beside_what_is_kept_and_what_is_new_in_front_of_it) {
  allocated(0, 1);
  map_free(1, {2});
  allocated(3, 1);
  map_free(20, {3});
  allocated(23, 1);
  const Plan moving = plan(ask(13));
  ASSERT_EQ(to_string(moving, kPage), "13 = keep 3 move 2 of [-2] create 8");
  const region::Region* const region = take(moving);
  EXPECT_EQ(picture(), "[1][~2][1][*6][13][1]");
  EXPECT_EQ(chunks_of(region->range), (Vector<Bytes>{8, 2, 3}));
}

TEST_F(MoverTest, an_old_address_stays_mapped_until_the_work_through_it_is_over) {
  map_pending(0, {4});
  allocated(4, 1);
  take(plan(ask(12)));
  EXPECT_EQ(picture(), "[~4][1][12]");
  EXPECT_TRUE(reclaimer.sweep(lock, 100).ok());
  EXPECT_EQ(picture(), "[~4][1][12]");
  finish_work();
  EXPECT_TRUE(reclaimer.sweep(lock, 100).ok());
  EXPECT_EQ(picture(), "[*4][1][12]");
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, chunks_beyond_one_that_an_old_address_maps_can_be_given_back) {
  map_pending(0, {4});
  allocated(4, 1);
  map_free(5, {2});
  const region::Region* const region = take(plan(ask(14)));
  ASSERT_EQ(chunks_of(region->range), (Vector<Bytes>{2, 4, 8}));
  finish_work();
  give_back(lives.size() - 1, {});
  EXPECT_EQ(picture(), "[~4][1][-14]");
  EXPECT_EQ(reclaimer.releasable_bytes(14 * kPage), 10 * kPage);
}

TEST_F(MoverTest, only_complete_memory_can_be_given_back_also_behind_older_that_is_not) {
  map_pending(0, {4});
  map_free(5, {2});
  EXPECT_EQ(reclaimer.releasable_bytes(10 * kPage), 2 * kPage);
  finish_work();
  EXPECT_EQ(reclaimer.releasable_bytes(10 * kPage), 6 * kPage);
}

TEST_F(MoverTest, what_is_kept_of_a_chunk_may_be_used_in_part) {
  map_free(0, {8});
  used(0, 3);
  const Plan growing = plan(ask(10));
  ASSERT_EQ(to_string(growing, kPage), "10 = keep 5 create 8");
  take(growing);
  EXPECT_EQ(picture(), "[3][10][-3]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), 3 * kPage)
      << "of the new chunk; the old one is used by two";
}

TEST_F(MoverTest, grains_of_pages_are_kept_and_whole_pages_stand_beside_them) {
  map_free(0, {1});
  Ask odd = ask(1);
  odd.size = 7 * memory.tuning.grain;
  take(plan(odd, fit));
  odd.size = kPage + 3 * memory.tuning.grain;
  const region::Region* const region = take(plan(odd));
  EXPECT_EQ(region->range.size, 35 * memory.tuning.grain);
  EXPECT_EQ(memory.index.picture(memory.tuning.grain), "[7][35][-246]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), 246 * memory.tuning.grain);
}

// --- what is too much

TEST_F(MoverTest, what_a_new_chunk_has_too_much_is_free_at_once) {
  take(plan(ask(13)));
  EXPECT_EQ(picture(), "[13][-3]");
  EXPECT_TRUE(at(13)->stamp.is_complete());
  EXPECT_EQ(memory.chunks.trapped_bytes(), 3 * kPage);
  EXPECT_EQ(memory.counters.peak_mapped_bytes, 0u) << "whoever asked notes the peaks";
  take(plan(ask(3), fit));
  EXPECT_EQ(picture(), "[13][3]");
}

TEST_F(MoverTest, what_a_chunk_that_moved_has_too_much_is_as_pending_as_the_chunk_was) {
  map_free(0, {2});
  allocated(2, 1);
  map_pending(3, {8});
  allocated(11, 1);
  const time::Stamp stamp = at(3)->stamp;
  ASSERT_FALSE(stamp.is_complete());
  const Plan moving = plan(ask(5));
  ASSERT_EQ(to_string(moving, kPage), "5 = move 2 of [-2] move 8 of [-8]");
  take(moving);
  EXPECT_EQ(picture(), "[~2][1][~8][1][5][-5]");
  EXPECT_EQ(at(17)->stamp, stamp);
  EXPECT_EQ(memory.chunks.trapped_bytes(), 5 * kPage);
  finish_work();
  EXPECT_TRUE(at(17)->stamp.is_complete());
}

TEST_F(MoverTest, what_is_too_much_is_of_the_last_chunk_whatever_moved_before_it) {
  map_pending(0, {2});
  allocated(2, 1);
  map_free(3, {8});
  allocated(11, 1);
  take(plan(ask(5)));
  EXPECT_EQ(picture(), "[~2][1][~8][1][5][-5]");
  EXPECT_TRUE(at(17)->stamp.is_complete()) << "only the first was pending";
}

TEST_F(MoverTest, what_is_too_much_of_a_new_chunk_is_complete_whatever_moved) {
  map_pending(0, {2});
  allocated(2, 1);
  take(plan(ask(5)));
  EXPECT_EQ(picture(), "[~2][1][5][-5]");
  EXPECT_TRUE(at(8)->stamp.is_complete());
}

TEST_F(MoverTest, what_is_too_much_lies_in_front_where_what_is_kept_is_behind) {
  map_free(20, {2});
  allocated(22, 1);
  take(plan(ask(5)));
  EXPECT_EQ(picture(), "[*12][-5][5][1]");
  EXPECT_TRUE(at(12)->stamp.is_complete());
  EXPECT_EQ(memory.chunks.trapped_bytes(), 5 * kPage);
}

TEST_F(MoverTest, what_is_pending_and_too_much_lies_in_front_where_what_is_kept_is_behind) {
  map_pending(0, {4});
  allocated(4, 1);
  map_free(20, {5});
  allocated(25, 1);
  const time::Stamp stamp = at(0)->stamp;
  const Plan moving = plan(ask(6));
  ASSERT_EQ(to_string(moving, kPage), "6 = keep 5 move 4 of [-4]");
  take(moving);
  EXPECT_EQ(picture(), "[~4][1][*11][-3][6][1]");
  EXPECT_EQ(at(16)->stamp, stamp);
}

// --- what fails

TEST_F(MoverTest, a_plan_that_is_undone_leaves_what_is_used_in_part_as_it_was) {
  map_free(0, {8});
  used(0, 3);
  const Plan growing = plan(ask(10));
  ASSERT_EQ(to_string(growing, kPage), "10 = keep 5 create 8");
  faults.set_plan({{driver::Call::mem_map},
                   1,
                   driver::CuResult::out_of_memory,
                   driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(carry_out(growing).ok());
  EXPECT_EQ(picture(), "[3][-5]");
  EXPECT_EQ(memory.chunks.trapped_bytes(), 5 * kPage);
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, what_was_created_for_a_plan_that_is_undone_counts_in_the_peak) {
  faults.set_plan({{driver::Call::mem_create},
                   3,
                   driver::CuResult::out_of_memory,
                   driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(carry_out(plan(ask(24))).ok());
  EXPECT_EQ(memory.held_bytes(), 0u);
  EXPECT_EQ(memory.counters.peak_mapped_bytes, 16 * kPage);
  EXPECT_EQ(memory.counters.peak_chunks, 2u);
}

TEST_F(MoverTest, a_plan_that_is_undone_is_logged_with_the_error) {
  Vector<std::string> lines;
  observe::set_log_level(observe::LogLevel::info);
  observe::set_log_sink(
      [&](observe::LogLevel, std::string_view line) { lines.emplace_back(line); });
  faults.set_plan({{driver::Call::mem_map},
                   2,
                   driver::CuResult::out_of_memory,
                   driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(carry_out(plan(ask(16))).ok());
  observe::set_log_sink({});
  observe::set_log_level(observe::LogLevel::warning);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("a plan is undone: ")) << lines[0];
  EXPECT_NE(lines[0].find("mem_map"), std::string::npos) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("plan undone: 16 = create 8 create 8 for ")) << lines[1];
}

// Of three chunks each in turn stays mapped.
TEST_F(MoverTest, a_chunk_that_stays_mapped_after_an_undo_lies_alone_until_a_sweep_takes_it) {
  for (int stuck = 1; stuck <= 3; ++stuck) {
    SCOPED_TRACE(stuck);
    hooks.on[driver::Call::mem_set_access] = [] { return driver::CuResult::invalid_value; };
    hooks.on[driver::Call::mem_unmap] = [unmaps = 0, stuck]() mutable {
      return ++unmaps == stuck ? driver::CuResult::invalid_value : driver::CuResult::success;
    };
    EXPECT_FALSE(carry_out(plan(ask(24))).ok());
    hooks.on.clear();
    EXPECT_EQ(memory.quarantine.bytes(), 8 * kPage);
    EXPECT_EQ(memory.index.bytes(region::RegionState::zombie), 8 * kPage);
    EXPECT_EQ(broken(), "");
    ASSERT_TRUE(reclaimer.sweep(lock, 100).ok());
    EXPECT_EQ(memory.quarantine.bytes(), 0u);
    EXPECT_EQ(memory.held_bytes(), 0u);
    EXPECT_EQ(broken(), "");
  }
}

// --- what nobody asked for

TEST_F(MoverTest, filled_memory_is_free_at_once) {
  map_free(3, {4, 2});
  EXPECT_EQ(picture(), "[*3][-6]");
  EXPECT_TRUE(at(3)->stamp.is_complete());
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, what_is_tried_out_goes_back) {
  map_free(0, {2, 1});
  const Result<bool> tried = mover.try_out(lock, 100 * kPage);
  ASSERT_TRUE(tried.ok());
  EXPECT_TRUE(tried.value());
  EXPECT_EQ(memory.held_bytes(), 3 * kPage);
  EXPECT_EQ(memory.counters.peak_mapped_bytes, 103 * kPage) << "it was there for a moment";
  EXPECT_EQ(memory.counters.peak_chunks, 3u) << "beside the two";
  EXPECT_EQ(memory.counters.chunks_created, 2u);
  EXPECT_EQ(broken(), "");
}

TEST_F(MoverTest, what_cannot_be_created_in_one_piece_is_no_error) {
  faults.set_plan({{driver::Call::mem_create},
                   1,
                   driver::CuResult::out_of_memory,
                   driver::FaultPlan::Repeat::once});
  const Result<bool> tried = mover.try_out(lock, kPage);
  ASSERT_TRUE(tried.ok());
  EXPECT_FALSE(tried.value());
  EXPECT_EQ(memory.counters.peak_mapped_bytes + memory.counters.peak_chunks, 0u);
}

TEST_F(MoverTest, a_context_that_is_broken_where_something_is_tried_out_is_told) {
  faults.set_plan({{driver::Call::mem_create},
                   1,
                   driver::CuResult::illegal_address,
                   driver::FaultPlan::Repeat::once});
  const Result<bool> tried = mover.try_out(lock, kPage);
  ASSERT_FALSE(tried.ok());
  EXPECT_EQ(tried.error().code, ErrorCode::poisoned);
  EXPECT_NE(tried.error().message.find("mem_create"), std::string::npos) << tried.error().message;
  EXPECT_EQ(memory.counters.peak_mapped_bytes + memory.counters.peak_chunks, 0u);
  EXPECT_TRUE(memory.flights.empty());
}

TEST_F(MoverTest, what_was_tried_out_and_cannot_go_back_is_quarantined) {
  faults.set_plan({{driver::Call::mem_release},
                   1,
                   driver::CuResult::invalid_value,
                   driver::FaultPlan::Repeat::once});
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
