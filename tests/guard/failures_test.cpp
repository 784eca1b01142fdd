// SPDX-License-Identifier: Apache-2.0
// guard tests: driver calls that fail, step by step.
#include "guard/guard_world.hpp"

namespace vpmm::guard {
namespace {

constexpr auto kIllegal = CuResult::illegal_address;
const char* const kNothing =
    "0 of 0 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, 0 chunks of 0 released; 0 unguarded, 0 "
    "damaged";

class GuardedFailures : public GuardedTest {
 protected:
  void fail_all(std::vector<Call> each, CuResult result = CuResult::invalid_value) {
    faults.set_plan({std::move(each), 1, result, FaultPlan::Repeat::from_then_on});
  }
  // Two that are freed and complete.
  void make_two() {
    first = allocate(1000);
    second = allocate(1000);
    free(first);
    free(second);
    prove();
  }
  void expect_two_left() {
    EXPECT_TRUE(is_mapped(first) && is_mapped(second));
    EXPECT_TRUE(guarded.has_freed());
    EXPECT_EQ(figures(),
              "0 of 2 live, 0 bytes in 0 KiB; 4096 KiB in 2 mappings, 0 chunks of 2 "
              "released; 0 unguarded, 0 damaged");
  }
  void expect_two_gone() {
    EXPECT_FALSE(is_mapped(first) || is_mapped(second));
    EXPECT_FALSE(guarded.has_freed());
    EXPECT_EQ(figures(),
              "0 of 2 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, 2 chunks of 2 "
              "released; 0 unguarded, 0 damaged");
  }
  DevicePtr first{};
  DevicePtr second{};
};

TEST_F(GuardedFailures, of_an_allocation_leave_nothing_and_the_next_works) {
  struct Case {
    Call call;
    CuResult result;
    ErrorCode code;
  };
  for (const Case& each :
       {Case{Call::mem_address_reserve, CuResult::out_of_memory, ErrorCode::out_of_memory},
        Case{Call::stream_create, CuResult::invalid_value, ErrorCode::driver_failed},
        Case{Call::mem_create, CuResult::out_of_memory, ErrorCode::out_of_memory},
        Case{Call::mem_map, CuResult::invalid_value, ErrorCode::driver_failed},
        Case{Call::mem_set_access, CuResult::invalid_value, ErrorCode::driver_failed}}) {
    fail_all({each.call}, each.result);
    expect_failed(try_allocate({1000, 0, std::nullopt}), each.code, driver::to_string(each.call));
    faults.clear_plan();
    EXPECT_EQ(figures(), kNothing) << driver::to_string(each.call);
    EXPECT_FALSE(guarded.has_freed());
    EXPECT_EQ(guarded.validate(), "");
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
    guarded.for_each([](const Block& block) { ADD_FAILURE() << describe(block); });
  }
  allocate(1000);
  EXPECT_EQ(sim.census().reservations, 1u);
  EXPECT_EQ(sim.census().streams, 1u);
  EXPECT_EQ(guarded.newest(1)[0]->number, 1u);
}

TEST_F(GuardedFailures, that_cannot_be_undone_are_undone_later) {
  const std::vector<Call> cases[]{{Call::mem_map, Call::mem_release},
                                  {Call::mem_set_access, Call::mem_unmap}};
  std::uint64_t tried = 0;
  for (const auto& each : cases) {
    fail_all(each);
    expect_failed(try_allocate({1000, 0, std::nullopt, {}, 3}), ErrorCode::driver_failed,
                  driver::to_string(each[0]));
    faults.clear_plan();
    EXPECT_EQ(figures(), message_of("0 of 0 live, 0 bytes in 0 KiB; 2048 KiB in 1 mappings, {} "
                                    "chunks of {} released; 0 unguarded, 0 damaged",
                                    tried, tried + 1));
    ++tried;
    EXPECT_EQ(sim.census().chunks, 1u);
    EXPECT_TRUE(guarded.has_freed());
    EXPECT_EQ(guarded.validate(), "");
    EXPECT_TRUE(guarded.newest(5).empty()) << "it has been nobody's";
    std::vector<Block::Stage> stages;
    guarded.for_each([&](const Block& block) { stages.push_back(block.stage); });
    EXPECT_EQ(stages.back(), Block::Stage::freed);
    const std::uint64_t unmapped = calls.count(Call::mem_unmap);
    settle();
    EXPECT_EQ(calls.count(Call::mem_unmap) - unmapped, each[1] == Call::mem_unmap ? 1u : 0u);
    EXPECT_EQ(calls.count(Call::memcpy_device_to_host_async), 0u) << "it has no margins";
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
    EXPECT_FALSE(guarded.has_freed());
    EXPECT_EQ(figures(), message_of("0 of 0 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, {} chunks "
                                    "of {} released; 0 unguarded, 0 damaged",
                                    tried, tried));
  }
}

TEST_F(GuardedFailures, of_the_gpu_while_margins_are_filled_end_the_allocation) {
  const StreamHandle a = stream();
  struct Case {
    pool::Stream on;
    Call call;
  };
  std::uint64_t made = 0;
  for (const Case& each : {Case{a, Call::memset_d8_async}, Case{{}, Call::memset_d8_async},
                           Case{{}, Call::stream_synchronize}}) {
    fail(each.call, 1, kIllegal);
    expect_failed(try_allocate({1000, 0, each.on}), ErrorCode::poisoned,
                  driver::to_string(each.call));
    faults.clear_plan();
    ++made;
    EXPECT_TRUE(guarded.has_freed());
    EXPECT_EQ(figures(), message_of("0 of 0 live, 0 bytes in 0 KiB; 2048 KiB in 1 mappings, {} "
                                    "chunks of {} released; 0 unguarded, 0 damaged",
                                    made - 1, made));
    EXPECT_EQ(of(a).references, 0u);
    wait();
    settle();
    EXPECT_EQ(sim.census().chunks, 0u);
  }
}

TEST_F(GuardedFailures, to_make_a_stream_for_copies_do_not_keep_memory) {
  make_two();
  poke(first + 1000, 1, stream());
  wait();
  {
    const PoolLock lock(mutex);
    EXPECT_EQ(sim.census().streams, 2u);
    guarded.forget_context();
  }
  fail(Call::stream_create, 1, CuResult::out_of_memory);
  settle();
  EXPECT_EQ(faults.fired(), 1u);
  expect_two_gone();
  EXPECT_EQ(calls.count(Call::memcpy_device_to_host_async), 0u);
  is_over = is_broken = true;  // a stream that it has forgotten is left
  const PoolLock lock(mutex);
  guarded.release_everything();
  timelines.destroy_events();
}

TEST_F(GuardedFailures, of_the_gpu_leave_freed_memory_and_are_told) {
  struct Case {
    Call call;
    Call not_called;
  };
  for (const Case& each : {Case{Call::memcpy_device_to_host_async, Call::stream_synchronize},
                           Case{Call::stream_synchronize, Call::mem_unmap}}) {
    SCOPED_TRACE(driver::to_string(each.call));
    const bool is_first = is_null(first);
    if (is_first) make_two();
    const std::uint64_t before = calls.count(each.not_called);
    fail(each.call, 1, kIllegal);
    const std::uint64_t fired = faults.fired();
    EXPECT_EQ(fired, 0u);
    expect_failed(try_settle(), ErrorCode::poisoned, driver::to_string(each.call));
    EXPECT_EQ(calls.count(each.not_called), before) << "nothing more is asked";
    faults.clear_plan();
    expect_two_left();
  }
  settle();
  expect_two_gone();
}

TEST_F(GuardedFailures, of_the_gpu_to_make_a_stream_for_copies_are_told) {
  make_two();
  {
    const PoolLock lock(mutex);
    guarded.forget_context();
  }
  fail(Call::stream_create, 1, kIllegal);
  expect_failed(try_settle(), ErrorCode::poisoned, "stream_create");
  faults.clear_plan();
  expect_two_left();
  settle();
  expect_two_gone();
  is_over = is_broken = true;  // a stream that it has forgotten is left
  const PoolLock lock(mutex);
  guarded.release_everything();
  timelines.destroy_events();
}

TEST_F(GuardedFailures, of_the_gpu_while_memory_is_unmapped_leave_the_rest) {
  make_two();
  fail(Call::mem_unmap, 1, kIllegal);
  const std::uint64_t before = calls.count(Call::mem_unmap);
  expect_failed(try_settle(), ErrorCode::poisoned, "mem_unmap");
  EXPECT_EQ(calls.count(Call::mem_unmap), before + 1) << "the second is not tried";
  faults.clear_plan();
  expect_two_left();
  fail(Call::mem_release, 2, kIllegal);
  expect_failed(try_settle(), ErrorCode::poisoned, "mem_release");
  faults.clear_plan();
  EXPECT_EQ(figures(),
            "0 of 2 live, 0 bytes in 0 KiB; 2048 KiB in 1 mappings, 1 chunks of 2 "
            "released; 0 unguarded, 0 damaged");
  const std::uint64_t unmapped = calls.count(Call::mem_unmap);
  settle();
  EXPECT_EQ(calls.count(Call::mem_unmap), unmapped) << "it was unmapped";
  expect_two_gone();
}

// Others go on: the error is of one.
TEST_F(GuardedFailures, of_one_free_do_not_keep_the_others) {
  for (const Call call : {Call::mem_unmap, Call::mem_release}) {
    const DevicePtr stuck = allocate(1000), other = allocate(1000);
    free(stuck);
    free(other);
    prove();
    fail(call);
    settle();
    EXPECT_EQ(faults.fired(), 1u);
    EXPECT_FALSE(is_mapped(other));
    EXPECT_EQ(is_mapped(stuck), call == Call::mem_unmap);
    EXPECT_EQ(guarded.figures().mappings, 1u);
    EXPECT_TRUE(guarded.has_freed());
    EXPECT_EQ(guarded.validate(), "");
    settle();
    EXPECT_FALSE(is_mapped(stuck));
    EXPECT_EQ(guarded.figures().mappings, 0u);
    EXPECT_FALSE(guarded.has_freed());
  }
}

}  // namespace
}  // namespace vpmm::guard
