// SPDX-License-Identifier: Apache-2.0
// context: preallocation, capacity, giving back, thresholds, mapping ceilings, address space.
#include <gtest/gtest.h>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

TEST(Preallocation, happens_at_the_first_allocation_and_not_before) {
  WorldOptions options = page_world();
  options.config.pages = 10;
  PoolWorld world(options);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  const StreamHandle stream = world.stream();
  world.allocate(3 * kPage, stream);
  EXPECT_EQ(world.picture(), "[3][-7]");
  const std::uint64_t calls = world.calls().memory_call_count();
  world.allocate(7 * kPage, stream);
  EXPECT_EQ(world.calls().memory_call_count(), calls);
}

TEST(Preallocation, maps_as_much_as_memory_allows_and_is_never_an_error) {
  for (WorldOptions options : {page_world(), adaptive_world()}) {
    options.config.pages = 100;
    options.config.limits.capacity = 11 * kPage;
    PoolWorld by_setting(options);
    by_setting.allocate(kPage, by_setting.stream());
    EXPECT_EQ(by_setting.statistics().mapped_bytes, 11 * kPage);
    options.config.limits.capacity.reset();
    options.sim.capacity = 64 * kPage;
    options.sim.used_by_others = 60 * kPage;
    PoolWorld by_device(options);
    by_device.allocate(kPage, by_device.stream());
    EXPECT_EQ(by_device.statistics().mapped_bytes, 4 * kPage);
  }
}

TEST(Preallocation, of_more_pages_than_any_address_space_has_maps_what_there_is) {
  WorldOptions options = page_world();
  options.config.pages = ~std::uint64_t{0};
  options.sim.capacity = 16 * kPage;
  PoolWorld world(options);
  world.allocate(kPage, world.stream());
  EXPECT_EQ(world.statistics().mapped_bytes, 16 * kPage);
}

// The driver's pool grows by the request, beyond the largest footprint so far, which has the pages.
TEST(Preallocation, at_a_first_request_below_a_page_pays_for_that_alone) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.pages = 100;
  PoolWorld world(options);
  world.allocate(1000, world.stream());
  const observe::Statistics now = world.statistics();
  ASSERT_GT(now.stream_ordered_bytes, 0u);
  EXPECT_EQ(now.mapped_bytes, 100 * kPage);
}

TEST(Preallocation, in_a_context_that_breaks_ends_at_the_first_error) {
  for (const Call call : {Call::mem_create, Call::mem_map}) {
    WorldOptions options = page_world();
    options.config.pages = 16;
    HookedWorld world(options);
    int tries = 0;
    const std::uint64_t before = world.statistics().chunks_created;
    world.hooks.on[call] = [&] {
      return ++tries == 1 ? driver::CuResult::illegal_address : driver::CuResult::success;
    };
    expect_error(world.pool->allocate({kPage, 0, std::nullopt}), ErrorCode::poisoned);
    EXPECT_EQ(tries, 1);
    EXPECT_LE(world.statistics().chunks_created, before + 16);
  }
}

TEST(Preallocation, by_call_maps_at_least_so_much_in_all) {
  PoolWorld world(page_world());
  ASSERT_TRUE(world.pool().limits().preallocate(10 * kPage).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 10 * kPage);
  ASSERT_TRUE(world.pool().limits().preallocate(4 * kPage).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 10 * kPage);
  ASSERT_TRUE(world.pool().limits().preallocate(12 * kPage).ok());
  EXPECT_EQ(world.picture(), "[-12]") << "one range";
}

TEST(Preallocation, by_call_is_in_the_peaks) {
  PoolWorld world(page_world());
  ASSERT_TRUE(world.pool().limits().preallocate(6 * kPage).ok());
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.pool().limits().set_capacity(2 * kPage);
  world.allocate(kPage, world.stream());
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 6 * kPage);
  EXPECT_EQ(world.statistics().peak_chunks, 6u);
  EXPECT_EQ(world.statistics().mapped_bytes, kPage);
}

TEST(Preallocation, is_refused_by_name_where_there_is_no_pool_of_our_own) {
  WorldOptions options = page_world();
  options.config.pool_enabled = false;
  PoolWorld world(options);
  expect_error(world.pool().limits().preallocate(kPage), ErrorCode::unsupported,
               {"virtual memory pool is off"});
}

TEST(Preallocation, beyond_the_capacity_is_an_error_by_call) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  expect_error(world.pool().limits().preallocate(9 * kPage), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

TEST(Capacity, is_never_exceeded_and_may_be_changed) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(8 * kPage, stream);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::out_of_memory);
  world.pool().limits().set_capacity(9 * kPage);
  world.allocate(kPage, stream);
  world.pool().limits().set_capacity(std::nullopt);
  world.allocate(20 * kPage, stream);
  world.pool().limits().set_capacity(kPage);
  EXPECT_EQ(world.statistics().mapped_bytes, 29 * kPage) << "what is mapped stays";
  world.deallocate(ptr, stream);
  world.allocate(8 * kPage, stream);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::out_of_memory);
}

TEST(Capacity, counts_the_drivers_pool_too) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.limits.capacity = 64 * kMiB;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(1000, stream);
  const Bytes small = world.statistics().stream_ordered_bytes;
  ASSERT_GT(small, 0u);
  expect_error(world.pool().limits().preallocate(64 * kMiB), ErrorCode::out_of_memory);
  expect_error(world.pool().allocate({64 * kMiB, 0, stream}), ErrorCode::out_of_memory);
  world.allocate(64 * kMiB - round_up(small, kPage), stream);
  EXPECT_LE(world.statistics().mapped_bytes, 64 * kMiB);
}

TEST(Trim, keeps_as_much_as_it_is_told_and_everything_that_lives) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(10 * kPage, stream);
  const DevicePtr live = world.allocate(2 * kPage, stream);
  world.deallocate(ptr, stream);
  world.wait();
  const auto some = world.pool().limits().trim(7 * kPage);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some.value(), 5 * kPage);
  EXPECT_EQ(world.statistics().mapped_bytes, 7 * kPage);
  const auto rest = world.pool().limits().trim(0);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest.value(), 5 * kPage);
  EXPECT_EQ(world.picture(), "[*10][2]");
  world.use(live, 2 * kPage, stream);
  EXPECT_EQ(world.sim().census().physical_bytes, 2 * kPage);
}

TEST(Trim, gives_back_what_the_gpu_has_finished_with_although_nobody_asked_for_proof_before) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(10 * kPage, stream);
  world.use(ptr, 10 * kPage, stream);
  world.deallocate(ptr, stream);
  ASSERT_EQ(world.sim().stream_synchronize(stream), driver::CuResult::success);
  const Bytes mapped = world.statistics().mapped_bytes;
  const auto released = world.pool().limits().trim(0);
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value(), mapped);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

TEST(Trim, never_touches_pending_memory_and_never_waits) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(10 * kPage, stream);
  world.use(ptr, 10 * kPage, stream, kLongNs);
  world.deallocate(ptr, stream);
  const auto released = world.pool().limits().trim(0);
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value(), 0u);
  EXPECT_EQ(world.sim().stream_query(stream), driver::CuResult::not_ready);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST(Capacity, counts_pages_that_small_requests_are_cut_from) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr small = world.allocate(1000, stream);
  expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  const DevicePtr rest = world.allocate(7 * kPage, stream);
  world.use(world.allocate(kMiB, stream), kMiB, stream);
  expect_error(world.pool().allocate({kPage - kMiB, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().mapped_bytes, 8 * kPage);
  world.deallocate(small, stream);
  world.deallocate(rest, stream);
}

TEST(Trim, empties_the_drivers_pool_as_well) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 5; ++i) world.deallocate(world.allocate(100'000, stream), stream);
  world.wait();
  ASSERT_GT(world.statistics().stream_ordered_bytes, 0u);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

TEST(Trim, takes_back_what_streams_have_in_hand) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    PoolWorld world(options);
    std::vector<std::pair<DevicePtr, StreamHandle>> live;
    for (const StreamHandle stream : {world.stream(), world.stream()})
      for (const Bytes bytes : {Bytes{1}, Bytes{5000}, Bytes{100'000}, Bytes{700'000}, 3 * kPage})
        live.emplace_back(world.allocate(bytes, stream), stream);
    for (const auto& [ptr, stream] : live) world.deallocate(ptr, stream);
    ASSERT_GT(world.statistics().small_bytes, 0u);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().small_bytes, 0u);
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  }
}

TEST(ReleaseThreshold, idle_memory_above_it_goes_back_by_itself) {
  WorldOptions options = page_world();
  options.config.limits.release_threshold = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(6 * kPage, stream);
  const DevicePtr second = world.allocate(2 * kPage, stream);
  world.deallocate(first, stream);
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(second, stream);
  EXPECT_LE(world.statistics().mapped_bytes, 4 * kPage);
}

// What a finalizer frees is carried out by the next request, which sees to the threshold too.
TEST(ReleaseThreshold, idle_memory_above_it_goes_back_where_frees_are_deferred) {
  WorldOptions options = page_world();
  options.config.limits.release_threshold = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(6 * kPage, stream);
  world.allocate(3 * kPage, stream);
  world.pool().deallocate_deferred(first);
  world.allocate(kPage, stream);
  EXPECT_EQ(world.statistics().mapped_bytes, 4 * kPage) << "what lives";
}

// The event of the memory that is live again could not help.
TEST(ReleaseThreshold, asks_for_no_event_where_nothing_is_idle) {
  WorldOptions options = page_by_page_world();
  options.config.prefer = settings::Prefer::footprint;
  options.config.limits.release_threshold = 0;
  PoolWorld world(options);
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  world.allocate(1000, a);
  const DevicePtr small = world.allocate(1000, a);
  const DevicePtr large = world.allocate(40 * kPage, b);
  world.use(large, 40 * kPage, b, kLongNs);
  world.deallocate(large, b);
  ASSERT_GT(world.statistics().events_recorded, 0u);
  world.allocate(40 * kPage, b);
  ASSERT_EQ(world.statistics().free_bytes, 0u);
  const std::uint64_t before = world.calls().count(Call::event_query);
  world.deallocate(small, std::nullopt);
  EXPECT_EQ(world.calls().count(Call::event_query), before);
}

TEST(MemoryInfo, counts_what_finalizers_have_freed) {
  PoolWorld world(page_world());
  const DevicePtr memory = world.allocate(6 * kPage, world.stream());
  const Bytes before = world.pool().limits().memory_info().value().free;
  world.pool().deallocate_deferred(memory);
  EXPECT_EQ(world.pool().limits().memory_info().value().free, before + 6 * kPage);
}

TEST(ReleaseThreshold, without_one_memory_is_kept_for_life) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(6 * kPage, stream), stream);
  world.wait();
  world.deallocate(world.allocate(2 * kPage, stream), stream);
  EXPECT_EQ(world.statistics().mapped_bytes, 6 * kPage);
  EXPECT_EQ(world.statistics().chunks_released, 0u);
}

TEST(MaxMappings, at_the_limit_the_pool_grows_by_one_chunk_instead_of_moving) {
  // Four pages are asked for where eight are idle, none next to another.
  const auto figures_with = [](std::uint64_t max_mappings) {
    WorldOptions options = page_world();
    options.config.limits.max_mappings = max_mappings;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 16; ++i) live.push_back(world.allocate(kPage, stream));
    for (std::size_t i = 0; i < live.size(); i += 2) world.deallocate(live[i], stream);
    world.use(world.allocate(4 * kPage, stream), 4 * kPage, stream);
    return world.statistics();
  };
  EXPECT_EQ(figures_with(60'000).chunks_moved, 4u);
  EXPECT_EQ(figures_with(16).chunks_moved, 0u);
  EXPECT_EQ(figures_with(16).mappings, 17u);
}

TEST(AddressSpace, a_request_above_the_reservation_size_reserves_more) {
  WorldOptions options = page_world();
  options.config.va_size = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(20 * kPage, stream);
  world.use(ptr, 20 * kPage, stream);
  EXPECT_GE(world.statistics().reserved_bytes, 20 * kPage);
}

TEST(AddressSpace, there_is_room_for_whole_chunks_that_move_although_the_request_is_smaller) {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::latency;  // a page of slack is allowed
  options.config.va_size = 8 * kPage;
  options.config.chunk_max = 8 * kPage;
  options.config.pages = 24;  // three chunks
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 3; ++i) live.push_back(world.allocate(8 * kPage, stream));
  world.deallocate(live[0], stream);
  world.deallocate(live[2], stream);
  world.wait();
  world.use(world.allocate(15 * kPage, stream), 15 * kPage, stream);
  EXPECT_EQ(world.statistics().reserved_bytes, (24 + 16) * kPage);
}

TEST(AddressSpace, reservations_are_added_when_holes_run_out) {
  WorldOptions options = page_world();
  options.config.va_size = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 5; ++i) world.use(world.allocate(6 * kPage, stream), 6 * kPage, stream);
  EXPECT_EQ(world.statistics().reserved_bytes, 40 * kPage);
  EXPECT_EQ(world.picture(), "[6] | [6] | [6] | [6] | [6]");
}

TEST(AddressSpace, regions_do_not_merge_across_the_border_of_reservations) {
  WorldOptions options = page_world();
  options.config.va_size = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 3; ++i) live.push_back(world.allocate(8 * kPage, stream));
  for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
  EXPECT_EQ(world.picture(), "[-8] | [-8] | [-8]");
  world.use(world.allocate(12 * kPage, stream), 12 * kPage, stream);
}

TEST(AddressSpace, a_smaller_reservation_is_taken_where_address_space_is_short) {
  WorldOptions options = page_world();
  options.config.va_size = 8 * kTiB;
  options.sim.address_space = kTiB;
  PoolWorld world(options);
  world.allocate(3 * kPage, world.stream());
  EXPECT_GT(world.statistics().reserved_bytes, 0u);
  EXPECT_LE(world.statistics().reserved_bytes, kTiB);
}

TEST(AddressSpace, a_page_need_not_be_a_power_of_two) {
  constexpr Bytes kOddPage = 6 * kMiB;
  PoolWorld world(page_world(kOddPage));
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{1000}, 3 * kMiB, kOddPage, 4 * kOddPage + 1}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    world.use(ptr, bytes, stream);
    world.deallocate(ptr, stream);
  }
  EXPECT_EQ(world.statistics().mapped_bytes % kOddPage, 0u);
  expect_error(world.pool().allocate({kOddPage, 4 * kMiB, stream}), ErrorCode::unsupported,
               {"4194304", "VPMM_PAGE_SIZE"});
}

TEST(MemoryInfo, free_is_what_the_driver_and_the_pool_have) {
  WorldOptions options = page_world();
  options.sim.capacity = kGiB;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(10 * kPage, stream);
  const auto used = world.pool().limits().memory_info();
  world.deallocate(ptr, stream);
  const auto idle = world.pool().limits().memory_info();
  ASSERT_TRUE(used.ok() && idle.ok());
  EXPECT_EQ(idle.value().free - used.value().free, 10 * kPage);
  EXPECT_EQ(idle.value().total, kGiB);
}

TEST(Trim, that_keeps_all_that_is_held_leaves_the_drivers_pool_as_it_is) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  world.wait();
  const Bytes held = world.statistics().mapped_bytes;
  ASSERT_GT(held, 0u);
  EXPECT_EQ(world.pool().limits().trim(held).value(), 0u);
  EXPECT_EQ(world.statistics().mapped_bytes, held);
  EXPECT_GT(world.pool().limits().trim(held - 1).value(), 0u);
}

TEST(Capacity, of_a_share_is_whole_pages) {
  WorldOptions options = page_world();
  options.sim.capacity = 100 * kPage + 1;
  PoolWorld world(options);
  ASSERT_TRUE(world.pool().limits().set_share_of_gpu(33).ok());
  EXPECT_EQ(world.pool().limits().capacity(), 33 * kPage);
  options.config.page_size = 4 * kPage;
  PoolWorld large(options);
  ASSERT_TRUE(large.pool().limits().set_share_of_gpu(33).ok());
  EXPECT_EQ(large.pool().limits().capacity(), 32 * kPage);
}

TEST(MemoryInfo, pages_whose_small_blocks_are_all_free_are_free) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const auto is_free = [&] {
    const auto info = world.pool().limits().memory_info();
    EXPECT_TRUE(info.ok()) << message_of(info);
    return info ? info.value().free : 0;
  };
  const Bytes before = is_free();
  std::vector<DevicePtr> blocks;
  for (Bytes bytes = 0; bytes < 3 * kPage; bytes += kPage / 8)
    blocks.push_back(world.allocate(kPage / 8, stream));
  const Bytes used = before - is_free();
  EXPECT_GE(used, 3 * kPage);
  for (const DevicePtr ptr : blocks)
    if (ptr != blocks.front()) world.deallocate(ptr, stream);
  world.wait();
  EXPECT_EQ(before - is_free(), kPage) << "of the one that lives";
  world.deallocate(blocks.front(), stream);
  world.wait();
  EXPECT_EQ(is_free(), before);
}

// Ahead of the first request addresses for the pages are reserved, if there can be so many.
TEST(Preallocation, of_more_pages_than_any_address_space_has_reserves_nothing_ahead) {
  WorldOptions options = page_world();
  for (const std::uint64_t pages :
       {pool::kAddressSpace / kPage + 1, (std::uint64_t{1} << 43) + 4, ~std::uint64_t{0}}) {
    options.config.pages = pages;
    EXPECT_EQ(PoolWorld(options).statistics().reserved_bytes, 0u) << pages;
  }
  options.config.pages = 4;
  EXPECT_EQ(PoolWorld(options).statistics().reserved_bytes, options.config.va_size);
}

}  // namespace
}  // namespace vpmm::test
