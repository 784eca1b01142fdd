// SPDX-License-Identifier: Apache-2.0
// context: entry into a device: calls that are refused on their way in, resets by others, contexts
// that are gone, and streams that are forgotten.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "context/without_user_objects.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CaptureMode;
using driver::CuResult;

constexpr std::size_t kRememberedStreams = 63;  // and what all streams together freed

void enter_new_context(PoolWorld& world) {
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
}

// A reset waits until no other call is inside.
TEST(Entrance, calls_that_are_refused_on_their_way_in_are_not_inside) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "resets");
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(kPage, stream), stream);
  for (const Call call : {Call::ctx_get_id, Call::ctx_get_current}) {
    world.faults().set_plan({{call}, 1, CuResult::invalid_value});
    expect_error(world.pool().allocate({kPage, 0, std::nullopt}), ErrorCode::driver_failed);
    EXPECT_EQ(world.faults().fired(), 1u) << driver::to_string(call);
    world.faults().clear_plan();
  }
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_new_context(world);
  EXPECT_TRUE(world.pool().streams().reset().ok());
  enter_new_context(world);
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
}

TEST(Entrance, that_cannot_make_the_context_current_changes_nothing) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(kPage, std::nullopt);
  const observe::Statistics before = world.statistics();
  ASSERT_EQ(world.sim().ctx_set_current(driver::ContextHandle{}), CuResult::success);
  world.faults().set_plan({{Call::ctx_set_current}, 1, CuResult::invalid_value});
  expect_error(world.pool().deallocate(ptr, std::nullopt), ErrorCode::driver_failed,
               {"ctx_set_current"});
  world.faults().clear_plan();
  EXPECT_EQ(world.statistics().live_allocations, before.live_allocations);
  driver::ContextHandle current{};
  ASSERT_EQ(world.sim().ctx_get_current(current), CuResult::success);
  EXPECT_EQ(current, driver::ContextHandle{});
  world.deallocate(ptr, std::nullopt);
}

TEST(Entrance, that_cannot_open_the_context_again_says_which_call_failed_and_tries_again) {
  for (const Call call : {Call::device_primary_ctx_retain, Call::ctx_get_id}) {
    SCOPED_TRACE(driver::to_string(call));
    PoolWorld world(page_world());
    const DevicePtr ptr = world.allocate(3 * kPage, std::nullopt);
    ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
    // The first question for the id finds the old one gone.
    world.faults().set_plan({{call}, call == Call::ctx_get_id ? 2U : 1U, CuResult::invalid_value});
    expect_error(world.pool().allocate({kPage, 0, std::nullopt}), ErrorCode::driver_failed,
                 {driver::to_string(call)});
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
    world.deallocate(ptr, std::nullopt);
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

// The driver keeps such a graph's end to itself, so the memory is the capture's until the reset.
TEST(ResetByOthers, gives_back_what_is_kept_for_graphs_of_the_context) {
  WorldWithoutUserObjects world;
  driver::sim::SimDriver& sim = world.sim;
  context::Context& pool = *world.pool;
  const StreamHandle stream = world.stream;
  ASSERT_EQ(sim.stream_begin_capture(stream, CaptureMode::relaxed), CuResult::success);
  const auto made = pool.allocate({4 * kPage, 0, stream});
  ASSERT_TRUE(made.ok()) << message_of(made);
  ASSERT_TRUE(pool.deallocate(made.value(), stream).ok());
  driver::GraphHandle graph{};
  ASSERT_EQ(sim.stream_end_capture(stream, graph), CuResult::success);
  const auto next = pool.allocate({4 * kPage, 0, std::nullopt});
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next.value(), made.value()) << "the graph may use it";
  ASSERT_TRUE(pool.deallocate(next.value(), std::nullopt).ok());
  ASSERT_EQ(sim.graph_destroy(graph), CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_reset(0), CuResult::success);
  world.enter();
  ASSERT_TRUE(pool.streams().synchronize().ok());
  ASSERT_TRUE(pool.limits().trim(0).ok());
  EXPECT_EQ(pool.reports().statistics().mapped_bytes, 0u);
  EXPECT_EQ(pool.reports().validate(), "");
}

// The capture broke, so it has no number by which its end would be known.
TEST(ResetByOthers, ends_captures_that_broke) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  begin_capture(world, stream, CaptureMode::relaxed);
  ASSERT_NE(world.sim().stream_synchronize(stream), CuResult::success);
  static_cast<void>(world.pool().allocate({kPage, 0, stream}));
  EXPECT_TRUE(world.pool().streams().is_capturing());
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_new_context(world);
  EXPECT_FALSE(world.pool().streams().is_capturing());
  world.wait();
  auto bound = world.pool().bind(world.stream());
  ASSERT_TRUE(bound.ok()) << message_of(bound);
  ASSERT_TRUE(bound.value()->deallocate(bound.value()->allocate(1000, 0).value()).ok());
  EXPECT_FALSE(is_null(bound.value()->try_allocate(1000, 0))) << "a capture is still known";
}

TEST(ResetByOthers, leaves_guarded_memory_and_forgets_what_the_driver_had_in_its_pool) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(3 * kPage, stream);
  world.use(first, 3 * kPage, stream);
  const DevicePtr second = world.allocate(2 * kPage, stream);
  world.use(second, 2 * kPage, stream);
  world.deallocate(second, stream);
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  enter_new_context(world);
  const StreamHandle next = world.stream();
  world.deallocate(world.allocate(1000, next), next);
  world.deallocate(first, next);
  world.wait();
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

TEST(Entrance, that_cannot_ask_for_the_context_of_another_device_is_refused) {
  WorldOptions options = page_world();
  options.sim.device_count = 2;
  PoolWorld world(options);
  driver::ContextHandle near{}, far{};
  ASSERT_EQ(world.sim().ctx_get_current(near), CuResult::success);
  ASSERT_EQ(world.sim().device_primary_ctx_retain(1, far), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(far), CuResult::success);
  const StreamHandle foreign = world.stream();
  ASSERT_EQ(world.sim().ctx_set_current(near), CuResult::success);
  const DevicePtr ptr = world.allocate(3 * kPage, foreign);
  world.faults().set_plan({{Call::ctx_get_id}, 2, CuResult::invalid_value});
  expect_error(world.pool().deallocate(ptr, foreign), ErrorCode::driver_failed, {"ctx_get_id"});
  EXPECT_EQ(world.faults().fired(), 1u);
  world.faults().clear_plan();
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  world.deallocate(ptr, foreign);
}

TEST(Entrance, a_use_of_a_stream_that_is_being_captured_waits_for_every_stream) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream(), b = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  begin_capture(world, b, CaptureMode::relaxed);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.use(ptr, 4 * kPage, b);
  world.deallocate(ptr, a);
  const driver::GraphHandle graph = end_capture(world, b);
  const std::string stamp = world.pool().reports().snapshot().regions.front().stamp;
  EXPECT_NE(stamp.find("any stream"), std::string::npos) << stamp;
  EXPECT_EQ(stamp.find(" and "), stamp.find("up to ") + 7) << stamp;
  expect_error(world.pool().record_use(ptr, a), ErrorCode::invalid_pointer);
  destroy(world, graph);
}

// --- many streams

class ManyStreams : public ::testing::TestWithParam<bool> {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.pool_enabled = GetParam();
    return options;
  }
  ManyStreams() : world(options()) {
    for (int i = 0; i < 100; ++i) streams.push_back(world.stream());
  }
  void pair(Bytes bytes, StreamHandle stream) {
    world.deallocate(world.allocate(bytes, stream), stream);
  }

  PoolWorld world;
  std::vector<StreamHandle> streams;
};
INSTANTIATE_TEST_SUITE_P(With, ManyStreams, ::testing::Bool(), [](const auto& each) {
  return each.param ? "a_pool" : "the_drivers_pool_alone";
});

TEST_P(ManyStreams, are_forgotten_with_and_without_a_pool_of_our_own) {
  for (const StreamHandle stream : streams) pair(1000, stream);
  world.sim().advance_host_ns(kLongNs);
  world.wait();
  for (int i = 0; i < 20; ++i) pair(9 * kPage, streams[0]);
  EXPECT_LE(world.statistics().timelines, kRememberedStreams + 1);
  EXPECT_GE(world.statistics().timelines, kRememberedStreams - 1);
  for (const StreamHandle stream : streams) pair(1000, stream);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  // Their caches have ended with them, so a reset finds none.
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_new_context(world);
  pair(1000, world.stream());
  EXPECT_EQ(world.pool().reports().validate(), "");
}

// Hysteresis: 63 streams are left, which are fewer than make caches bounded.
TEST(CachesOfManyStreams, stay_bounded_until_half_as_many_are_left) {
  PoolWorld world(adaptive_world());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 100; ++i) streams.push_back(world.stream());
  const auto free_pages_of_each = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const DevicePtr pair[] = {world.allocate(4 * kPage, streams[i]),
                                world.allocate(4 * kPage, streams[i])};
      for (const DevicePtr each : pair) world.deallocate(each, streams[i]);
    }
  };
  free_pages_of_each(streams.size());
  world.wait();
  for (int i = 0; i < 20; ++i) world.deallocate(world.allocate(9 * kPage, streams[0]), streams[0]);
  ASSERT_LE(world.statistics().timelines, 64u);
  free_pages_of_each(1);
  EXPECT_LE(world.statistics().cached_bytes, world.statistics().mapped_bytes / 100);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  enter_new_context(world);
  for (std::size_t i = 0; i < 20; ++i) streams[i] = world.stream();
  free_pages_of_each(20);
  EXPECT_GE(world.statistics().cached_bytes, 8 * kPage) << "all of the last";
}

// Each stream has as much pending as is live, and not more.
TEST(PendingOfManyStreams, is_proven_only_if_it_is_more_than_what_is_in_use) {
  constexpr Bytes kEach = 9 * kPage;  // more than a cache keeps
  PoolWorld world(adaptive_world());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 100; ++i) streams.push_back(world.stream());
  std::vector<DevicePtr> stay, go;
  for (std::vector<DevicePtr>* const all : {&stay, &go})
    for (const StreamHandle stream : streams) {
      all->push_back(world.allocate(kEach, stream));
      world.use(all->back(), kEach, stream, kLongNs);
    }
  for (std::size_t i = 0; i < streams.size(); ++i) world.deallocate(go[i], streams[i]);
  const auto proofs = [&] { return world.calls().count(Call::ctx_record_event); };
  const std::uint64_t before = proofs();
  EXPECT_EQ(world.statistics().pending_bytes, 100 * kEach);
  for (int i = 0; i < 10; ++i) world.deallocate(world.allocate(kEach, streams[0]), streams[0]);
  EXPECT_EQ(world.statistics().pending_bytes, 100 * kEach);
  EXPECT_EQ(proofs(), before) << "as much is in use";
  world.deallocate(stay[1], streams[1]);
  world.deallocate(world.allocate(kEach, streams[0]), streams[0]);
  EXPECT_EQ(proofs(), before + 1);
}

}  // namespace
}  // namespace vpmm::test
