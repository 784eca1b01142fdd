// SPDX-License-Identifier: Apache-2.0
// context: figures of memory that a pool holds beside its own chunks: trims, peaks, limits.
#include <gtest/gtest.h>

#include <vector>

#include "support/event_log.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

WorldOptions beside_the_drivers_pool() {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  return options;
}

WorldOptions of_the_drivers_pool_alone() {
  WorldOptions options = adaptive_world();
  options.sim.vmm_supported = false;
  return options;
}

WorldOptions guarding() {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  return options;
}

// --- a trim

TEST(GivingBack, returns_and_tells_all_that_went_back) {
  for (const WorldOptions& options :
       {page_world(), beside_the_drivers_pool(), of_the_drivers_pool_alone(), guarding()}) {
    PoolWorld world(options);
    const EventLog log(world.pool(), bit_of(EventKind::trim));
    const StreamHandle stream = world.stream();
    const DevicePtr pages = world.allocate(5 * kPage, stream);
    const DevicePtr small = world.allocate(1000, stream);
    world.deallocate(pages, stream);
    world.deallocate(small, stream);
    ASSERT_EQ(world.sim().ctx_synchronize(), CuResult::success);
    const Bytes held = world.statistics().mapped_bytes;
    ASSERT_GT(held, kPage);
    const auto released = world.pool().limits().trim(0);
    ASSERT_TRUE(released.ok()) << message_of(released);
    EXPECT_EQ(released.value() + world.statistics().mapped_bytes, held);
    ASSERT_FALSE(log.events().empty());
    EXPECT_EQ(log.events().back().bytes, released.value());
    EXPECT_EQ(world.pool().limits().trim(0).value(), 0u);
  }
}

TEST(GivingBack, asks_the_driver_about_captures_only_where_work_is_unproven) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(12 * kPage, stream);
  const auto asked = [&] {
    const std::uint64_t before = world.calls().count(Call::stream_is_capturing);
    EXPECT_TRUE(world.pool().limits().trim(0).ok());
    return world.calls().count(Call::stream_is_capturing) - before;
  };
  EXPECT_EQ(asked(), 0u);
  world.deallocate(ptr, stream);
  EXPECT_GT(asked(), 0u);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 1u);
}

TEST(GivingBack, takes_idle_chunks_of_arenas) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr live = allocate_in(world, arena, 3 * kPage, stream);
  const DevicePtr freed = allocate_in(world, arena, 5 * kPage, stream);
  world.deallocate(freed, stream);
  world.wait();
  const Bytes held = world.statistics().mapped_bytes;
  const auto released = world.pool().limits().trim(0);
  ASSERT_TRUE(released.ok()) << message_of(released);
  EXPECT_EQ(released.value(), held - 3 * kPage);
  EXPECT_EQ(world.statistics().mapped_bytes, 3 * kPage);
  world.deallocate(live, stream);
}

// --- peaks

TEST(GivingBack, leaves_the_peak_of_what_was_held_beside_the_chunks) {
  for (const WorldOptions& options :
       {beside_the_drivers_pool(), of_the_drivers_pool_alone(), guarding()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const DevicePtr pages = world.allocate(3 * kPage, stream);
    const DevicePtr small = world.allocate(1000, stream);
    const Bytes held = world.statistics().mapped_bytes;
    world.deallocate(pages, stream);
    world.deallocate(small, stream);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
    EXPECT_EQ(world.statistics().peak_mapped_bytes, held);
    world.pool().reports().reset_peaks();
    EXPECT_EQ(world.statistics().peak_mapped_bytes, 0u);
    EXPECT_EQ(world.statistics().peak_live_bytes, 0u);
  }
}

TEST(GivingBack, leaves_the_peak_of_a_preallocation_beside_the_drivers_pool) {
  PoolWorld world(beside_the_drivers_pool());
  world.allocate(1000, world.stream());
  const Bytes beside = world.statistics().stream_ordered_bytes;
  ASSERT_TRUE(world.pool().limits().preallocate(6 * kPage).ok());
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, beside);
  EXPECT_EQ(world.statistics().peak_mapped_bytes, beside + 6 * kPage);
}

// Idle pages go back for growth of the driver's pool beyond the largest footprint so far only.
TEST(GivingBack, pays_no_growth_of_the_drivers_pool_below_the_peak) {
  for (const Bytes peak : {400 * kPage, 4 * kPage}) {
    PoolWorld world(beside_the_drivers_pool());
    const StreamHandle stream = world.stream();
    ASSERT_TRUE(world.pool().limits().preallocate(peak).ok());
    ASSERT_TRUE(world.pool().limits().trim(4 * kPage).ok());
    world.allocate(1000, stream);
    const observe::Statistics now = world.statistics();
    ASSERT_GT(now.stream_ordered_bytes, 0u);
    ASSERT_LT(now.stream_ordered_bytes, 300 * kPage);
    const Bytes paid = peak == 4 * kPage ? now.stream_ordered_bytes : 0;
    EXPECT_EQ(now.mapped_bytes - now.stream_ordered_bytes, 4 * kPage - paid);
  }
}

TEST(GivingBack, pays_no_growth_of_the_drivers_pool_while_cleanup_is_deferred) {
  PoolWorld world(beside_the_drivers_pool());
  const StreamHandle stream = world.stream();
  ASSERT_TRUE(world.pool().limits().preallocate(4 * kPage).ok());
  world.pool().limits().defer_cleanup_begin();
  world.allocate(1000, stream);
  const observe::Statistics now = world.statistics();
  EXPECT_EQ(now.mapped_bytes - now.stream_ordered_bytes, 4 * kPage);
  ASSERT_TRUE(world.pool().limits().defer_cleanup_end().ok());
}

// --- a reset by others

TEST(GivingBack, is_not_asked_of_a_drivers_pool_that_died_with_its_context) {
  for (WorldOptions options : {beside_the_drivers_pool(), of_the_drivers_pool_alone()}) {
    options.config.limits.capacity = 64 * kMiB;
    PoolWorld world(options);
    world.allocate(1000, world.stream());
    ASSERT_GT(world.statistics().mapped_bytes, 0u);
    ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
    driver::ContextHandle context{};
    ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
    ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    const auto info = world.pool().limits().memory_info();
    ASSERT_TRUE(info.ok()) << message_of(info);
    EXPECT_EQ(info.value().free, 64 * kMiB);
    EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
    if (options.sim.vmm_supported) world.allocate(64 * kMiB, world.stream());
  }
}

// --- the threshold

TEST(GivingBack, leaves_cached_memory_alone_at_the_threshold_itself) {
  for (const Bytes threshold : {9 * kPage, 8 * kPage}) {
    WorldOptions options = page_by_page_world();
    options.config.limits.release_threshold = threshold;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const DevicePtr cached = world.allocate(2 * kPage, stream);
    world.allocate(2 * kPage, stream);
    const DevicePtr large = world.allocate(5 * kPage, stream);
    world.deallocate(cached, stream);
    world.deallocate(large, stream);
    EXPECT_EQ(world.statistics().mapped_bytes, 9 * kPage) << "no work is proven";
    const bool is_kept = !is_null(world.pool().allocate_if_ready(2 * kPage, 0, stream));
    EXPECT_EQ(is_kept, threshold == 9 * kPage);
  }
}

// The rest of a chunk in use is idle, and cannot go back.
TEST(GivingBack, tells_of_no_trim_above_the_threshold_that_gives_nothing_back) {
  WorldOptions options = adaptive_world();
  options.config.limits.release_threshold = 0;
  PoolWorld world(options);
  const EventLog log(world.pool(), bit_of(EventKind::trim));
  const StreamHandle stream = world.stream();
  const DevicePtr live = world.allocate(kPage, stream);
  ASSERT_GT(world.statistics().mapped_bytes, kPage);
  for (int i = 0; i < 3; ++i) world.deallocate(world.allocate(kPage, stream), std::nullopt);
  EXPECT_TRUE(log.events().empty());
  const Bytes held = world.statistics().mapped_bytes;
  world.deallocate(live, std::nullopt);
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(world.allocate(16 * kPage, stream), stream);
  ASSERT_FALSE(log.events().empty());
  EXPECT_EQ(log.events().front().bytes, held);
}

// --- the memory that is left

TEST(MemoryInfo, is_within_the_capacity_and_what_the_gpu_has) {
  WorldOptions options = page_world();
  options.sim.capacity = 100 * kPage;
  options.sim.used_by_others = 10 * kPage + 1;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  struct Case {
    std::optional<Bytes> capacity;
    Bytes free;
    Bytes total;
  };
  const auto expect = [&](const Case& each) {
    world.pool().limits().set_capacity(each.capacity);
    const auto info = world.pool().limits().memory_info();
    ASSERT_TRUE(info.ok()) << message_of(info);
    EXPECT_EQ(info.value().free / kPage, each.free) << each.capacity.value_or(0);
    EXPECT_EQ(info.value().free % kPage, 0u) << "no request takes part of a page";
    EXPECT_EQ(info.value().total / kPage, each.total) << each.capacity.value_or(0);
  };
  expect({std::nullopt, 89, 100});
  expect({8 * kPage, 8, 8});
  expect({200 * kPage, 89, 100});
  const DevicePtr live = world.allocate(3 * kPage, stream);
  expect({std::nullopt, 86, 100});
  expect({8 * kPage, 5, 8});
  expect({2 * kPage, 0, 2});
  world.deallocate(live, stream);
  expect({2 * kPage, 2, 2});
}

TEST(MemoryInfo, of_the_drivers_pool_alone_is_exact_to_the_byte) {
  WorldOptions options = of_the_drivers_pool_alone();
  options.sim.capacity = 100 * kPage;
  options.sim.used_by_others = 10 * kPage + 1;
  PoolWorld world(options);
  EXPECT_EQ(world.pool().limits().memory_info().value().free, 90 * kPage - 1);
}

TEST(Capacity, of_a_share_is_exact_where_there_are_no_pages) {
  WorldOptions options = of_the_drivers_pool_alone();
  options.sim.capacity = 10 * kPage;
  options.config.limits.capacity_percent = 33;
  PoolWorld world(options);
  ASSERT_NE(10 * kPage * 33 / 100 % kPage, 0u);
  EXPECT_EQ(world.pool().limits().capacity(), 10 * kPage * 33 / 100);
}

TEST(Preallocation, of_more_than_any_address_space_says_so) {
  PoolWorld world(adaptive_world());
  expect_error(world.pool().limits().preallocate(~Bytes{0}), ErrorCode::out_of_memory,
               {"18446744073709551615 bytes is more than any address space"});
}

TEST(MemoryInfo, counts_what_streams_cache_and_what_is_idle_in_arenas_as_free) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 16 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const auto free = [&] { return world.pool().limits().memory_info().value().free; };
  EXPECT_EQ(free(), 16 * kPage);
  const DevicePtr ptr = world.allocate(2 * kPage, stream);
  EXPECT_EQ(free(), 14 * kPage);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.statistics().cached_bytes, 2 * kPage);
  EXPECT_EQ(free(), 16 * kPage);
  const ArenaId arena = make_arena(world);
  const DevicePtr in_arena = allocate_in(world, arena, 2 * kPage, stream);
  EXPECT_EQ(free(), 14 * kPage);
  world.deallocate(in_arena, stream);
  world.wait();
  EXPECT_EQ(free(), 16 * kPage);
  release(world, arena);
}

}  // namespace
}  // namespace vpmm::test
