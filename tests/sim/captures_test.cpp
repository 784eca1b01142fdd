// SPDX-License-Identifier: Apache-2.0
// tests/sim: what a stream capture refuses, what invalidates it, and the graphs it makes.
#include <gtest/gtest.h>

#include <thread>

#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

class Capturing {
 public:
  explicit Capturing(Sim& sim, CaptureMode mode = CaptureMode::global,
                     StreamFlags flags = StreamFlags::non_blocking)
      : sim_(sim), stream(sim.stream(flags)) {
    ok(sim.driver.stream_begin_capture(stream, mode));
  }
  CaptureStatus status() {
    CaptureStatus found{};
    ok(sim_.driver.stream_is_capturing(stream, found));
    return found;
  }
  CuResult end() { return sim_.driver.stream_end_capture(stream, graph); }

 private:
  Sim& sim_;

 public:
  StreamHandle stream;
  GraphHandle graph{};
};

TEST(SimCapture, mapping_calls_succeed_during_a_capture) {
  Sim sim;
  Capturing capture(sim);
  const AddressRange memory = sim.memory();
  ok(sim.driver.mem_unmap(memory));
  ok(sim.driver.mem_address_free(memory));
  EXPECT_EQ(capture.end(), CuResult::success);
}

TEST(SimCapture, plain_allocation_is_refused_and_invalidates) {
  Sim sim;
  Capturing capture(sim);
  DevicePtr ptr{};
  EXPECT_EQ(sim.driver.mem_alloc(512, ptr), CuResult::stream_capture_unsupported);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
  EXPECT_EQ(capture.end(), CuResult::stream_capture_invalidated);
  EXPECT_EQ(capture.status(), CaptureStatus::none);
}

TEST(SimCapture, a_query_of_an_unrelated_event_is_refused_and_invalidates) {
  Sim sim;
  const EventHandle event = sim.recorded_event(sim.stream());
  Capturing capture(sim);
  EXPECT_EQ(sim.driver.event_query(event), CuResult::stream_capture_unsupported);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, a_thread_in_relaxed_mode_may_query_wait_and_allocate) {
  Sim sim;
  const StreamHandle other = sim.stream();
  const EventHandle event = sim.recorded_event(other);
  Capturing capture(sim);
  CaptureMode mode = CaptureMode::relaxed;
  ok(sim.driver.thread_exchange_stream_capture_mode(mode));
  EXPECT_EQ(mode, CaptureMode::global);
  ok(sim.driver.event_synchronize(event));
  ok(sim.driver.stream_query(other));
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc(512, ptr));
  ok(sim.driver.thread_exchange_stream_capture_mode(mode));
  EXPECT_EQ(mode, CaptureMode::relaxed);
  EXPECT_EQ(capture.end(), CuResult::success);
}

// What another thread's query of an unrelated event gets while this thread captures in `mode`.
CuResult query_on_another_thread(CaptureMode mode, CaptureStatus& after) {
  Sim sim;
  const EventHandle event = sim.event();
  Capturing capture(sim, mode);
  CuResult result{};
  std::thread([&] {
    ok(sim.driver.ctx_set_current(sim.context));
    result = sim.driver.event_query(event);
  }).join();
  after = capture.status();
  return result;
}

TEST(SimCapture, only_a_global_capture_reaches_other_threads) {
  CaptureStatus status{};
  EXPECT_EQ(query_on_another_thread(CaptureMode::global, status),
            CuResult::stream_capture_unsupported);
  EXPECT_EQ(status, CaptureStatus::invalidated);
  EXPECT_EQ(query_on_another_thread(CaptureMode::thread_local_mode, status), CuResult::success);
  EXPECT_EQ(status, CaptureStatus::active);
  EXPECT_EQ(query_on_another_thread(CaptureMode::relaxed, status), CuResult::success);
  EXPECT_EQ(status, CaptureStatus::active);
}

TEST(SimCapture, a_context_event_is_refused_and_invalidates_in_every_mode) {
  for (const auto mode :
       {CaptureMode::global, CaptureMode::thread_local_mode, CaptureMode::relaxed}) {
    Sim sim;
    const EventHandle event = sim.event();
    Capturing capture(sim, mode);
    CaptureMode relaxed = CaptureMode::relaxed;
    ok(sim.driver.thread_exchange_stream_capture_mode(relaxed));
    EXPECT_EQ(sim.driver.ctx_record_event(sim.context, event),
              CuResult::stream_capture_unsupported);
    EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
  }
}

TEST(SimCapture, recording_on_an_ordinary_stream_is_harmless) {
  Sim sim;
  const StreamHandle other = sim.stream();
  Capturing capture(sim);
  sim.order(other, sim.stream());
  EXPECT_EQ(capture.end(), CuResult::success);
}

TEST(SimCapture, the_legacy_stream_is_refused_while_a_blocking_stream_captures) {
  Sim sim;
  const EventHandle event = sim.event();
  Capturing capture(sim, CaptureMode::relaxed, StreamFlags::blocking);
  CaptureStatus status{};
  EXPECT_EQ(sim.driver.stream_is_capturing(kNullStream, status), CuResult::stream_capture_implicit);
  EXPECT_EQ(capture.status(), CaptureStatus::active);
  EXPECT_EQ(sim.driver.event_record(event, kLegacyStream), CuResult::stream_capture_implicit);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, the_legacy_stream_works_while_only_a_non_blocking_stream_captures) {
  Sim sim;
  const EventHandle event = sim.event();
  Capturing capture(sim);
  CaptureStatus status{};
  ok(sim.driver.stream_is_capturing(kNullStream, status));
  EXPECT_EQ(status, CaptureStatus::none);
  ok(sim.driver.event_record(event, kLegacyStream));
  EXPECT_EQ(capture.end(), CuResult::success);
}

TEST(SimCapture, waiting_for_an_outside_event_isolates_and_invalidates) {
  Sim sim;
  const EventHandle outside = sim.recorded_event(sim.stream());
  Capturing capture(sim);
  EXPECT_EQ(sim.driver.stream_wait_event(capture.stream, outside),
            CuResult::stream_capture_isolation);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, a_query_of_an_event_recorded_in_the_capture_invalidates) {
  Sim sim;
  Capturing capture(sim);
  const EventHandle inside = sim.recorded_event(capture.stream);
  CaptureMode relaxed = CaptureMode::relaxed;
  ok(sim.driver.thread_exchange_stream_capture_mode(relaxed));
  EXPECT_EQ(sim.driver.event_query(inside), CuResult::captured_event);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, synchronising_the_capturing_stream_or_the_context_invalidates) {
  Sim sim;
  Capturing one(sim, CaptureMode::relaxed);
  EXPECT_EQ(sim.driver.stream_synchronize(one.stream), CuResult::stream_capture_unsupported);
  EXPECT_EQ(one.status(), CaptureStatus::invalidated);
  EXPECT_EQ(one.end(), CuResult::stream_capture_invalidated);
  Capturing two(sim, CaptureMode::relaxed);
  EXPECT_EQ(sim.driver.ctx_synchronize(), CuResult::stream_capture_unsupported);
  EXPECT_EQ(two.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, an_invalidated_capture_takes_no_more_work) {
  Sim sim;
  Capturing capture(sim);
  DevicePtr ptr{};
  EXPECT_EQ(sim.driver.mem_alloc(512, ptr), CuResult::stream_capture_unsupported);
  EXPECT_EQ(sim.driver.launch({}, capture.stream), CuResult::stream_capture_invalidated);
  EXPECT_EQ(sim.driver.event_record(sim.event(), capture.stream),
            CuResult::stream_capture_invalidated);
}

TEST(SimCapture, a_capture_forks_and_joins_through_its_events) {
  Sim sim;
  std::string order;
  const StreamHandle side = sim.stream();
  Capturing capture(sim);
  sim.order(capture.stream, side);
  CaptureStatus status{};
  ok(sim.driver.stream_is_capturing(side, status));
  EXPECT_EQ(status, CaptureStatus::active);
  ok(sim.driver.launch({"side", 0, {}, [&] { order += "s"; }}, side));
  sim.order(side, capture.stream);
  ok(sim.driver.launch({"main", 0, {}, [&] { order += "m"; }}, capture.stream));
  ASSERT_EQ(capture.end(), CuResult::success);
  GraphExecHandle exec{};
  ok(sim.driver.graph_instantiate(capture.graph, exec));
  ok(sim.driver.graph_launch(exec, side));
  sim.driver.run_until_idle();
  EXPECT_EQ(order, "sm");
}

TEST(SimCapture, a_fork_that_is_not_joined_is_an_error) {
  Sim sim;
  const StreamHandle side = sim.stream();
  Capturing capture(sim);
  sim.order(capture.stream, side);
  ok(sim.driver.launch({}, side));
  EXPECT_EQ(capture.end(), CuResult::stream_capture_unjoined);
}

TEST(SimCapture, two_captures_do_not_merge) {
  Sim sim;
  Capturing one(sim);
  Capturing two(sim);
  const EventHandle event = sim.recorded_event(one.stream);
  EXPECT_EQ(sim.driver.stream_wait_event(two.stream, event), CuResult::stream_capture_merge);
  EXPECT_EQ(one.status(), CaptureStatus::invalidated);
  EXPECT_EQ(two.status(), CaptureStatus::invalidated);
}

TEST(SimCapture, beginning_and_ending_in_the_wrong_place_is_refused) {
  Sim sim;
  GraphHandle graph{};
  EXPECT_EQ(sim.driver.stream_begin_capture(kNullStream, CaptureMode::global),
            CuResult::stream_capture_unsupported);
  EXPECT_EQ(sim.driver.stream_end_capture(sim.stream(), graph), CuResult::illegal_state);
  Capturing capture(sim);
  EXPECT_EQ(sim.driver.stream_begin_capture(capture.stream, CaptureMode::global),
            CuResult::illegal_state);
  std::thread([&] { EXPECT_EQ(capture.end(), CuResult::stream_capture_wrong_thread); }).join();
  EXPECT_EQ(capture.end(), CuResult::success);
}

TEST(SimCapture, capture_info_names_the_capture_and_its_graph) {
  Sim sim;
  CaptureInfo none;
  ok(sim.driver.stream_get_capture_info(sim.stream(), none));
  EXPECT_EQ(none.status, CaptureStatus::none);
  Capturing one(sim);
  Capturing two(sim);
  CaptureInfo first;
  CaptureInfo second;
  ok(sim.driver.stream_get_capture_info(one.stream, first));
  ok(sim.driver.stream_get_capture_info(two.stream, second));
  EXPECT_EQ(first.status, CaptureStatus::active);
  EXPECT_NE(first.id, second.id);
  EXPECT_EQ(one.end(), CuResult::success);
  EXPECT_EQ(one.graph, first.graph);
}

TEST(SimCapture, the_drivers_own_pools_are_not_captured) {
  Sim sim;
  MemPoolHandle pool{};
  DevicePtr ptr{};
  ok(sim.driver.mem_pool_create(0, pool));
  Capturing capture(sim);
  EXPECT_EQ(sim.driver.mem_alloc_from_pool_async(512, pool, capture.stream, ptr),
            CuResult::stream_capture_unsupported);
  EXPECT_EQ(capture.status(), CaptureStatus::active);
  EXPECT_EQ(sim.driver.mem_alloc_from_pool_async(512, pool, sim.stream(), ptr),
            CuResult::stream_capture_unsupported);
  EXPECT_EQ(capture.status(), CaptureStatus::invalidated)
      << "on another stream it is a call that may wait";
}

TEST(SimCapture, a_copy_that_waits_breaks_only_captures_that_the_legacy_stream_breaks) {
  Sim sim;
  const AddressRange memory = sim.memory();
  Capturing apart(sim);
  sim.read_back({memory.begin, 8});
  EXPECT_EQ(apart.status(), CaptureStatus::active);
  Capturing blocking(sim, CaptureMode::relaxed, StreamFlags::blocking);
  char bytes[8];
  EXPECT_EQ(sim.driver.memcpy_device_to_host(bytes, memory.begin, 8),
            CuResult::stream_capture_implicit);
  EXPECT_EQ(blocking.status(), CaptureStatus::invalidated);
  EXPECT_EQ(apart.status(), CaptureStatus::active);
}

TEST(SimGraph, captured_work_runs_at_each_launch_and_not_before) {
  Sim sim;
  const AddressRange memory = sim.memory();
  Capturing capture(sim);
  ok(sim.driver.memset_d8_async(memory.begin, 3, 4, capture.stream));
  ok(sim.driver.memcpy_device_to_device_async(memory.begin + 8, memory.begin, 4, capture.stream));
  ASSERT_EQ(capture.end(), CuResult::success);
  GraphExecHandle exec{};
  ok(sim.driver.graph_instantiate(capture.graph, exec));
  ok(sim.driver.graph_destroy(capture.graph));
  sim.driver.run_until_idle();
  EXPECT_EQ(sim.read_back({memory.begin + 8, 1}).front(), 0);
  ok(sim.driver.graph_launch(exec, capture.stream));
  ok(sim.driver.stream_synchronize(capture.stream));
  EXPECT_EQ(sim.read_back({memory.begin + 8, 4}), std::vector<std::uint8_t>(4, 3));
  ok(sim.driver.graph_exec_destroy(exec));
  EXPECT_EQ(sim.driver.graph_launch(exec, capture.stream), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimGraph, launches_are_checked_on_the_launching_stream) {
  Sim sim;
  const AddressRange memory = sim.memory();
  Capturing capture(sim);
  sim.write(memory, capture.stream, "captured_writer");
  ASSERT_EQ(capture.end(), CuResult::success);
  EXPECT_EQ(sim.driver.hazard_count(), 0U);
  GraphExecHandle exec{};
  ok(sim.driver.graph_instantiate(capture.graph, exec));
  const StreamHandle a = sim.stream();
  ok(sim.driver.graph_launch(exec, a));
  ok(sim.driver.graph_launch(exec, sim.stream()));  // never beside itself
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
  sim.write(memory, sim.stream());
  ASSERT_EQ(sim.driver.hazard_count(), 1U);
  EXPECT_NE(sim.hazards().find("captured_writer"), std::string::npos);
}

TEST(SimGraph, memory_allocated_and_freed_in_a_capture_stays_usable_for_launches) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle other = sim.stream();
  Capturing capture(sim);
  sim.observer().on_allocate(memory, capture.stream);
  sim.write(memory, capture.stream);
  sim.observer().on_deallocate(memory, capture.stream);
  sim.observer().on_allocate({memory.begin, kMiB}, capture.stream);
  sim.write({memory.begin, kMiB}, capture.stream);
  sim.observer().on_deallocate({memory.begin, kMiB}, capture.stream);
  ASSERT_EQ(capture.end(), CuResult::success);
  GraphExecHandle exec{};
  ok(sim.driver.graph_instantiate(capture.graph, exec));
  ok(sim.driver.graph_launch(exec, other));
  ok(sim.driver.graph_launch(exec, other));
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
  // Handed out while a launch may still run: a hazard. After it: none.
  sim.observer().on_allocate({memory.begin, kPage / 2}, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
  ok(sim.driver.ctx_synchronize());
  sim.observer().on_allocate({memory.begin + kPage / 2, kPage / 2}, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 1U) << sim.hazards();
}

TEST(SimGraph, memory_for_a_capture_must_be_known_complete) {
  Sim sim;
  const AddressRange memory = sim.memory();
  Capturing capture(sim);
  const StreamHandle other = sim.stream();
  sim.observer().on_allocate(memory, other);
  sim.observer().on_deallocate(memory, other);
  sim.observer().on_allocate(memory, capture.stream);
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
}

void count_up(void* counter) { ++*static_cast<int*>(counter); }

TEST(SimGraph, a_user_object_goes_with_the_last_graph_and_after_the_last_launch) {
  Sim sim;
  int gone = 0;
  UserObjectHandle object{};
  ok(sim.driver.user_object_create(&gone, count_up, object));
  Capturing capture(sim);
  sim.spin(0, capture.stream);
  CaptureInfo info;
  ok(sim.driver.stream_get_capture_info(capture.stream, info));
  ok(sim.driver.graph_retain_user_object(info.graph, object));
  ASSERT_EQ(capture.end(), CuResult::success);
  GraphExecHandle exec{};
  ok(sim.driver.graph_instantiate(capture.graph, exec));
  ok(sim.driver.graph_destroy(capture.graph));
  ok(sim.driver.graph_launch(exec, capture.stream));
  ok(sim.driver.graph_exec_destroy(exec));
  EXPECT_EQ(gone, 0) << "the launch has not run yet";
  ok(sim.driver.stream_synchronize(capture.stream));
  ok(sim.driver.stream_query(capture.stream));
  EXPECT_EQ(gone, 1);
}

TEST(SimGraph, a_user_object_released_by_its_owner_goes_at_once) {
  Sim sim;
  int gone = 0;
  UserObjectHandle object{};
  ok(sim.driver.user_object_create(&gone, count_up, object));
  ok(sim.driver.user_object_release(object));
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(sim.driver.user_object_release(object), CuResult::invalid_value);
}

TEST(SimGraph, an_invalidated_capture_lets_go_of_its_user_objects) {
  Sim sim;
  int gone = 0;
  UserObjectHandle object{};
  ok(sim.driver.user_object_create(&gone, count_up, object));
  Capturing capture(sim);
  CaptureInfo info;
  ok(sim.driver.stream_get_capture_info(capture.stream, info));
  ok(sim.driver.graph_retain_user_object(info.graph, object));
  EXPECT_EQ(sim.driver.ctx_synchronize(), CuResult::stream_capture_unsupported);
  EXPECT_EQ(capture.end(), CuResult::stream_capture_invalidated);
  EXPECT_EQ(gone, 1);
}

}  // namespace
}  // namespace vpmm::driver::sim
