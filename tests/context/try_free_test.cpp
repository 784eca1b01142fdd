// SPDX-License-Identifier: Apache-2.0
// context: a free that only tries: it asks the driver about its stream, waits for nothing, and
// leaves the rest to the next call (Note [A try takes what is there]).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using settings::AnyStreamOrder;

constexpr Bytes kLarge = 4 * kPage;  // enough for an event to be due, if others missed

struct Setting {
  const char* name;
  void (*set)(settings::Config& config);
};

constexpr std::array<Setting, 8> kSettings{{
    {"default", [](settings::Config&) {}},
    {"threshold", [](settings::Config& config) { config.limits.release_threshold = 0; }},
    {"legacy",
     [](settings::Config& config) { config.streams.any_stream = AnyStreamOrder::legacy; }},
    {"park", [](settings::Config& config) { config.streams.any_stream = AnyStreamOrder::park; }},
    {"footprint", [](settings::Config& config) { config.prefer = settings::Prefer::footprint; }},
    {"latency", [](settings::Config& config) { config.prefer = settings::Prefer::latency; }},
    {"pages", [](settings::Config& config) { config.page_chunks = true; }},
    {"stream_ordered",
     [](settings::Config& config) { config.small = settings::SmallRequests::stream_ordered; }},
}};

WorldOptions world_with(const Setting& setting) {
  WorldOptions options = adaptive_world();
  options.sim.device_count = 2;
  setting.set(options.config);
  return options;
}

class TryFree : public ::testing::TestWithParam<Setting> {
 protected:
  // Whether it was freed. Counts every driver call that this takes.
  bool try_free(DevicePtr ptr) {
    std::vector<std::uint64_t> before;
    for (std::size_t call = 0; call < driver::kCallCount; ++call) before.push_back(count(call));
    const std::uint64_t began_ns = world.sim().now_ns();
    const bool is_freed = world.pool().deallocate_if_ready(ptr, stream);
    EXPECT_LE(world.sim().now_ns(), began_ns + 1'000) << "it waited";
    for (std::size_t call = 0; call < driver::kCallCount; ++call) {
      const bool is_about_the_stream = static_cast<Call>(call) == Call::stream_is_capturing ||
                                       static_cast<Call>(call) == Call::stream_get_id;
      EXPECT_LE(count(call), before[call] + (is_about_the_stream ? 1 : 0))
          << driver::to_string(static_cast<Call>(call));
    }
    return is_freed;
  }
  std::uint64_t count(std::size_t call) { return world.calls().count(static_cast<Call>(call)); }
  // So that the frees of all others are worth an event.
  void miss(Bytes bytes) {
    const DevicePtr ptr = world.allocate(bytes, other);
    world.use(ptr, bytes, other);
    world.deallocate(ptr, other);
    world.sim().advance_host_ns(1'000'000);
  }
  // With one chunk per page no cache keeps whole pages.
  bool is_cached() { return !world.pool().config().page_chunks; }
  void try_many() {
    int freed = 0;
    for (Bytes i = 0; i < 20; ++i) {
      miss((20 + i) * kPage);
      const DevicePtr ptr = world.allocate(kLarge, stream);
      world.use(ptr, kLarge, stream);
      if (try_free(ptr))
        ++freed;
      else
        world.deallocate(ptr, stream);
    }
    EXPECT_EQ(freed, is_cached() ? 20 : 0);
  }

  PoolWorld world{world_with(GetParam())};
  StreamHandle stream = world.stream();
  StreamHandle other = world.stream();
};

TEST_P(TryFree, asks_the_driver_about_the_stream_only) { try_many(); }

TEST_P(TryFree, leaves_what_is_pending_for_any_stream_to_the_next_call) {
  const Bytes pending = 200 * kMiB;
  const DevicePtr ptr = world.allocate(pending, std::nullopt);
  world.use(ptr, pending, world.stream(StreamFlags::blocking), kLongNs);
  const DevicePtr mine = world.allocate(kLarge, stream);
  world.sim().advance_host_ns(1'000'000);
  world.pool().limits().defer_cleanup_begin();
  world.deallocate(ptr, std::nullopt);
  world.deallocate(world.allocate(40 * kPage, other), other);
  ASSERT_TRUE(world.pool().limits().defer_cleanup_end().ok());
  EXPECT_EQ(try_free(mine), is_cached());
  world.deallocate(world.allocate(kPage, stream), stream);
  if (GetParam().set == kSettings[3].set) return;  // which promises no bound
  EXPECT_LE(world.statistics().pending_bytes, 64 * kMiB + kLarge + 41 * kPage);
}

TEST_P(TryFree, of_memory_of_two_gpus_asks_no_more) {
  if (GetParam().set == kSettings[7].set) return;  // refuses peers
  ASSERT_TRUE(world.pool().sharing().set_peer_access(1).ok());
  try_many();
}

TEST_P(TryFree, of_a_recorded_pool_asks_no_more) {
  const std::string path = ::testing::TempDir() + "try_free_" + GetParam().name + ".csv.gz";
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  try_many();
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  std::filesystem::remove(path);
}

TEST_P(TryFree, beside_a_capture_asks_no_more_and_breaks_none) {
  const StreamHandle captured = world.stream();
  const DevicePtr before = world.allocate(kLarge, stream);
  begin_capture(world, captured, driver::CaptureMode::global);
  world.allocate(kPage, captured);
  EXPECT_EQ(try_free(before), is_cached());
  const DevicePtr inside = world.allocate(kLarge, captured);
  EXPECT_FALSE(world.pool().deallocate_if_ready(inside, captured));
  world.deallocate(inside, captured);
  destroy(world, end_capture(world, captured));
}

INSTANTIATE_TEST_SUITE_P(Settings, TryFree, ::testing::ValuesIn(kSettings),
                         [](const auto& each) { return std::string(each.param.name); });

// The stream's next call records the event that others want, whoever allocates or frees then.
TEST(TryFreeThen, the_next_call_of_the_stream_records_the_event) {
  for (const bool is_free : {false, true}) {
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    const StreamHandle other = world.stream();
    const DevicePtr first = world.allocate(kLarge, stream);
    const DevicePtr second = world.allocate(kLarge, stream);
    world.deallocate(world.allocate(20 * kPage, other), other);
    world.sim().advance_host_ns(1'000'000);
    const std::uint64_t events = world.statistics().events_recorded;
    ASSERT_TRUE(world.pool().deallocate_if_ready(first, stream));
    EXPECT_EQ(world.statistics().events_recorded, events);
    EXPECT_FALSE(world.pool().deallocate_if_ready(second, stream))
        << "the call that may wait is due";
    EXPECT_TRUE(is_null(world.pool().allocate_if_ready(kLarge, 0, stream)));
    if (is_free)
      world.deallocate(second, stream);
    else
      world.allocate(kLarge, stream);
    EXPECT_EQ(world.statistics().events_recorded, events + 1);
  }
}

TEST(TryFreeThen, the_next_call_keeps_the_threshold) {
  WorldOptions options = adaptive_world();
  options.config.limits.release_threshold = 0;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> all;
  for (int i = 0; i < 50; ++i) all.push_back(world.allocate(kLarge, stream));
  for (const DevicePtr ptr : all) ASSERT_TRUE(world.pool().deallocate_if_ready(ptr, stream));
  EXPECT_EQ(world.statistics().mapped_bytes, 50 * kLarge);
  world.wait();
  world.deallocate(world.allocate(9 * kPage, stream), stream);
  EXPECT_LE(world.statistics().mapped_bytes, 12 * kPage);
}

TEST(WarmFree, that_records_an_event_keeps_the_threshold) {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;  // each free of a page is worth an event
  options.config.limits.release_threshold = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr large = world.allocate(64 * kPage, stream);
  const DevicePtr warm = world.allocate(kPage, stream);
  world.use(large, 64 * kPage, stream, kLongNs);
  world.deallocate(large, stream);
  ASSERT_GE(world.statistics().mapped_bytes, 64 * kPage);
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(warm, stream);
  EXPECT_LE(world.statistics().mapped_bytes, 8 * kPage);
}

// One thread is inside the driver, and another waits for it to end, so that it can reset the
// context. Who comes now through the pool's lock waits for both.
TEST(TryFreeThen, nobody_waits_for_a_reset) {
  HookedWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  const DevicePtr ptr = world.allocate(kLarge, stream);
  world.deallocate(world.allocate(20 * kPage, other), other);
  world.sim.advance_host_ns(1'000'000);
  std::atomic<bool> is_waiting{false};
  bool is_freed = false;
  std::thread resetter;
  world.hooks.on[Call::ctx_synchronize] = [&] {
    is_waiting = true;
    return CuResult::success;
  };
  world.hooks.on[Call::mem_create] = [&] {
    if (resetter.joinable()) return CuResult::success;
    resetter = std::thread([&] {
      EXPECT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
      static_cast<void>(world.pool->streams().reset());
    });
    while (!is_waiting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_freed = world.pool->deallocate_if_ready(ptr, stream);
    return CuResult::success;
  };
  world.allocate(60 * kPage, other);
  resetter.join();
  EXPECT_TRUE(is_freed);
}

TEST(TryFree, on_a_bound_stream_leaves_nothing_to_the_free) {
  PoolWorld world(adaptive_world());
  const auto bound = world.pool().bind(world.stream());
  ASSERT_TRUE(bound.ok());
  EXPECT_FALSE(bound.value()->try_deallocate(DevicePtr{}));
  EXPECT_TRUE(bound.value()->deallocate_beyond(DevicePtr{}).ok());
}

}  // namespace
}  // namespace vpmm::test
