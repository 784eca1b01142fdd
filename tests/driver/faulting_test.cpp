// SPDX-License-Identifier: Apache-2.0
// tests/driver: when a planned fault strikes, and what does not reach the driver then.
#include "driver/faulting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver/fake_driver.hpp"

namespace vpmm::driver {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

FaultPlan plan(std::vector<Call> calls, std::uint64_t nth, CuResult result,
               FaultPlan::Repeat repeat = FaultPlan::Repeat::once) {
  return {std::move(calls), nth, result, repeat};
}

TEST(FaultingDriver, without_a_plan_nothing_fails) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  for (const Call call : every_call())
    EXPECT_EQ(invoke(driver, call), CuResult::success) << to_string(call);
  EXPECT_EQ(driver.fired(), 0u);
}

TEST(FaultingDriver, the_nth_call_of_a_kind_fails_once_and_never_reaches_the_driver) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(plan({Call::mem_map}, 2, CuResult::invalid_value));
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::mem_create), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::invalid_value);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_THAT(fake.calls, ElementsAre(Call::mem_map, Call::mem_create, Call::mem_map));
  EXPECT_EQ(driver.fired(), 1u);
  EXPECT_EQ(driver.counted(), 3u);
}

TEST(FaultingDriver, from_then_on_every_matching_call_fails) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(
      plan({Call::mem_create}, 2, CuResult::out_of_memory, FaultPlan::Repeat::from_then_on));
  EXPECT_EQ(invoke(driver, Call::mem_create), CuResult::success);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(invoke(driver, Call::mem_create), CuResult::out_of_memory);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_EQ(driver.fired(), 3u);
}

// A query may say so at the wrong moment; for ever, that is a GPU that hangs.
TEST(FaultingDriver, a_query_is_not_ready_once_and_not_for_ever) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(plan({}, 1, CuResult::not_ready, FaultPlan::Repeat::from_then_on));
  EXPECT_EQ(invoke(driver, Call::event_query), CuResult::not_ready);
  EXPECT_EQ(invoke(driver, Call::event_query), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::not_ready);
}

TEST(FaultingDriver, a_plan_without_calls_counts_every_call_that_can_fail) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(plan({}, 3, CuResult::not_ready));
  EXPECT_EQ(invoke(driver, Call::mem_create), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::device_get_count), CuResult::success);  // not counted
  EXPECT_EQ(invoke(driver, Call::event_record), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::mem_unmap), CuResult::not_ready);
}

TEST(FaultingDriver, a_sweep_strikes_each_call_of_a_scenario_once_and_then_ends) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  const std::vector<Call> scenario = {Call::mem_create, Call::mem_map, Call::mem_set_access,
                                      Call::mem_unmap};
  std::vector<Call> struck;
  for (std::uint64_t nth = 1;; ++nth) {
    driver.set_plan(plan({}, nth, CuResult::out_of_memory));
    for (const Call call : scenario) {
      if (invoke(driver, call) != CuResult::success) struck.push_back(call);
    }
    if (driver.fired() == 0) break;
  }
  EXPECT_EQ(struck, scenario);
}

TEST(FaultingDriver, after_a_sticky_result_everything_that_can_fail_fails_with_it) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(plan({Call::event_query}, 1, CuResult::illegal_address));
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::event_query), CuResult::illegal_address);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::illegal_address);
  EXPECT_EQ(invoke(driver, Call::event_destroy), CuResult::illegal_address);
  EXPECT_EQ(invoke(driver, Call::device_get_count), CuResult::success);
}

TEST(FaultingDriver, a_new_plan_counts_from_the_start_on_a_whole_context) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(plan({Call::mem_map}, 1, CuResult::illegal_address));
  invoke(driver, Call::mem_map);
  driver.set_plan(plan({Call::mem_map}, 2, CuResult::invalid_value));
  EXPECT_EQ(driver.counted(), 0u);
  EXPECT_EQ(driver.fired(), 0u);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::invalid_value);
}

TEST(FaultingDriver, clearing_the_plan_ends_faults_and_keeps_the_counts) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  driver.set_plan(
      plan({Call::mem_map}, 1, CuResult::invalid_value, FaultPlan::Repeat::from_then_on));
  invoke(driver, Call::mem_map);
  driver.clear_plan();
  EXPECT_EQ(invoke(driver, Call::mem_map), CuResult::success);
  EXPECT_EQ(driver.fired(), 1u);
  EXPECT_EQ(driver.counted(), 1u);
}

TEST(ErrorsThatMatter, each_names_failures_only_and_memory_calls_always_have_some) {
  for (const Call call : every_call()) {
    EXPECT_THAT(errors_that_matter(call), Not(Contains(CuResult::success))) << to_string(call);
    if (is_memory_call(call)) {
      EXPECT_THAT(errors_that_matter(call), Not(IsEmpty())) << to_string(call);
    }
  }
}

TEST(ErrorsThatMatter, growing_can_run_out_of_memory_be_told_to_wait_or_meet_a_broken_context) {
  for (const Call call :
       {Call::mem_create, Call::mem_map, Call::mem_set_access, Call::mem_address_reserve}) {
    EXPECT_THAT(errors_that_matter(call), Contains(CuResult::out_of_memory)) << to_string(call);
    EXPECT_THAT(errors_that_matter(call), Contains(CuResult::not_ready)) << to_string(call);
    EXPECT_THAT(errors_that_matter(call), Contains(testing::Truly(is_sticky))) << to_string(call);
  }
}

TEST(ErrorsThatMatter, pinning_and_managed_memory_can_run_out_or_be_missing_on_the_device) {
  for (const Call call : {Call::mem_host_register, Call::mem_alloc_managed}) {
    EXPECT_THAT(errors_that_matter(call), Contains(CuResult::out_of_memory)) << to_string(call);
    EXPECT_THAT(errors_that_matter(call), Contains(CuResult::not_supported)) << to_string(call);
  }
  EXPECT_THAT(errors_that_matter(Call::mem_host_register),
              Contains(CuResult::host_memory_already_registered));
  EXPECT_THAT(errors_that_matter(Call::mem_host_unregister),
              Contains(CuResult::host_memory_not_registered));
  EXPECT_THAT(errors_that_matter(Call::mem_get_address_range), Contains(CuResult::not_found));
  EXPECT_THAT(errors_that_matter(Call::pointer_get_device), Contains(CuResult::invalid_value));
}

TEST(ErrorsThatMatter, opening_a_handle_can_meet_its_own_process_a_lost_exporter_and_no_room) {
  const std::vector<CuResult> errors = errors_that_matter(Call::ipc_open_mem_handle);
  for (const CuResult result :
       {CuResult::invalid_context, CuResult::invalid_handle, CuResult::map_failed,
        CuResult::too_many_peers, CuResult::out_of_memory}) {
    EXPECT_THAT(errors, Contains(result)) << to_string(result);
  }
  EXPECT_THAT(errors_that_matter(Call::ipc_get_mem_handle), Contains(CuResult::invalid_value));
  EXPECT_THAT(errors_that_matter(Call::ipc_close_mem_handle), Contains(CuResult::invalid_value));
}

TEST(ErrorsThatMatter, sharing_a_chunk_can_be_refused_and_can_run_out_of_memory_or_of_descriptors) {
  for (const Call call :
       {Call::mem_export_to_shareable_handle, Call::mem_import_from_shareable_handle}) {
    for (const CuResult result :
         {CuResult::out_of_memory, CuResult::invalid_value, CuResult::operating_system,
          CuResult::not_permitted, CuResult::not_supported}) {
      EXPECT_THAT(errors_that_matter(call), Contains(result))
          << to_string(call) << ": " << to_string(result);
    }
    EXPECT_THAT(errors_that_matter(call), Contains(testing::Truly(is_sticky))) << to_string(call);
  }
  EXPECT_THAT(errors_that_matter(Call::mem_import_from_shareable_handle),
              Contains(CuResult::invalid_device));
}

TEST(FaultingDriver, a_sharing_call_that_fails_touches_neither_file_nor_chunk) {
  FakeDriver fake;
  FaultingDriver driver(fake);
  int file = -7;
  ChunkHandle chunk{};
  driver.set_plan(plan({}, 1, CuResult::operating_system, FaultPlan::Repeat::from_then_on));
  EXPECT_EQ(driver.mem_export_to_shareable_handle(ChunkHandle{1}, file),
            CuResult::operating_system);
  EXPECT_EQ(driver.mem_import_from_shareable_handle(0, chunk), CuResult::operating_system);
  EXPECT_EQ(file, -7);
  EXPECT_EQ(chunk, ChunkHandle{});
  EXPECT_THAT(fake.calls, IsEmpty());
}

}  // namespace
}  // namespace vpmm::driver
