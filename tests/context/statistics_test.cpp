// SPDX-License-Identifier: Apache-2.0
// context: figures that must agree with each other, pictures, and recordings that read back.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "observe/trace_file.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

// Identities that hold whenever no call is in progress and nothing was quarantined.
void expect_identities(PoolWorld& world) {
  const observe::Statistics now = world.statistics();
  const observe::PoolSnapshot snapshot = world.pool().reports().snapshot();
  Bytes free = 0, holes = 0, zombies = 0, allocated = 0, requested = 0;
  std::uint64_t live = 0;
  for (const observe::RegionSnapshot& region : snapshot.regions) {
    if (region.kind == '-') free += region.range.size;
    if (region.kind == '*') holes += region.range.size;
    if (region.kind == '~') zombies += region.range.size;
    if (region.kind != ' ') continue;
    allocated += region.range.size;
    requested += region.requested;
    live += region.small_allocations.value_or(1);
  }
  EXPECT_EQ(now.free_bytes, free);
  EXPECT_EQ(now.hole_bytes, holes);
  EXPECT_EQ(now.zombie_bytes, zombies);
  EXPECT_EQ(now.reserved_bytes, free + holes + zombies + allocated)
      << "states partition the reserved space";
  EXPECT_EQ(now.mapped_bytes, allocated + free + now.stream_ordered_bytes)
      << "zombies alias what is counted already";
  EXPECT_EQ(now.allocations - now.deallocations, now.live_allocations);
  EXPECT_LE(now.live_bytes, now.allocated_bytes);
  EXPECT_LE(now.small_free_bytes, now.small_bytes);
  if (now.stream_ordered_bytes == 0) {
    EXPECT_EQ(now.allocated_bytes + now.small_free_bytes, allocated)
        << "whole pages, and what is cut from them";
    EXPECT_EQ(now.live_bytes, requested);
    EXPECT_EQ(now.live_allocations, live);
  }
  EXPECT_LE(now.pending_bytes, now.free_bytes + now.small_free_bytes + now.stream_ordered_bytes);
  EXPECT_LE(now.largest_free_bytes, now.free_bytes);
  EXPECT_GE(now.peak_mapped_bytes, now.mapped_bytes);
  EXPECT_GE(now.peak_live_bytes, now.live_bytes);
  EXPECT_EQ(now.chunks_created - now.chunks_released, now.chunks);
  EXPECT_EQ(now.allocations, now.hits + now.plans);
  EXPECT_EQ(now.quarantined_bytes, 0u);
  EXPECT_EQ(world.sim().census().mappings, now.mappings);
  EXPECT_EQ(world.sim().census().chunks, now.chunks);
}

TEST(Statistics, idle_parts_of_chunks_that_are_used_are_trapped) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  EXPECT_EQ(world.statistics().trapped_bytes, 0u);
  const DevicePtr ptr = world.allocate(2 * kPage + kPage / 4, stream);
  EXPECT_EQ(world.statistics().mapped_bytes, 4 * kPage);
  EXPECT_EQ(world.statistics().trapped_bytes, 4 * kPage - 2 * kPage - kPage / 4) << "one chunk";
  world.deallocate(ptr, stream);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().trapped_bytes, 0u);
}

TEST(Statistics, agree_with_each_other_and_with_the_regions_after_every_step) {
  WorldOptions stream_ordered = page_world();
  stream_ordered.config.small = settings::SmallRequests::stream_ordered;
  for (const WorldOptions& options : {page_world(), adaptive_world(), stream_ordered}) {
    PoolWorld world(options);
    const StreamHandle streams[] = {world.stream(), world.stream()};
    std::vector<std::pair<DevicePtr, std::size_t>> live;
    for (std::size_t i = 0; i < 120; ++i) {
      const std::size_t lane = i % 2;
      const Bytes bytes = i % 5 == 4 ? 1000 + i : (i * 7 % 11 + 1) * kPage - i;
      live.emplace_back(world.allocate(bytes, streams[lane]), lane);
      world.use(live.back().first, bytes, streams[lane], 20'000);
      expect_identities(world);
      if (i % 3 == 0) continue;
      const std::size_t victim = i * 13 % live.size();
      world.deallocate(live[victim].first, streams[live[victim].second]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      expect_identities(world);
    }
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    expect_identities(world);
  }
}

TEST(Statistics, memory_in_hand_is_free_and_counts_once) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr pages = world.allocate(3 * kPage, stream);
  const DevicePtr block = world.allocate(1000, stream);
  world.use(pages, 3 * kPage, stream, kLongNs);
  world.deallocate(pages, stream);
  world.deallocate(block, stream);
  expect_identities(world);
  EXPECT_EQ(world.statistics().free_bytes, 3 * kPage);
  EXPECT_EQ(world.statistics().small_free_bytes, kPage);
  EXPECT_EQ(world.statistics().allocated_bytes, 0u);
  EXPECT_EQ(world.picture(), "[-3][1]")
      << "a page that small requests are cut from is no free range";
  EXPECT_FALSE(world.pool().reports().snapshot().regions.front().complete)
      << "nobody has asked the GPU yet";
  EXPECT_EQ(world.allocate(2 * kPage + 5, stream), pages);
  EXPECT_EQ(world.pool().query(pages).value().requested, 2 * kPage + 5)
      << "as its present user said";
  EXPECT_EQ(world.statistics().live_bytes, 2 * kPage + 5);
  world.deallocate(pages, stream);
  world.wait();
  expect_identities(world);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
}

TEST(Statistics, peaks_can_be_started_anew) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(10 * kPage, stream), stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(4 * kPage).ok());
  EXPECT_EQ(world.statistics().peak_live_bytes, 10 * kPage);
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 10 * kPage);
  world.pool().reports().reset_peaks();
  EXPECT_EQ(world.statistics().peak_live_bytes, 0u);
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 4 * kPage);
  EXPECT_EQ(world.statistics().peak_chunks, 4u);
}

TEST(Statistics, the_peak_of_live_bytes_has_requests_of_all_kinds) {
  for (const bool has_pages : {true, false}) {
    WorldOptions options = page_world();
    if (!has_pages) options.config.small = settings::SmallRequests::stream_ordered;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    Bytes live = 0;
    for (const Bytes bytes : {3 * kPage, Bytes{1000}, Bytes{70'000}, 5 * kPage}) {
      world.allocate(bytes, stream);
      live += bytes;
    }
    world.pool().reports().reset_peaks();
    EXPECT_EQ(world.statistics().peak_live_bytes, live);
    EXPECT_EQ(world.statistics().live_bytes, live);
  }
}

TEST(Statistics, driver_calls_and_their_time_are_those_of_memory_calls) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  EXPECT_EQ(world.statistics().driver_calls, 6u)
      << "reserve; create, map, access, unmap and release once";
  world.allocate(2 * kPage, stream);
  EXPECT_EQ(world.calls().memory_call_count(), world.statistics().driver_calls);
  EXPECT_EQ(world.statistics().driver_calls, 11u) << "twice create and map, access";
  EXPECT_GT(world.statistics().driver_ns, 0u);
}

TEST(Snapshot, lists_every_region_in_ascending_address_order_with_stamp_and_stream) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(2 * kPage, stream);
  const DevicePtr second = world.allocate(2 * kPage, stream);
  world.use(second, kPage, stream, kLongNs);
  world.deallocate(second, stream);
  world.allocate(kPage, std::nullopt);
  const observe::PoolSnapshot snapshot = world.pool().reports().snapshot();
  ASSERT_GE(snapshot.regions.size(), 3u);
  for (std::size_t i = 1; i < snapshot.regions.size(); ++i)
    EXPECT_EQ(snapshot.regions[i].range.begin, snapshot.regions[i - 1].range.end());
  EXPECT_EQ(snapshot.regions[0].range.begin, first);
  EXPECT_EQ(snapshot.regions[0].stamp.rfind("stream ", 0), 0u) << "a live region names its stream";
  EXPECT_FALSE(snapshot.regions[1].complete);
  EXPECT_NE(snapshot.regions[1].stamp.find(" up to "), std::string::npos);
  const std::string text = observe::to_text(snapshot);
  EXPECT_NE(text.find("[2]"), std::string::npos);
  EXPECT_NE(text.find("[-2]"), std::string::npos);
}

TEST(Statistics, free_blocks_of_an_arena_are_pending_until_their_work_is_over) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 4 * kPage, stream);
  world.use(ptr, 4 * kPage, stream, kLongNs);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.statistics().pending_bytes, 4 * kPage);
  world.wait();
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
  EXPECT_EQ(world.statistics().free_bytes, 4 * kPage);
}

TEST(Snapshot, names_the_stream_of_a_live_block_in_an_arena_and_of_none_that_has_none) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr named = allocate_in(world, arena, kPage, stream);
  const DevicePtr unnamed = allocate_in(world, arena, kPage, std::nullopt);
  const auto region_at = [&](DevicePtr ptr) {
    for (const observe::RegionSnapshot& region : world.pool().reports().snapshot().regions)
      if (region.range.begin == ptr) return region;
    return observe::RegionSnapshot{};
  };
  const auto stamp_of = [&](DevicePtr ptr) { return region_at(ptr).stamp; };
  EXPECT_EQ(region_at(unnamed).requested, kPage);
  EXPECT_EQ(stamp_of(named).rfind("stream ", 0), 0u) << stamp_of(named);
  EXPECT_EQ(stamp_of(unnamed), "");
  world.deallocate(named, stream);
  EXPECT_NE(stamp_of(named).find(" up to "), std::string::npos) << stamp_of(named);
  world.deallocate(unnamed, std::nullopt);
}

TEST(Snapshot, tells_what_a_free_block_of_an_arena_waits_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream(), other = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr live = allocate_in(world, arena, kPage, std::nullopt);
  const DevicePtr ptr = allocate_in(world, arena, kPage, stream);
  const auto region_at = [&](DevicePtr at) {
    for (const observe::RegionSnapshot& region : world.pool().reports().snapshot().regions)
      if (region.range.begin == at) return region;
    return observe::RegionSnapshot{};
  };
  ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
  world.use(ptr, kPage, stream, kLongNs);
  world.use(live, kPage, other, kLongNs);
  world.deallocate(ptr, stream);
  const std::string stamp = region_at(ptr).stamp;
  EXPECT_EQ(stamp.rfind("stream ", 0), 0u) << stamp;
  EXPECT_NE(stamp.find(" and stream "), std::string::npos) << stamp;
  world.wait();
  EXPECT_EQ(region_at(ptr).stamp, "");
  pin(world, arena);
  EXPECT_EQ(region_at(ptr).stamp, "in a pinned arena");
  EXPECT_EQ(region_at(live).stamp, "");
  const ArenaId asleep = make_arena(world);
  const DevicePtr sleeping = allocate_in(world, asleep, kPage, stream);
  ASSERT_TRUE(world.pool().suspension().suspend(asleep, {}).ok());
  EXPECT_EQ(region_at(sleeping).kind, '^');
}

TEST(Recording, reads_back_as_the_calls_that_were_made) {
  const std::string path = ::testing::TempDir() + "vpmm_recording.csv.gz";
  {
    PoolWorld world(page_world());
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    const DevicePtr before = world.allocate(kPage, a);
    ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
    expect_error(world.pool().reports().start_recording(path), ErrorCode::invalid_argument);
    const DevicePtr first = world.allocate(3 * kPage + 7, a);
    const DevicePtr second = world.allocate(100, b);
    world.sim().advance_host_ns(5'000'000);
    world.deallocate(first, a);
    world.deallocate(before, a);  // allocated before the recording
    world.pool().deallocate_deferred(
        second);  // carried out by the next call, which ends the recording
    ASSERT_TRUE(world.pool().reports().stop_recording().ok());
    expect_error(world.pool().reports().stop_recording(), ErrorCode::invalid_argument);
    world.allocate(kPage, a);  // after it
  }
  const auto trace = observe::read_trace(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  using Kind = observe::TraceEvent::TraceKind;
  const auto& events = trace.value().events;
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(trace.value().streams, 2u);
  EXPECT_EQ(events[0].kind, Kind::allocate);
  EXPECT_EQ(events[0].bytes, 3 * kPage + 7);
  EXPECT_EQ(events[1].bytes, 100u);
  EXPECT_NE(events[1].stream, events[0].stream);
  EXPECT_EQ(events[2].kind, Kind::deallocate);
  EXPECT_EQ(events[2].allocation, events[0].allocation);
  EXPECT_GE(events[2].time_us, events[1].time_us + 5'000);
  EXPECT_EQ(events[3].allocation, events[1].allocation);
  EXPECT_EQ(events[3].stream, events[1].stream)
      << "a deferred free goes on its allocation's stream";
}

TEST(Peaks, of_a_pool_with_many_streams_see_each_growth) {
  PoolWorld world(adaptive_world());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 60; ++i) {
    streams.push_back(world.stream());
    world.allocate(1000, streams.back());
  }
  const Bytes live = world.statistics().live_bytes;
  const DevicePtr large = world.allocate(500 * kPage, streams[0]);
  world.deallocate(large, std::nullopt);  // a free on its stream would sample once more
  EXPECT_GE(world.statistics().peak_live_bytes, live + 500 * kPage);
}

}  // namespace
}  // namespace vpmm::test
