// SPDX-License-Identifier: Apache-2.0
// context: which calls of a program's only stream go without a visit, and which may not
// (Note [A hit needs no visit]).
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fault/no_memory.hpp"
#include "pool/tuning.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::GraphHandle;
using fault::HostFaults;
using fault::NoMemory;

constexpr Bytes kBytes = 8 * kPage;  // more than a cache keeps

WorldOptions world_that_prefers(settings::Prefer prefer) {
  WorldOptions options = adaptive_world();
  options.config.prefer = prefer;
  return options;
}

void enter_anew(PoolWorld& world) {
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
}

// A pool with one stream, which has a free range for one request of kBytes in hand.
class OnlyStream : public ::testing::Test {
 protected:
  explicit OnlyStream(const WorldOptions& options = adaptive_world()) : world(options) {}
  void use_once() { world.deallocate(world.allocate(kBytes, stream), stream); }
  std::uint64_t visits() { return world.calls().count(Call::ctx_get_id); }
  std::uint64_t events() { return world.statistics().events_recorded; }
  // Frees need no visit from here on, as nothing is due.
  void come_to_rest() {
    use_once();
    world.wait();
    use_once();
    world.wait();
  }

  PoolWorld world;
  StreamHandle stream = world.stream();
};

// Each free of a page is worth an event, also of an only stream.
class OnlyStreamWithEvents : public OnlyStream {
 protected:
  OnlyStreamWithEvents() : OnlyStream(world_that_prefers(settings::Prefer::footprint)) {}
};

TEST_F(OnlyStream, of_a_dead_context_takes_nothing_of_its_successor) {
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  ASSERT_TRUE(bound.value()->allocate(kBytes, 0).ok());
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_anew(world);
  stream = world.stream();
  come_to_rest();
  expect_error(bound.value()->allocate(kBytes, 0), ErrorCode::invalid_argument, {"is gone"});
  const std::uint64_t before = visits();
  use_once();
  EXPECT_EQ(visits(), before) << "the successor is an only stream";
}

TEST_F(OnlyStream, that_is_bound_looks_for_a_reset_at_a_hit) {
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  come_to_rest();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_anew(world);
  expect_error(bound.value()->allocate(kBytes, 0), ErrorCode::invalid_argument, {"is gone"});
}

TEST_F(OnlyStream, that_is_bound_makes_no_other_driver_call_at_a_hit) {
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  come_to_rest();
  use_once();
  const std::uint64_t before = world.calls().total_count();
  const auto made = bound.value()->allocate(kBytes, 0);
  ASSERT_TRUE(made.ok() && bound.value()->deallocate(made.value()).ok());
  EXPECT_EQ(world.calls().total_count(), before + 2);
}

TEST_F(OnlyStreamWithEvents, records_what_a_free_that_only_tried_has_left) {
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  come_to_rest();
  const std::uint64_t before = events();
  ASSERT_TRUE(world.pool().deallocate_if_ready(ptr, stream));
  ASSERT_EQ(events(), before);
  const std::uint64_t made = visits();
  world.allocate(kBytes, stream);
  EXPECT_EQ(visits(), made + 1) << "which looks at what its cache asks for";
  EXPECT_EQ(events(), before + 1);
}

TEST_F(OnlyStream, looks_once_at_what_its_cache_asks_for) {
  come_to_rest();
  world.deallocate(world.allocate(2 * kPage, stream), stream);
  world.wait();
  const std::uint64_t before = visits();
  use_once();
  EXPECT_EQ(visits(), before + 1) << "its memory was recalled";
  use_once();
  EXPECT_EQ(visits(), before + 1);
}

TEST_F(OnlyStreamWithEvents, records_an_event_that_the_driver_refused_before) {
  const DevicePtr first = world.allocate(kBytes, stream);
  come_to_rest();
  const std::uint64_t before = events();
  world.faults().set_plan({{Call::event_record}, 1, CuResult::out_of_memory});
  world.deallocate(first, stream);
  world.faults().clear_plan();
  ASSERT_EQ(events(), before);
  world.allocate(kBytes, stream);
  EXPECT_EQ(events(), before + 1);
}

TEST_F(OnlyStreamWithEvents, learns_that_its_frees_are_complete) {
  const DevicePtr first = world.allocate(2 * kBytes, stream);
  world.allocate(kPage, stream);
  come_to_rest();
  world.deallocate(first, stream);
  ASSERT_EQ(world.statistics().pending_bytes, 2 * kBytes);
  world.sim().run_until_idle();
  world.allocate(kBytes, stream);
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

TEST_F(OnlyStream, gives_memory_from_before_a_reset_an_event_as_soon_as_no_capture_is_known) {
  world.deallocate(world.allocate(1000, stream), stream);
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_anew(world);
  stream = world.stream();
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  use_once();
  use_once();
  const std::uint64_t before = world.calls().count(Call::ctx_record_event);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  world.allocate(kBytes, stream);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), before + 1);
}

TEST_F(OnlyStream, gives_back_what_a_graph_kept_once_that_is_gone) {
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr captured = world.allocate(kBytes, stream);
  world.deallocate(captured, stream);
  const GraphHandle graph = end_capture(world, stream);
  come_to_rest();
  destroy(world, graph);
  const Bytes before = world.statistics().pending_bytes;
  world.allocate(kBytes, stream);
  EXPECT_EQ(world.statistics().pending_bytes, before + kBytes);
}

TEST_F(OnlyStream, that_calls_after_a_capture_which_nobody_announced_ends_it) {
  const DevicePtr two[] = {world.allocate(kBytes, stream), world.allocate(kBytes, stream)};
  for (const DevicePtr each : two) world.deallocate(each, stream);
  come_to_rest();
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr captured = world.allocate(kBytes, stream);
  const GraphHandle graph = end_capture(world, stream);
  use_once();
  EXPECT_TRUE(world.pool().streams().synchronize().ok()) << "no capture is known";
  world.deallocate(captured, stream);
  destroy(world, graph);
}

TEST_F(OnlyStream, that_is_bound_asks_for_its_capture_while_one_is_known) {
  const auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  come_to_rest();
  const auto asked = [&] { return world.calls().count(Call::stream_get_id); };
  std::uint64_t before = asked();
  const auto first = bound.value()->allocate(kBytes, 0);
  ASSERT_TRUE(first.ok() && bound.value()->deallocate(first.value()).ok());
  EXPECT_EQ(asked(), before);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  begin_capture(world, stream, driver::CaptureMode::global);
  const auto captured = bound.value()->allocate(kBytes, 0);
  ASSERT_TRUE(captured.ok() && bound.value()->deallocate(captured.value()).ok());
  const GraphHandle graph = end_capture(world, stream);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  for (int i = 0; i < 3; ++i)
    EXPECT_NE(world.allocate(kBytes, stream), captured.value()) << "its graph keeps it";
  destroy(world, graph);
}

TEST(OnlyStreamAtFirst, maps_the_pages_of_the_setting) {
  WorldOptions options = adaptive_world();
  options.config.pages = 40;
  PoolWorld world(options);
  const auto bound = world.pool().bind(world.stream());
  ASSERT_TRUE(bound.ok());
  ASSERT_TRUE(world.pool().limits().preallocate(kBytes).ok());
  ASSERT_LT(world.statistics().mapped_bytes, 40 * kPage);
  ASSERT_TRUE(bound.value()->allocate(kBytes, 0).ok());
  EXPECT_GE(world.statistics().mapped_bytes, 40 * kPage);
}

TEST(OnlyStreamUnderGuard, has_some_of_its_large_allocations_guarded) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 4;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 100; ++i) world.deallocate(world.allocate(kBytes, stream), stream);
  EXPECT_GE(world.statistics().guarded_allocations, 10u);
}

TEST(OnlyStreamWithAThreshold, gives_back_what_is_above_it) {
  WorldOptions options = adaptive_world();
  options.config.limits.release_threshold = kBytes;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr large = world.allocate(64 * kPage, stream);
  world.deallocate(world.allocate(kBytes, stream), stream);
  world.deallocate(large, stream);
  world.wait();
  world.deallocate(world.allocate(kBytes, stream), stream);
  EXPECT_LE(world.statistics().mapped_bytes, 2 * kBytes);
}

// What visits have to look at there.
TEST(OnlyStreamInOtherWorlds, makes_each_call_a_visit) {
  WorldOptions pages = page_world();
  WorldOptions ordered = adaptive_world();
  ordered.config.small = settings::SmallRequests::stream_ordered;
  for (const WorldOptions& options : {pages, ordered}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    for (int i = 0; i < 3; ++i) {
      world.deallocate(world.allocate(kBytes, stream), stream);
      world.wait();
    }
    const std::uint64_t before = world.calls().count(Call::ctx_get_id);
    world.deallocate(world.allocate(kBytes, stream), stream);
    EXPECT_EQ(world.calls().count(Call::ctx_get_id), before + 2);
  }
}

TEST_F(OnlyStream, is_none_beside_another_that_has_called) {
  const StreamHandle other = world.stream();
  world.deallocate(world.allocate(kPage, other), other);
  come_to_rest();
  come_to_rest();
  const std::uint64_t before = visits();
  use_once();
  EXPECT_EQ(visits(), before + 2);
}

TEST_F(OnlyStream, puts_what_its_cache_keeps_together_before_a_large_request) {
  const DevicePtr large = world.allocate(9 * kPage, stream);
  world.allocate(kPage, stream);
  const DevicePtr first = world.allocate(4 * kPage, stream);
  const DevicePtr second = world.allocate(4 * kPage, stream);
  world.allocate(kPage, stream);
  ASSERT_EQ(second, first + 4 * kPage);
  for (const DevicePtr ptr : {large, first, second}) world.deallocate(ptr, stream);
  const std::uint64_t before = visits();
  EXPECT_EQ(world.allocate(8 * kPage, stream), first) << "the best fit";
  EXPECT_EQ(visits(), before);
}

TEST_F(OnlyStream, without_host_memory_takes_and_frees_nothing) {
  come_to_rest();
  const DevicePtr ptr = world.allocate(kBytes, stream);
  world.deallocate(world.allocate(kBytes, stream), stream);
  world.wait();
  const std::uint64_t live = world.statistics().live_allocations;
  {
    const NoMemory none(NoMemory::Reserve::promised);
    const auto made = world.pool().allocate({kBytes, 0, stream});
    EXPECT_TRUE(!made.ok() && made.error().code == ErrorCode::host_out_of_memory);
    const auto freed = world.pool().deallocate(ptr, stream);
    EXPECT_TRUE(!freed.ok() && freed.error().code == ErrorCode::host_out_of_memory);
    EXPECT_TRUE(is_null(world.pool().allocate_if_ready(kBytes, 0)));
  }
  EXPECT_EQ(world.statistics().live_allocations, live);
  world.deallocate(ptr, stream);
}

TEST_F(OnlyStream, has_host_memory_for_a_deferred_free_of_each_hit) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < 10; ++i) all.push_back(world.allocate(64 * kPage, stream));
  for (const DevicePtr ptr : all) world.deallocate(ptr, stream);
  const std::uint64_t before = visits();
  all.clear();
  for (int i = 0; i < 80; ++i) all.push_back(world.allocate(kBytes, stream));
  ASSERT_EQ(visits(), before);
  {
    const NoMemory none(NoMemory::Reserve::left);
    for (const DevicePtr ptr : all) world.pool().deallocate_deferred(ptr);
    EXPECT_EQ(HostFaults::counted(), 0u);
  }
  world.wait();
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST(OnlyStreamOfManyRequests, leaves_a_tag_that_a_callback_entered_to_a_visit) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = 32 * kPage;
  PoolWorld small(options);
  const StreamHandle only = small.stream();
  const DevicePtr first = small.allocate(kBytes, only);
  const DevicePtr second = small.allocate(kBytes, only);
  const DevicePtr held = small.allocate(14 * kPage, only);
  small.deallocate(second, only);
  small.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    EXPECT_TRUE(small.pool().suspension().enter(7, context::TagScope::process).ok());
    return small.pool().deallocate(held, only).ok();
  });
  const Bytes sizes[] = {12 * kPage, kBytes};
  DevicePtr made[2] = {};
  ASSERT_TRUE(small.pool().allocate_many(sizes, only, made).ok());
  const report::Layout layout = small.pool().reports().layout();
  for (const auto& each : layout.blocks)
    if (each.range.begin == made[0] || each.range.begin == made[1]) {
      EXPECT_EQ(each.tag, 7u);
    }
  EXPECT_TRUE(small.pool().suspension().leave(7, context::TagScope::process).ok());
  small.deallocate(first, only);
}

TEST(OnlyStreamOfMovedPages, unmaps_old_mappings_call_by_call) {
  WorldOptions options = page_by_page_world();
  options.config.limits.capacity = 42 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr many = world.allocate(40 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(many, stream);
  world.deallocate(world.allocate(41 * kPage, stream), stream);
  ASSERT_EQ(world.statistics().zombie_bytes, 40 * kPage);
  world.sim().advance_host_ns(kLongNs);
  for (int i = 0; i < 4; ++i) world.deallocate(world.allocate(kBytes, stream), stream);
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
}

// --- requests

TEST(OnlyStreamThatCrowds, has_its_requests_cut_from_pages) {
  WorldOptions options = adaptive_world();
  options.config.streams.crowded_after = 0;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 2; ++i) {
    world.deallocate(world.allocate(64 * kPage, stream), stream);
    world.wait();
  }
  world.allocate(kPage, stream);
  EXPECT_GT(world.statistics().small_bytes, 0u);
}

TEST_F(OnlyStream, that_needs_a_large_alignment_has_it) {
  come_to_rest();
  for (const Bytes alignment : {kPage, 4 * kPage, 16 * kPage}) {
    const DevicePtr ptr = world.allocate(kPage + 1, stream, alignment);
    EXPECT_TRUE(is_aligned(ptr, alignment));
    world.deallocate(ptr, stream);
  }
  expect_error(world.pool().allocate({kBytes, 3, stream}), ErrorCode::invalid_argument);
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
}

TEST(OnlyStreamOfPages, takes_from_its_cache_what_no_free_range_has) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  ASSERT_EQ(world.statistics().cached_bytes, 4 * kPage);
  ASSERT_EQ(world.statistics().mapped_bytes, 4 * kPage);
  const std::uint64_t before = world.calls().count(Call::ctx_get_id);
  world.allocate(3 * kPage, stream);
  EXPECT_EQ(world.calls().count(Call::ctx_get_id), before);
  EXPECT_EQ(world.statistics().mapped_bytes, 4 * kPage);
}

TEST_F(OnlyStream, counts_its_hits_in_peaks_and_figures) {
  world.allocate(1000, stream);
  come_to_rest();
  world.deallocate(world.allocate(1000, stream), stream);
  world.pool().reports().reset_peaks();
  const std::uint64_t before = visits();
  const DevicePtr ptr = world.allocate(kBytes, stream);
  const DevicePtr warm = world.allocate(1000, stream);
  world.deallocate(ptr, stream);
  EXPECT_EQ(visits(), before);
  EXPECT_GE(world.statistics().peak_live_bytes, kBytes + 2000);
  EXPECT_LT(world.statistics().live_bytes, kPage);
  world.deallocate(warm, stream);
  world.wait();
  world.pool().reports().reset_peaks();
  world.deallocate(world.pool().allocate_if_ready(kBytes, 0), std::nullopt);
  EXPECT_GE(world.statistics().peak_live_bytes, kBytes);
}

TEST_F(OnlyStream, that_is_recorded_makes_each_call_a_visit_which_samples_figures) {
  const std::string path = ::testing::TempDir() + "only_stream.vpmmrec";
  come_to_rest();
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  use_once();
  const std::uint64_t before = visits();
  use_once();
  EXPECT_EQ(visits(), before + 2);
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  std::filesystem::remove(path);
}

// --- frees

TEST_F(OnlyStream, has_each_mistake_of_its_counted_once) {
  come_to_rest();
  const DevicePtr ptr = world.allocate(kBytes, stream);
  const DevicePtr cached = world.allocate(2 * kPage, stream);
  const DevicePtr kept = world.allocate(kBytes, stream);
  const auto share = world.pool().sharing().share({kept, kBytes});
  ASSERT_TRUE(share.ok());
  const DevicePtr live = world.allocate(kBytes, stream);
  for (const DevicePtr each : {ptr, cached, kept}) world.deallocate(each, stream);
  const std::uint64_t before = world.statistics().caller_mistakes;
  for (const DevicePtr each : {live + kPage, cached, kept})
    expect_error(world.pool().deallocate(each, stream), ErrorCode::invalid_pointer);
  EXPECT_EQ(world.statistics().caller_mistakes, before + 3);
  world.pool().sharing().end_lease(share.value().share, context::Holder::handle);
}

TEST_F(OnlyStream, has_a_second_free_counted_once_of_memory_that_others_or_a_graph_keep) {
  const DevicePtr shared = world.allocate(kBytes, stream);
  const auto share = world.pool().sharing().share({shared, kBytes});
  ASSERT_TRUE(share.ok());
  world.deallocate(shared, stream);
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr captured = world.allocate(kBytes, stream);
  world.deallocate(captured, stream);
  const GraphHandle graph = end_capture(world, stream);
  for (const DevicePtr kept : {shared, captured}) {
    come_to_rest();
    const std::uint64_t before = world.statistics().caller_mistakes;
    expect_error(world.pool().deallocate(kept, stream), ErrorCode::invalid_pointer);
    EXPECT_EQ(world.statistics().caller_mistakes, before + 1);
  }
  world.pool().sharing().end_lease(share.value().share, context::Holder::handle);
  destroy(world, graph);
}

TEST_F(OnlyStream, gets_aligned_memory_without_a_visit_where_all_free_ranges_are_as_aligned) {
  world.deallocate(world.allocate(2 * kBytes, stream), stream);
  come_to_rest();
  const Bytes natural = pool::tuning_of(adaptive_world().config, kPage).grain_alignment();
  for (const Bytes alignment : {Bytes{0}, natural, 2 * natural}) {
    const std::uint64_t before = visits();
    const DevicePtr ptr = world.allocate(kBytes, stream, alignment);
    EXPECT_EQ(visits(), before + (alignment > natural ? 1 : 0)) << alignment;
    world.deallocate(ptr, stream);
    world.wait();
  }
}

// The driver gives numbers from 1 on.
class FirstNumber final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult stream_get_id(StreamHandle stream, driver::StreamId& id) override {
    const CuResult result = ForwardingDriver::stream_get_id(stream, id);
    id = driver::StreamId{1};
    return result;
  }
};

TEST(FirstStream, is_served_by_its_cache_as_others_are) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  driver::RecordingDriver calls(world.sim());
  FirstNumber driver(calls);
  const auto pool = context::Context::create(driver, 0, adaptive_world().config).value();
  const auto use_once = [&] {
    const auto made = pool->allocate({1000, 0, stream});
    ASSERT_TRUE(made.ok()) << message_of(made);
    EXPECT_TRUE(pool->deallocate(made.value(), stream).ok());
  };
  use_once();
  const std::uint64_t visits = calls.count(Call::ctx_get_id);
  use_once();
  EXPECT_EQ(calls.count(Call::ctx_get_id), visits);
}

}  // namespace
}  // namespace vpmm::test
