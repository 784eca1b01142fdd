// SPDX-License-Identifier: Apache-2.0
// context: memory whose users name no stream, in each of the three ways to prove it complete.
#include <gtest/gtest.h>

#include <vector>

#include "fault/no_memory.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

WorldOptions with(settings::AnyStreamOrder order) {
  WorldOptions options = page_world();
  options.config.streams.any_stream = order;
  return options;
}

TEST(AnyStream, gets_complete_or_new_memory_only) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const DevicePtr pending = world.allocate(4 * kPage, a);
  world.use(pending, 4 * kPage, a, kLongNs);
  world.deallocate(pending, a);
  const DevicePtr fresh = world.allocate(4 * kPage, std::nullopt);
  EXPECT_NE(fresh, pending);
  for (const StreamHandle stream : {world.stream(), world.stream(StreamFlags::blocking), a}) {
    world.use(fresh, kPage, stream);
    ASSERT_EQ(world.sim().stream_synchronize(stream), driver::CuResult::success);
  }
  world.deallocate(fresh, std::nullopt);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
}

TEST(AnyStream, a_free_is_closed_by_a_context_event_and_waits_for_every_stream) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.use(ptr, 4 * kPage, a, kLongNs);
  world.deallocate(ptr, std::nullopt);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 1u);
  EXPECT_NE(world.allocate(4 * kPage, std::nullopt), ptr);
  world.sim().advance_host_ns(2 * kLongNs);
  EXPECT_EQ(world.allocate(4 * kPage, world.stream()), ptr);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST(AnyStream, nobody_waits_on_the_gpu_for_a_context_event) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  world.use(ptr, 4 * kPage, a, kLongNs);
  world.deallocate(ptr, std::nullopt);
  const DevicePtr next = world.allocate(4 * kPage, world.stream());
  EXPECT_NE(next, ptr);
  EXPECT_EQ(world.calls().count(Call::stream_wait_event), 0u);
}

TEST(AnyStream, legacy_mode_closes_by_the_legacy_stream_which_waits_for_blocking_streams_only) {
  PoolWorld world(with(settings::AnyStreamOrder::legacy));
  const StreamHandle blocking = world.stream(StreamFlags::blocking);
  const StreamHandle non_blocking = world.stream();
  const DevicePtr elsewhere = world.allocate(4 * kPage, non_blocking);
  world.use(elsewhere, 4 * kPage, non_blocking, 100 * kLongNs);
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.use(ptr, 4 * kPage, blocking, kLongNs);
  world.deallocate(ptr, std::nullopt);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  const DevicePtr too_early = world.allocate(4 * kPage, std::nullopt);
  EXPECT_NE(too_early, ptr);
  world.sim().advance_host_ns(2 * kLongNs);
  EXPECT_EQ(world.allocate(4 * kPage, std::nullopt), ptr) << "the non-blocking stream still runs";
}

TEST(AnyStream, legacy_mode_records_one_event_at_a_large_free_of_any_kind) {
  for (const bool has_streams : {false, true}) {
    PoolWorld world(with(settings::AnyStreamOrder::legacy));
    const DevicePtr ptr =
        world.allocate(4 * kPage, has_streams ? pool::Stream(world.stream()) : pool::Stream());
    for (int i = 0; has_streams && i < 3; ++i)
      ASSERT_TRUE(world.pool().record_use(ptr, world.stream()).ok());
    const auto recorded = [&] {
      return std::pair(world.calls().count(Call::event_record),
                       world.calls().count(Call::ctx_record_event));
    };
    EXPECT_EQ(recorded(), std::pair(std::uint64_t{0}, std::uint64_t{0}));
    world.deallocate(ptr, std::nullopt);
    EXPECT_EQ(recorded(), has_streams ? std::pair(std::uint64_t{0}, std::uint64_t{1})
                                      : std::pair(std::uint64_t{1}, std::uint64_t{0}));
    world.wait();
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
  }
}

// The legacy stream does not wait for the stream of the request.
TEST(AnyStream, legacy_mode_waits_for_the_stream_of_many_that_the_driver_refuses_to_take_back) {
  WorldOptions options = with(settings::AnyStreamOrder::legacy);
  options.sim.vmm_supported = false;
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.use(world.allocate(1000, stream), 1000, stream, kLongNs);
  // After the memory beyond the capacity.
  world.faults().set_plan({{Call::mem_free_async}, 2, driver::CuResult::invalid_value});
  std::vector<DevicePtr> made(2);
  expect_error(world.pool().allocate_many(std::vector<Bytes>{1000, 100 * kPage}, stream, made),
               ErrorCode::out_of_memory);
  world.faults().clear_plan();
  world.pool().limits().set_capacity(std::nullopt);
  world.allocate(1000, world.stream());
  world.wait();
  EXPECT_EQ(world.statistics().live_allocations, 2u);
}

TEST(AnyStream, legacy_mode_waits_for_the_stream_of_a_refused_free_that_is_repeated_without_it) {
  for (const bool is_deferred : {false, true}) {
    WorldOptions options = with(settings::AnyStreamOrder::legacy);
    options.sim.vmm_supported = false;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = world.allocate(1000, stream);
    world.use(ptr, 1000, stream, kLongNs);
    world.faults().set_plan({{Call::mem_free_async}, 1, driver::CuResult::invalid_value});
    expect_error(world.pool().deallocate(ptr, stream), ErrorCode::driver_failed);
    world.faults().clear_plan();
    ASSERT_EQ(world.sim().stream_destroy(stream), driver::CuResult::success);
    if (is_deferred)
      world.pool().deallocate_deferred(ptr);
    else
      world.deallocate(ptr, std::nullopt);
    world.allocate(1000, world.stream());
  }
}

TEST(AnyStream, a_deferred_free_waits_for_the_stream_that_it_named_when_host_memory_was_short) {
  WorldOptions allocating = page_world();
  allocating.config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  for (const WorldOptions& options : {with(settings::AnyStreamOrder::legacy), allocating}) {
    PoolWorld world(options);
    const StreamHandle other = world.stream();
    const DevicePtr ptr = world.allocate(4 * kPage, other);
    ASSERT_EQ(world.sim().ctx_synchronize(), driver::CuResult::success);
    const StreamHandle stream = world.stream();
    world.use(ptr, 4 * kPage, stream, kLongNs);
    {
      const fault::NoMemory none(fault::NoMemory::Reserve::promised);
      expect_error(world.pool().deallocate(ptr, stream), ErrorCode::host_out_of_memory);
      world.pool().deallocate_deferred(ptr);
    }
    world.allocate(kPage, other);  // carries out the free
    world.sim().advance_host_ns(1'000'000);
    world.use(world.allocate(4 * kPage, other), 4 * kPage, other);
  }
}

TEST(AnyStream, legacy_mode_stays_as_it_is_after_a_wrong_free) {
  PoolWorld world(with(settings::AnyStreamOrder::legacy));
  expect_error(world.pool().deallocate(DevicePtr{0x42}, world.stream()),
               ErrorCode::invalid_pointer);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
}

TEST(AnyStream, park_mode_records_nothing_and_waits_for_an_explicit_synchronisation) {
  PoolWorld world(with(settings::AnyStreamOrder::park));
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.deallocate(ptr, std::nullopt);
  world.sim().advance_host_ns(kLongNs);
  EXPECT_NE(world.allocate(4 * kPage, std::nullopt), ptr);
  EXPECT_EQ(world.statistics().events_recorded, 0u);
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, std::nullopt), ptr);
}

TEST(AnyStream, pending_memory_is_capped_by_waiting_for_the_oldest_event_on_the_host) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  for (int i = 0; i < 40; ++i) {
    const DevicePtr ptr = world.allocate(8 * kPage, std::nullopt);
    world.use(ptr, 8 * kPage, a, kLongNs);
    world.deallocate(ptr, std::nullopt);
    EXPECT_LE(world.statistics().pending_bytes, 64 * kMiB);
  }
  EXPECT_GT(world.statistics().host_waits, 0u);
  EXPECT_LE(world.statistics().peak_mapped_bytes, 64 * kMiB + 16 * kPage);
}

// A fifth of what is allocated, or 64 MiB.
TEST(AnyStream, one_event_is_waited_for_where_more_than_the_cap_is_pending) {
  struct Case {
    Bytes live, freed;  // pages
    std::uint64_t waits;
  };
  for (const Case& each : {Case{0, 32, 0}, Case{0, 33, 1}, Case{400, 80, 0}, Case{400, 81, 1}}) {
    PoolWorld world(page_world());
    const StreamHandle stream = world.stream();
    if (each.live > 0) world.allocate(each.live * kPage, stream);
    const DevicePtr ptr = world.allocate(each.freed * kPage, std::nullopt);
    world.use(ptr, each.freed * kPage, stream, kLongNs);
    const std::uint64_t queries = world.calls().count(Call::event_query);
    world.deallocate(ptr, std::nullopt);
    EXPECT_EQ(world.statistics().host_waits, each.waits) << each.live << " " << each.freed;
    EXPECT_EQ(world.calls().count(Call::event_synchronize), each.waits);
    EXPECT_LT(world.calls().count(Call::event_query) - queries, 5u);
    EXPECT_EQ(world.statistics().pending_bytes, each.waits == 0 ? each.freed * kPage : 0);
  }
}

// Its event is older than the capture, which the pool does not know.
TEST(AnyStream, the_wait_for_the_cap_breaks_no_capture_of_the_thread) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr much = world.allocate(50 * kPage, std::nullopt);
  const DevicePtr later = world.allocate(6 * kPage, stream);
  world.use(much, 50 * kPage, stream, kLongNs);
  world.pool().limits().defer_cleanup_begin();
  world.deallocate(much, std::nullopt);
  ASSERT_EQ(world.statistics().host_waits, 0u);
  const StreamHandle capturing = world.stream();
  begin_capture(world, capturing, driver::CaptureMode::global);
  ASSERT_TRUE(world.pool().limits().defer_cleanup_end().ok());
  world.deallocate(later, stream);
  EXPECT_EQ(world.statistics().host_waits, 1u);
  destroy(world, end_capture(world, capturing));
}

TEST(AnyStream, nobody_waits_where_what_is_complete_leaves_little_pending) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr mine = world.allocate(kPage, stream);
  const DevicePtr much = world.allocate(50 * kPage, std::nullopt);
  world.allocate(kPage, stream);  // what lies side by side is complete at once
  const DevicePtr little = world.allocate(20 * kPage, std::nullopt);
  world.use(much, 50 * kPage, stream);
  world.pool().limits().defer_cleanup_begin();
  world.deallocate(much, std::nullopt);
  world.sim().advance_host_ns(1'000'000);
  const StreamHandle other = world.stream();
  world.use(little, 20 * kPage, other, kLongNs);
  world.deallocate(little, std::nullopt);
  ASSERT_TRUE(world.pool().limits().defer_cleanup_end().ok());
  world.deallocate(mine, stream);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST(AnyStream, without_context_events_the_cap_synchronises) {
  WorldOptions options = page_world();
  options.sim.context_events_supported = false;
  PoolWorld world(options);
  const StreamHandle a = world.stream();
  for (int i = 0; i < 20; ++i) {
    const DevicePtr ptr = world.allocate(8 * kPage, std::nullopt);
    world.use(ptr, 8 * kPage, a);
    world.deallocate(ptr, std::nullopt);
    EXPECT_LE(world.statistics().pending_bytes, 64 * kMiB);
  }
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  EXPECT_GT(world.calls().count(Call::ctx_synchronize), 0u);
}

TEST(AnyStream, park_mode_has_no_cap) {
  PoolWorld world(with(settings::AnyStreamOrder::park));
  for (int i = 0; i < 10; ++i)
    world.deallocate(world.allocate(8 * kPage, std::nullopt), std::nullopt);
  EXPECT_EQ(world.statistics().host_waits, 0u);
  EXPECT_EQ(world.statistics().pending_bytes, 80 * kPage);
}

TEST(AnyStream, several_small_frees_share_one_event) {
  PoolWorld world(adaptive_world());
  std::vector<DevicePtr> live;
  for (int i = 0; i < 12; ++i) live.push_back(world.allocate(1000, std::nullopt));
  for (const DevicePtr ptr : live) world.deallocate(ptr, std::nullopt);
  EXPECT_LE(world.calls().count(Call::ctx_record_event), 1u);
  world.wait();
}

TEST(AnyStream, small_memory_may_be_used_on_any_stream_at_once) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(1000, std::nullopt);
  world.use(ptr, 1000, world.stream());
  world.deallocate(ptr, std::nullopt);
  const DevicePtr next = world.allocate(1000, std::nullopt);
  world.use(next, 1000, world.stream());
}

}  // namespace
}  // namespace vpmm::test
