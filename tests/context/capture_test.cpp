// SPDX-License-Identifier: Apache-2.0
// context: stream captures: what an allocation may take, what is kept with the graph, and that no
// capture is broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::CaptureStatus;
using driver::CuResult;
using driver::GraphExecHandle;
using driver::GraphHandle;

class Capture : public ::testing::TestWithParam<CaptureMode> {
 protected:
  PoolWorld world{page_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  void begin(StreamHandle stream) { begin_capture(world, stream, GetParam()); }
  driver::CaptureId capture_of(StreamHandle stream) {
    driver::CaptureInfo info;
    EXPECT_EQ(world.sim().stream_get_capture_info(stream, info), CuResult::success);
    return info.id;
  }
  void use(DevicePtr ptr, StreamHandle stream, std::uint64_t duration_ns = 1000) {
    world.use(ptr, 4 * kPage, stream, duration_ns);
  }
  // Ends the capture on `a` and launches its graph on `b`, for the hazard checker.
  void run_graph() {
    const GraphHandle graph = end_capture(world, a);
    destroy(world, graph, launch(world, graph, b));
    world.wait();
  }
};

TEST_P(Capture, an_allocation_queues_nothing_and_the_graph_launches) {
  begin(a);
  const std::uint64_t recorded = world.calls().count(Call::event_record);
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  EXPECT_EQ(world.calls().count(Call::event_record), recorded);
  EXPECT_EQ(world.calls().count(Call::stream_wait_event), 0u);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, b);
  ASSERT_EQ(world.sim().graph_launch(exec, b), CuResult::success);
  destroy(world, graph, exec);
  world.deallocate(ptr, b);
}

TEST_P(Capture, an_allocation_takes_complete_or_new_memory_only) {
  const DevicePtr own = world.allocate(4 * kPage, a);
  use(own, a, kLongNs);
  world.deallocate(own, a);
  const DevicePtr foreign = world.allocate(4 * kPage, b);
  use(foreign, b, kLongNs);
  world.deallocate(foreign, b);
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  EXPECT_NE(captured, own) << "behind work that the graph is not ordered after";
  EXPECT_NE(captured, foreign);
  use(captured, a);
  world.deallocate(captured, a);
  run_graph();
}

TEST_P(Capture, a_small_request_is_served_from_pages_and_leaves_no_node_in_the_graph) {
  begin(a);
  const DevicePtr ptr = world.allocate(1000, a);
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 0u);
  world.use(ptr, 1000, a);
  world.deallocate(ptr, a);
  run_graph();
}

TEST_P(Capture, memory_used_again_is_divided_and_the_rest_serves_later_requests) {
  begin(a);
  const DevicePtr first = world.allocate(4 * kPage, a);
  use(first, a);
  world.deallocate(first, a);
  std::vector<DevicePtr> parts;
  for (const Bytes pages : {1U, 2U, 1U}) {
    parts.push_back(world.allocate(pages * kPage, a));
    world.use(parts.back(), pages * kPage, a);
  }
  EXPECT_EQ(parts, (std::vector<DevicePtr>{first, first + kPage, first + 3 * kPage}));
  EXPECT_EQ(world.statistics().mapped_bytes, 4 * kPage);
  EXPECT_EQ(world.calls().count(Call::user_object_create), 1u) << "the graph ends once";
  for (const DevicePtr ptr : parts) world.deallocate(ptr, a);
  run_graph();
}

TEST_P(Capture, memory_used_again_is_the_smallest_that_is_large_enough) {
  begin(a);
  const DevicePtr large = world.allocate(4 * kPage, a);
  const DevicePtr between = world.allocate(kPage, a);
  const DevicePtr small = world.allocate(2 * kPage, a);
  for (const bool is_large_first : {true, false}) {
    world.deallocate(is_large_first ? large : small, a);
    world.deallocate(is_large_first ? small : large, a);
    EXPECT_EQ(world.allocate(kPage, a), small);
    EXPECT_EQ(world.allocate(2 * kPage, a), large);
  }
  world.deallocate(between, a);
  destroy(world, end_capture(world, a));
}

TEST_P(Capture, memory_used_again_is_one_with_its_neighbours_after_the_next_free) {
  begin(a);
  const DevicePtr whole = world.allocate(4 * kPage, a);
  world.deallocate(whole, a);
  for (const bool goes_up : {true, false}) {
    std::vector<DevicePtr> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(world.allocate(kPage, a));
    if (!goes_up) std::reverse(parts.begin(), parts.end());
    for (const DevicePtr ptr : parts) world.deallocate(ptr, a);
    const DevicePtr again = world.allocate(4 * kPage, a);
    EXPECT_EQ(again, whole);
    use(again, a);
    world.deallocate(again, a);
  }
  run_graph();
  EXPECT_EQ(world.statistics().allocations, world.statistics().deallocations);
}

TEST_P(Capture, memory_used_again_is_not_joined_with_memory_that_another_stream_freed) {
  begin(a);
  const DevicePtr whole = world.allocate(4 * kPage, a);
  driver::EventHandle fork{}, join{};
  for (driver::EventHandle* const event : {&fork, &join})
    ASSERT_EQ(world.sim().event_create(*event), CuResult::success);
  ASSERT_EQ(world.sim().event_record(fork, a), CuResult::success);
  ASSERT_EQ(world.sim().stream_wait_event(b, fork), CuResult::success);
  world.deallocate(whole, a);
  const DevicePtr front = world.allocate(kPage, a);
  world.deallocate(front, b);
  EXPECT_EQ(world.allocate(kPage, b), front);
  EXPECT_EQ(world.allocate(3 * kPage, a), whole + kPage);
  world.deallocate(front, b);
  world.deallocate(whole + kPage, a);
  EXPECT_NE(world.allocate(4 * kPage, a), whole);
  ASSERT_EQ(world.sim().event_record(join, b), CuResult::success);
  ASSERT_EQ(world.sim().stream_wait_event(a, join), CuResult::success);
  destroy(world, end_capture(world, a));
  for (const driver::EventHandle event : {fork, join})
    ASSERT_EQ(world.sim().event_destroy(event), CuResult::success);
}

TEST_P(Capture, what_is_left_of_memory_used_again_is_everybodys_when_the_graph_is_gone) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 4 * kPage;
  PoolWorld full(options);
  const StreamHandle stream = full.stream();
  const StreamHandle other = full.stream();
  begin_capture(full, stream, GetParam());
  full.deallocate(full.allocate(4 * kPage, stream), stream);
  const DevicePtr half = full.allocate(2 * kPage, stream);
  const GraphHandle graph = end_capture(full, stream);
  expect_error(full.pool().allocate({2 * kPage, 0, other}), ErrorCode::out_of_memory);
  destroy(full, graph);
  EXPECT_EQ(full.allocate(2 * kPage, other), half + 2 * kPage);
}

TEST_P(Capture, memory_used_again_is_counted_as_the_request_and_what_is_left_as_freed_later) {
  begin(a);
  world.deallocate(world.allocate(4 * kPage - 100, a), a);
  const DevicePtr again = world.allocate(kPage - 5, a);
  EXPECT_EQ(world.statistics().allocations, 2u);
  EXPECT_EQ(world.statistics().deallocations, 0u);
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  EXPECT_EQ(world.statistics().live_bytes, kPage - 5 + 3 * kPage - 100);
  EXPECT_EQ(world.statistics().allocated_bytes, 4 * kPage);
  world.deallocate(again, a);
  EXPECT_EQ(world.statistics().deallocations, 1u);
  destroy(world, end_capture(world, a));
  world.wait();
  EXPECT_EQ(world.statistics().allocations, 2u);
  EXPECT_EQ(world.statistics().deallocations, 2u);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
}

TEST_P(Capture, memory_used_again_is_divided_between_grains) {
  PoolWorld grains(adaptive_world());
  const StreamHandle stream = grains.stream();
  begin_capture(grains, stream, GetParam());
  const DevicePtr whole = grains.allocate(8 * kPage, stream);
  grains.deallocate(whole, stream);
  const DevicePtr front = grains.allocate(kPage + kPage / 2, stream);
  EXPECT_EQ(front, whole);
  EXPECT_EQ(grains.allocate(2 * kPage, stream), whole + kPage + kPage / 2);
  grains.deallocate(front, stream);
  destroy(grains, end_capture(grains, stream));
}

TEST_P(Capture, memory_used_again_keeps_the_streams_that_its_uses_name) {
  begin(a);
  const DevicePtr whole = world.allocate(4 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(whole, b).ok());
  world.deallocate(whole, a);
  const DevicePtr front = world.allocate(kPage, a);
  const DevicePtr middle = world.allocate(kPage, a);
  for (const DevicePtr ptr : {front, middle}) world.deallocate(ptr, a);
  destroy(world, end_capture(world, a));
  world.wait();
}

TEST_P(Capture, memory_used_again_in_a_capture_is_described_as_the_new_request) {
  begin(a);
  world.deallocate(world.allocate(4 * kPage, a), a);
  const DevicePtr again = world.allocate(2 * kPage + 5, a);
  const auto info = world.pool().query(again);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().requested, 2 * kPage + 5);
  EXPECT_EQ(world.statistics().allocations, 2u);
  world.deallocate(again, a);
  run_graph();
}

TEST_P(Capture, captured_memory_is_nobody_elses_while_the_graph_lives) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  world.deallocate(captured, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  ASSERT_EQ(world.sim().ctx_synchronize(), CuResult::success);
  for (const StreamHandle stream : {a, b}) {
    const DevicePtr other = world.allocate(4 * kPage, stream);
    EXPECT_NE(other, captured);
    use(other, stream);
  }
  ASSERT_EQ(world.sim().graph_launch(exec, b), CuResult::success);
  destroy(world, graph, exec);
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, b), captured) << "the graph and all made from it are gone";
  use(captured, b);
}

TEST_P(Capture, memory_freed_after_the_capture_stays_with_the_graph_too) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  world.deallocate(captured, a);
  EXPECT_NE(world.allocate(4 * kPage, a), captured);
  ASSERT_EQ(world.sim().graph_launch(exec, a), CuResult::success);
  destroy(world, graph, exec);
}

TEST_P(Capture, a_shortage_names_memory_that_is_kept_for_graphs) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  world.deallocate(captured, a);
  world.pool().limits().set_capacity(world.statistics().mapped_bytes);
  const auto refused = world.pool().allocate({world.statistics().mapped_bytes, 0, a});
  ASSERT_FALSE(refused.ok());
  const std::string kept = "8 MiB are freed, but belong to captured graphs";
  EXPECT_NE(refused.error().message.find(kept), std::string::npos) << refused.error().message;
  destroy(world, graph, exec);
  world.wait();
  EXPECT_TRUE(world.pool().allocate({world.statistics().mapped_bytes, 0, a}).ok());
}

TEST_P(Capture, a_second_free_of_captured_memory_is_an_error) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  world.deallocate(captured, a);
  expect_error(world.pool().deallocate(captured, a), ErrorCode::invalid_pointer, {hex(captured)});
  const GraphHandle graph = end_capture(world, a);
  destroy(world, graph, launch(world, graph, b));
}

TEST_P(Capture, release_frees_the_memory_of_a_graph_that_will_not_be_launched_again) {
  begin(a);
  const driver::CaptureId id = capture_of(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  world.deallocate(captured, a);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  ASSERT_TRUE(world.pool().streams().capture_release(id).ok());
  world.allocate(kPage, a);  // the pool learns that the capture is over
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, b), captured);
  expect_error(world.pool().streams().capture_release(id), ErrorCode::invalid_argument);
  destroy(world, graph, exec);
}

TEST_P(Capture, a_graph_that_is_dropped_without_launch_gives_its_memory_back) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  world.deallocate(captured, a);
  destroy(world, end_capture(world, a));
  world.allocate(kPage, a);
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, b), captured);
}

TEST_P(Capture, frees_of_ordinary_memory_wait_until_the_capture_is_over) {
  const DevicePtr before = world.allocate(4 * kPage, a);
  use(before, a);
  begin(a);
  world.deallocate(before, a);
  const DevicePtr meanwhile = world.allocate(4 * kPage, b);
  EXPECT_NE(meanwhile, before);
  use(meanwhile, b);
  destroy(world, end_capture(world, a));
  world.allocate(kPage, a);  // the pool learns that the capture is over
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, a), before);
  use(before, a);
}

TEST_P(Capture, other_streams_go_on_meanwhile_and_break_nothing) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  const StreamHandle c = world.stream();
  for (int i = 0; i < 40; ++i) {
    const StreamHandle stream = i % 2 == 0 ? b : c;
    const DevicePtr ptr = world.allocate(static_cast<Bytes>(i % 5 + 1) * kPage, stream);
    world.use(ptr, kPage, stream, 1'000'000);
    world.deallocate(ptr, stream);
    world.deallocate(world.allocate(500, stream), stream);
    world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  }
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  const GraphHandle graph = end_capture(world, a);
  const GraphExecHandle exec = launch(world, graph, a);
  destroy(world, graph, exec);
  world.deallocate(captured, a);
}

TEST_P(Capture, what_would_wait_for_the_whole_context_is_refused_and_breaks_nothing) {
  begin(a);
  const DevicePtr captured = world.allocate(4 * kPage, a);
  use(captured, a);
  expect_error(world.pool().streams().synchronize(), ErrorCode::capture_active);
  expect_error(world.pool().streams().reset(), ErrorCode::capture_active);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  const GraphHandle graph = end_capture(world, a);
  destroy(world, graph, launch(world, graph, b));
}

TEST_P(Capture, memory_runs_out_in_a_capture_without_breaking_it) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld full(options);
  const StreamHandle stream = full.stream();
  const StreamHandle other = full.stream();
  const DevicePtr busy = full.allocate(6 * kPage, other);
  full.use(busy, 6 * kPage, other, kLongNs);
  full.deallocate(busy, other);
  begin_capture(full, stream, GetParam());
  const DevicePtr ptr =
      full.allocate(6 * kPage, stream);  // the host waits for the other stream's work
  full.use(ptr, 6 * kPage, stream);
  expect_error(full.pool().allocate({6 * kPage, 0, stream}), ErrorCode::out_of_memory,
               {" on a stream that is being captured\n"});
  destroy(full, end_capture(full, stream));
  EXPECT_EQ(full.statistics().host_waits, 1u);
}

// The one wait is for the context, so that nothing looks for ended graphs meanwhile.
TEST_P(Capture, memory_of_a_graph_that_ends_during_a_wait_serves_the_request) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  options.config.streams.any_stream = settings::AnyStreamOrder::park;
  PoolWorld full(options);
  const StreamHandle stream = full.stream();
  const StreamHandle other = full.stream();
  begin_capture(full, stream, GetParam());
  const DevicePtr captured = full.allocate(4 * kPage, stream);
  full.use(captured, 4 * kPage, stream, kLongNs);
  const GraphHandle graph = end_capture(full, stream);
  const DevicePtr busy = full.allocate(4 * kPage, other);
  const GraphExecHandle exec = launch(full, graph, other);
  ASSERT_EQ(full.sim().graph_exec_destroy(exec), CuResult::success);
  ASSERT_EQ(full.sim().graph_destroy(graph), CuResult::success);
  full.deallocate(captured, other);
  full.use(busy, 4 * kPage, other);
  full.deallocate(busy, std::nullopt);
  full.use(full.allocate(8 * kPage, stream), 8 * kPage, stream);
  EXPECT_EQ(full.statistics().host_waits, 2u);
}

INSTANTIATE_TEST_SUITE_P(Modes, Capture,
                         ::testing::Values(CaptureMode::global, CaptureMode::thread_local_mode,
                                           CaptureMode::relaxed),
                         [](const auto& mode) {
                           switch (mode.param) {
                             case CaptureMode::global: return "global";
                             case CaptureMode::thread_local_mode: return "thread_local";
                             case CaptureMode::relaxed: return "relaxed";
                           }
                           return "unknown";
                         });

// Captures that no call of the pool can see.
class AnnouncedCapture : public ::testing::Test {
 protected:
  PoolWorld world{page_world()};
  StreamHandle hidden = world.stream();
  StreamHandle b = world.stream();
};

TEST_F(AnnouncedCapture, keeps_context_events_away) {
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  begin_capture(world, hidden, CaptureMode::global);
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.deallocate(ptr, std::nullopt);
  for (int i = 0; i < 20; ++i) world.deallocate(world.allocate(4 * kPage, b), b);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  expect_error(world.pool().streams().synchronize(), ErrorCode::capture_active);
  const GraphHandle graph = end_capture(world, hidden);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  destroy(world, graph);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  EXPECT_GT(world.calls().count(Call::ctx_record_event), 0u)
      << "afterwards they are possible again";
}

TEST_F(AnnouncedCapture, announcements_nest) {
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  expect_error(world.pool().streams().synchronize(), ErrorCode::capture_active);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_TRUE(world.pool().streams().synchronize().ok());
  expect_error(world.pool().streams().capture_end(), ErrorCode::invalid_argument);
}

TEST_F(AnnouncedCapture, a_capture_of_a_blocking_stream_is_seen_through_the_legacy_stream) {
  const StreamHandle blocking = world.stream(StreamFlags::blocking);
  begin_capture(world, blocking, CaptureMode::thread_local_mode);
  const DevicePtr ptr = world.allocate(4 * kPage, driver::kLegacyStream);
  world.deallocate(ptr, driver::kLegacyStream);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  CaptureStatus status{};
  ASSERT_EQ(world.sim().stream_is_capturing(blocking, status), CuResult::success);
  EXPECT_EQ(status, CaptureStatus::active) << "no event on the legacy stream, none of the context";
  destroy(world, end_capture(world, blocking));
}

TEST_F(AnnouncedCapture, a_seen_capture_that_ended_unseen_is_over_when_its_graph_is) {
  begin_capture(world, hidden, CaptureMode::global);
  world.deallocate(world.allocate(4 * kPage, hidden), hidden);
  destroy(world, end_capture(world, hidden));
  ASSERT_EQ(world.sim().stream_destroy(hidden), CuResult::success);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  EXPECT_TRUE(world.pool().streams().synchronize().ok());
}

TEST_F(AnnouncedCapture, what_is_seen_while_it_is_announced_ends_with_it) {
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  begin_capture(world, hidden, CaptureMode::global);
  world.allocate(kPage, hidden);
  const GraphHandle graph = end_capture(world, hidden);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_FALSE(world.pool().streams().is_capturing());
  destroy(world, graph);
}

TEST_F(AnnouncedCapture, what_was_seen_before_does_not_end_with_it) {
  begin_capture(world, hidden, CaptureMode::global);
  world.allocate(kPage, hidden);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_TRUE(world.pool().streams().is_capturing());
  destroy(world, end_capture(world, hidden));
}

TEST_F(AnnouncedCapture, a_capture_that_could_not_be_read_is_known_until_its_stream_calls) {
  begin_capture(world, b, CaptureMode::global);
  world.allocate(kPage, b);
  driver::CaptureInfo info;
  ASSERT_EQ(world.sim().stream_get_capture_info(b, info), CuResult::success);
  begin_capture(world, hidden, CaptureMode::global);
  world.faults().set_plan({{Call::stream_get_capture_info}, 1, CuResult::invalid_value});
  EXPECT_FALSE(world.pool().allocate({kPage, 0, hidden}).ok());
  world.faults().clear_plan();
  destroy(world, end_capture(world, b));
  ASSERT_TRUE(world.pool().streams().capture_release(info.id).ok());
  EXPECT_TRUE(world.pool().streams().is_capturing());
  destroy(world, end_capture(world, hidden));
  world.allocate(kPage, hidden);
  EXPECT_FALSE(world.pool().streams().is_capturing());
}

}  // namespace
}  // namespace vpmm::test
