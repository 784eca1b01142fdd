// SPDX-License-Identifier: Apache-2.0
// context: allocations and stretches of arenas whose chunks nothing else touches.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

WorldOptions isolated_world() {
  WorldOptions options = adaptive_world();
  options.config.ipc_isolate = true;
  return options;
}

// Of the chunks at `place`.
Vector<AddressRange> chunks_around(PoolWorld& world, AddressRange place) {
  Vector<AddressRange> chunks = world.pool().reports().layout().chunks;
  std::erase_if(chunks, [&](const AddressRange& chunk) { return !chunk.overlaps(place); });
  return chunks;
}

Bytes usable(PoolWorld& world, DevicePtr ptr) { return world.pool().query(ptr).value().usable; }

// --- with isolation

TEST(OwnChunks, are_of_the_ordinary_sizes) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(256 * kMiB + 1, stream);
  EXPECT_EQ(usable(world, ptr), 256 * kMiB + kPage);
  EXPECT_LT(world.statistics().chunks, 64u) << "and not 129, one for each page";
  EXPECT_EQ(world.statistics().mapped_bytes, 256 * kMiB + kPage);
}

TEST(OwnChunks, are_whole_pages_of_small_requests) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{1}, 100 * kKiB, kPage - 1})
    EXPECT_EQ(usable(world, world.allocate(bytes, stream)), kPage);
  EXPECT_EQ(world.statistics().mapped_bytes, 3 * kPage);
}

TEST(OwnChunks, of_a_freed_allocation_serve_again_and_all_of_them_belong_to_the_next) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(16 * kPage, stream);
  world.deallocate(first, stream);
  const DevicePtr second = world.allocate(15 * kPage, stream);
  EXPECT_EQ(second, first);
  EXPECT_EQ(usable(world, second), 16 * kPage);
  EXPECT_EQ(world.statistics().live_bytes, 15 * kPage);
  EXPECT_EQ(world.statistics().allocated_bytes, 16 * kPage);
  world.use(second, 16 * kPage, stream);
}

TEST(OwnChunks, that_are_more_than_an_eighth_too_much_are_not_taken) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  world.wait();
  EXPECT_EQ(usable(world, world.allocate(3 * kPage, stream)), 3 * kPage);
}

TEST(OwnChunks, that_a_capture_freed_serve_it_in_whole_chunks_with_an_eighth_too_much_at_most) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr first = world.allocate(4 * kPage, stream);
  const DevicePtr second = world.allocate(4 * kPage, stream);
  const DevicePtr third = world.allocate(16 * kPage, stream);
  ASSERT_TRUE(second == first + 4 * kPage && third == second + 4 * kPage);
  for (const AddressRange& chunk : chunks_around(world, {first, 24 * kPage}))
    ASSERT_EQ(chunk.size, 4 * kPage);
  for (const DevicePtr ptr : {first, second}) world.deallocate(ptr, stream);
  EXPECT_GT(world.allocate(3 * kPage, stream), third) << "a chunk has a third too much";
  for (const DevicePtr ptr : {first, second})
    EXPECT_EQ(world.allocate(4 * kPage, stream), ptr) << "divided where chunks meet";
  for (const DevicePtr ptr : {third, first, second}) world.deallocate(ptr, stream);
  EXPECT_EQ(world.allocate(15 * kPage, stream), first);
  EXPECT_EQ(usable(world, first), 16 * kPage);
  destroy(world, end_capture(world, stream));
}

// Chunks of sixteen pages, and none of them fits. One stream, of whose memory the pool has no proof
// unless it asks.
TEST(OwnChunks, beyond_early_growth_idle_chunks_that_fit_nowhere_make_way_for_them) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(512 * kPage, stream), stream);
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(usable(world, world.allocate(10 * kPage, stream)), 10 * kPage);
  EXPECT_LE(world.statistics().peak_mapped_bytes, 560 * kPage) << "and not 912";
}

TEST(OwnChunks, are_not_made_after_the_context_broke_while_idle_ones_made_way) {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(8 * kPage, stream), stream);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  const std::uint64_t created = world.hooks.counts[Call::mem_create];
  world.hooks.on[Call::mem_unmap] = [] { return driver::CuResult::illegal_address; };
  pool::Request request{16 * kPage, 0, stream};
  request.one_chunk = true;
  expect_error(world.pool->allocate(request), ErrorCode::poisoned);
  EXPECT_EQ(world.hooks.counts[Call::mem_create], created);
}

TEST(OwnChunks, are_made_of_idle_chunks_that_fit_nowhere_where_memory_is_short) {
  WorldOptions full = isolated_world();
  full.sim.capacity = 64 * kPage;
  PoolWorld world(full);
  const StreamHandle stream = world.stream();
  for (int round = 0; round < 3; ++round)
    for (const Bytes pages : {60U, 7U, 33U, 64U, 1U, 63U}) {
      const DevicePtr ptr = world.allocate(pages * kPage, stream);
      world.use(ptr, pages * kPage, stream);
      world.deallocate(ptr, stream);
    }
}

// The promise: a request in whole pages is refused only if it, what lives and what is trapped
// exceed the capacity.
TEST(OwnChunks, are_refused_only_where_live_and_requested_pages_exceed_the_capacity) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    WorldOptions full = isolated_world();
    full.sim.capacity = 128 * kPage;
    PoolWorld world(full);
    std::mt19937_64 random(seed);
    const StreamHandle streams[] = {world.stream(), world.stream()};
    std::vector<std::pair<DevicePtr, StreamHandle>> live;
    for (int i = 0; i < 150; ++i) {
      const StreamHandle stream = streams[random() % 2];
      if (random() % 2 == 0 && !live.empty()) {
        const std::size_t victim = random() % live.size();
        world.deallocate(live[victim].first, live[victim].second);
        live[victim] = live.back();
        live.pop_back();
        continue;
      }
      const Bytes bytes = random() % 3 == 0 ? 1 + random() % kPage : 1 + random() % (40 * kPage);
      Bytes used = 0;
      for (const auto& [ptr, on] : live) used += usable(world, ptr);
      const auto result = world.pool().allocate({bytes, 0, stream});
      ASSERT_EQ(world.pool().reports().validate(), "");
      if (!result) {
        EXPECT_GT(used + round_up(bytes, kPage), 128 * kPage) << result.error().message;
        continue;
      }
      world.use(result.value(), bytes, stream, 50'000);
      live.emplace_back(result.value(), stream);
    }
    EXPECT_EQ(world.statistics().trapped_bytes, 0u) << "no chunk is used in part";
  }
}

TEST(OwnChunks, are_kept_in_a_streams_cache_as_they_are) {
  PoolWorld world(isolated_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(kPage, stream);
  world.deallocate(first, stream);
  EXPECT_EQ(world.allocate(100, stream), first);
}

TEST(OwnChunks, a_driver_call_that_fails_leaves_nothing_behind) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_set_access, Call::mem_unmap,
                          Call::mem_release}) {
    PoolWorld world(isolated_world());
    const StreamHandle stream = world.stream();
    std::vector<DevicePtr> idle;
    for (int i = 0; i < 8; ++i) idle.push_back(world.allocate(3 * kPage, stream));
    for (int i = 0; i < 8; i += 2) world.deallocate(idle[static_cast<std::size_t>(i)], stream);
    world.wait();
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      world.faults().set_plan(
          {{call}, nth, driver::CuResult::invalid_value, driver::FaultPlan::Repeat::once});
      const auto result = world.pool().allocate({20 * kPage, 0, stream});
      world.faults().clear_plan();
      ASSERT_EQ(world.pool().reports().validate(), "");
      if (result) world.deallocate(result.value(), stream);
    }
    world.allocate(20 * kPage, stream);
  }
}

// --- of arenas

// Idle memory in large chunks, of which others use parts.
void share_large_chunks(PoolWorld& world, StreamHandle stream) {
  world.deallocate(world.allocate(128 * kMiB, stream), stream);
  for (int i = 0; i < 5; ++i) world.allocate(5 * kPage, stream);
}

TEST(ArenaChunks, stand_behind_one_arena_only) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  share_large_chunks(world, stream);
  const ArenaId arena = make_arena(world);
  std::vector<AddressRange> in_arena, others;
  for (const Bytes bytes : {Bytes{1000}, 3 * kMiB, 9 * kMiB, 64 * kKiB, 20 * kMiB}) {
    in_arena.push_back({allocate_in(world, arena, bytes, stream), bytes});
    others.push_back({world.allocate(bytes, stream), bytes});
  }
  for (const AddressRange& mine : in_arena)
    for (const AddressRange& chunk : chunks_around(world, mine))
      for (const AddressRange& other : others) EXPECT_FALSE(chunk.overlaps(other));
}

TEST(ArenaChunks, go_back_whole_and_move_nobody_elses) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  share_large_chunks(world, stream);
  world.wait();
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  const Bytes mapped = world.statistics().mapped_bytes;
  const ArenaId arena = make_arena(world);
  for (const Bytes bytes : {Bytes{1000}, 3 * kMiB, 9 * kMiB})
    world.deallocate(allocate_in(world, arena, bytes, stream), stream);
  EXPECT_GT(world.statistics().mapped_bytes, mapped);
  release(world, arena);
  world.wait();
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

TEST(ArenaChunks, that_are_too_much_serve_the_arena) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId first = make_arena(world), second = make_arena(world);
  const DevicePtr ptr = allocate_in(world, first, 20 * kMiB, stream);
  world.deallocate(ptr, stream);
  release(world, first);
  world.wait();
  const Bytes mapped = world.statistics().mapped_bytes;
  EXPECT_EQ(allocate_in(world, second, 18 * kMiB, stream), ptr);
  EXPECT_EQ(world.statistics().live_bytes, 18 * kMiB);
  EXPECT_EQ(world.statistics().free_bytes, mapped - 18 * kMiB);
  EXPECT_EQ(allocate_in(world, second, 2 * kMiB, stream), ptr + 18 * kMiB);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

TEST(ArenaChunks, of_a_released_arena_are_ordinary_memory) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 20 * kMiB, stream);
  world.deallocate(ptr, stream);
  release(world, arena);
  world.wait();
  const DevicePtr one = world.allocate(5 * kMiB, stream);
  const DevicePtr two = world.allocate(5 * kMiB, stream);
  EXPECT_EQ(std::min(one, two), ptr) << "cut anywhere";
}

}  // namespace
}  // namespace vpmm::test
