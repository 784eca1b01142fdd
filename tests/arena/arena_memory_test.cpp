// SPDX-License-Identifier: Apache-2.0
// arena: where memory of arenas comes from, and where it goes: trims, shortages, release.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/event_log.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

class ArenaMemory : public ArenaWorld {};

// --- where memory comes from and goes

TEST_F(ArenaMemory, keeps_what_it_has_until_it_is_trimmed) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a);
  world.deallocate(ptr, a);
  settle();
  EXPECT_NE(world.allocate(3 * kPage, b), ptr);
  EXPECT_EQ(trim(world, arena), 3 * kPage);
  EXPECT_EQ(world.allocate(3 * kPage, b), ptr);
  world.use(ptr, 3 * kPage, b);
  EXPECT_EQ(trim(world, arena), 0u);
}

TEST_F(ArenaMemory, what_is_trimmed_has_the_stamp_that_it_had) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_EQ(trim(world, arena), 3 * kPage);
  const DevicePtr other = world.allocate(3 * kPage, b);
  EXPECT_NE(other, ptr);
  world.use(other, 3 * kPage, b);
  EXPECT_EQ(world.allocate(3 * kPage, a), ptr) << "its own stream has it at once";
  world.use(ptr, 3 * kPage, a);
}

TEST_F(ArenaMemory, a_trim_of_the_pool_takes_idle_stretches_along) {
  const DevicePtr live = allocate_in(world, arena, 1000, a);
  world.deallocate(allocate_in(world, arena, 30 * kPage, a), a);
  settle();
  const Bytes mapped = world.statistics().mapped_bytes;
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_LT(world.statistics().mapped_bytes, mapped);
  world.use(live, 1000, a);
}

TEST_F(ArenaMemory, with_a_release_threshold_idle_stretches_go_back_by_themselves) {
  WorldOptions options = adaptive_world();
  options.config.limits.release_threshold = kPage;
  PoolWorld limited(options);
  const StreamHandle stream = limited.stream();
  const ArenaId other = make_arena(limited);
  const DevicePtr ptr = allocate_in(limited, other, 4 * kPage, stream);
  limited.wait();
  limited.deallocate(ptr, stream);
  limited.wait();
  limited.deallocate(limited.allocate(kPage, std::nullopt), std::nullopt);
  limited.wait();
  EXPECT_LE(limited.statistics().mapped_bytes, 2 * kPage);
}

class ShortArena : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.limits.capacity = 8 * kPage;
    return options;
  }
  PoolWorld world{options()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world);
};

TEST_F(ShortArena, what_an_arena_has_idle_serves_a_request_of_the_pool) {
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  world.use(ptr, 6 * kPage, a);
  world.deallocate(ptr, a);
  world.use(world.allocate(7 * kPage, b), 7 * kPage, b);
}

TEST_F(ShortArena, it_serves_another_arena_too) {
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  world.use(ptr, 6 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  world.use(allocate_in(world, make_arena(world), 7 * kPage, b), 7 * kPage, b);
  EXPECT_GE(world.statistics().host_waits, 1u) << "the GPU was still busy with it";
}

TEST_F(ShortArena, it_serves_a_request_below_a_page) {
  for (int i = 0; i < 8; ++i) allocate_in(world, arena, kPage, a);
  expect_error(world.pool().allocate({1000, 0, b}), ErrorCode::out_of_memory);
  const auto live = world.pool().arenas().live(arena);
  ASSERT_EQ(live.value().size(), 8u);
  world.deallocate(live.value()[3], a);
  world.allocate(1000, b);
}

TEST_F(ShortArena, a_small_request_spoils_a_large_block_before_it_fails) {
  allocate_in(world, arena, 4 * kPage, a);
  const DevicePtr second = allocate_in(world, arena, 4 * kPage, a);
  pin(world, arena);
  world.deallocate(second, a);
  EXPECT_EQ(allocate_in(world, arena, 1000, a), second);
}

TEST_F(ShortArena, a_pinned_arena_keeps_what_it_has_and_the_report_says_so) {
  world.deallocate(allocate_in(world, arena, 6 * kPage, a), a);
  pin(world, arena);
  EXPECT_EQ(trim(world, arena), 0u);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  expect_error(world.pool().allocate({7 * kPage, 0, b}), ErrorCode::out_of_memory,
               {"pinned) holds 12 MiB, of which live 0 bytes",
                "release pinned arenas that are done with: 12 MiB in them"});
  release(world, arena);
  world.use(world.allocate(7 * kPage, b), 7 * kPage, b);
}

// What is pending in a chunk with a live block cannot go back to the pool.
TEST_F(ShortArena, a_request_waits_for_work_on_a_block_that_fits) {
  world.allocate(7 * kPage, a);
  const DevicePtr busy = allocate_in(world, arena, kPage - 512, a);
  const DevicePtr live = allocate_in(world, arena, 512, a);
  ASSERT_EQ(live, busy + (kPage - 512));
  world.use(busy, kPage - 512, a, kLongNs);
  world.deallocate(busy, a);
  const std::uint64_t waits = world.statistics().host_waits;
  const DevicePtr other = allocate_in(world, arena, kPage / 4, b);
  EXPECT_EQ(other, busy);
  world.use(other, kPage / 4, b);
  EXPECT_EQ(world.statistics().host_waits, waits + 1);
}

TEST_F(ShortArena, a_request_that_no_pending_block_fits_fails_at_once) {
  world.allocate(7 * kPage, a);
  const DevicePtr busy = allocate_in(world, arena, kPage - 512, a);
  allocate_in(world, arena, 512, a);
  world.use(busy, kPage - 512, a, kLongNs);
  world.deallocate(busy, a);
  const std::uint64_t waits = world.statistics().host_waits;
  expect_error(world.pool().allocate({kPage, 0, b, arena}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().host_waits, waits);
  EXPECT_EQ(allocate_in(world, arena, kPage - 512, b), busy);
}

// --- stretches with a live block, with a chunk for each page

class SharedStretch : public ::testing::Test {
 protected:
  static constexpr Bytes kBlock = kPage + kPage / 8;
  static constexpr Bytes kCapacity = 400 * kPage;
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.limits.capacity = kCapacity;
    return options;
  }
  Bytes mapped() { return world.statistics().mapped_bytes; }

  PoolWorld world{options()};
  StreamHandle a = world.stream();
  ArenaId arena = make_arena(world);
};

TEST_F(SharedStretch, holds_little_more_than_blocks_that_do_not_fill_pages) {
  for (int i = 0; i < 300; ++i) allocate_in(world, arena, kBlock, a);
  EXPECT_LE(mapped(), 300 * kBlock + 300 * kBlock / 8) << "with two pages for each: 1.78 times";
}

TEST_F(SharedStretch, is_at_most_a_16th_of_what_the_arena_holds) {
  Bytes most = 0;
  for (int i = 0; i < 300; ++i) {
    const Bytes held = mapped();
    allocate_in(world, arena, kBlock, a);
    const Bytes grown = mapped() - held;
    EXPECT_LE(grown, std::max(2 * kPage, held / 16)) << i;
    most = std::max(most, grown);
  }
  EXPECT_GT(most, 4 * kPage);
  EXPECT_LE(most, 10 * kPage);
}

TEST_F(SharedStretch, gives_way_to_one_for_the_request_alone_where_memory_is_short) {
  for (int i = 0; i < 100; ++i) allocate_in(world, arena, kBlock, a);
  world.allocate(kCapacity - mapped() - 2 * kPage, a);
  while (world.pool().allocate({kBlock, 0, a, arena}).ok()) continue;
  EXPECT_EQ(mapped(), kCapacity);
}

// Pages of the stretch for a first request of `bytes` in an arena that holds `held` pages.
Bytes pages_for(Bytes held, Bytes bytes, Bytes alignment = 0,
                const arena::ArenaOptions& options = {}) {
  PoolWorld world(adaptive_world());
  const EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world, options);
  allocate_in(world, arena, held * kPage, stream);
  allocate_in(world, arena, bytes, stream, alignment);
  EXPECT_EQ(log.of(EventKind::arena_grow).size(), 2u);
  return log.of(EventKind::arena_grow).back().bytes / kPage;
}

TEST(SharedStretchSize, is_the_largest_that_leaves_a_32nd_or_the_one_that_leaves_least) {
  constexpr Bytes kOdd = kPage + kPage / 8;
  EXPECT_EQ(pages_for(47, kOdd), 2u);
  for (const Bytes pages : {3, 4, 5, 6, 7, 8, 9}) EXPECT_EQ(pages_for(16 * pages, kOdd), pages);
  EXPECT_EQ(pages_for(160, kOdd), 9u) << "ten would leave a tenth";
  EXPECT_EQ(pages_for(64, kPage + kPage * 3 / 4), 2u) << "four would leave as large a share";
  EXPECT_EQ(pages_for(160, kPage + kPage * 15 / 16), 10u) << "a 32nd is left";
  EXPECT_EQ(pages_for(160, kPage), 10u);
  EXPECT_EQ(pages_for(1600, kPage), 10u);
}

TEST(SharedStretchSize, is_that_of_the_request_beyond_half_a_page_to_five_pages) {
  EXPECT_EQ(pages_for(160, kPage / 2), 1u);
  EXPECT_EQ(pages_for(160, kPage / 2 + 1), 10u);
  EXPECT_EQ(pages_for(160, 5 * kPage), 10u);
  EXPECT_EQ(pages_for(160, 5 * kPage + 1), 6u);
}

TEST(SharedStretchSize, is_that_of_the_request_with_an_alignment_or_where_nothing_is_shared) {
  EXPECT_EQ(pages_for(160, kPage, 512), 10u);
  EXPECT_EQ(pages_for(160, kPage, 1024), 1u);
  EXPECT_EQ(pages_for(160, kPage, 0, {false, false, 0}), 1u);
}

// Stretches of one allocation each, in chunks of a page.
TEST(UnsplitOnPool, chunks_beyond_a_request_serve_others) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world, {false, false, 0});
  const DevicePtr whole = allocate_in(world, arena, 7 * kPage, stream);
  world.deallocate(whole, stream);
  const DevicePtr front = allocate_in(world, arena, 4 * kPage - 512, stream);
  EXPECT_EQ(front, whole);
  EXPECT_EQ(allocate_in(world, arena, 2 * kPage, stream), whole + 4 * kPage);
  world.use(world.allocate(2 * kPage, stream), 2 * kPage, stream);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

// Not only where memory is short or the arena is trimmed.
TEST(UnsplitOnPool, chunks_beyond_a_request_are_memory_of_their_own) {
  PoolWorld world(page_world());
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world, {false, false, 0});
  world.deallocate(allocate_in(world, arena, 7 * kPage, stream), stream);
  const DevicePtr front = allocate_in(world, arena, 4 * kPage, stream);
  log.clear();
  release(world, arena);
  const auto shrinks = log.of(EventKind::arena_shrink);
  ASSERT_EQ(shrinks.size(), 1u);
  EXPECT_EQ(shrinks[0].ptr, front + 4 * kPage);
  EXPECT_EQ(shrinks[0].bytes, 3 * kPage);
  world.deallocate(front, stream);
}

TEST(UnsplitOnPool, of_large_chunks_has_what_its_chunks_have) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world, {false, false, 0});
  const DevicePtr whole = allocate_in(world, arena, 8 * kPage, stream);
  world.deallocate(whole, stream);
  EXPECT_EQ(allocate_in(world, arena, 5 * kPage, stream), whole);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, stream), whole + 5 * kPage);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

class BusyStretch : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = page_world();
    options.config.limits.capacity = 8 * kPage;
    return options;
  }
  // Live blocks in one stretch of 6 pages, each in a page of its own.
  void scatter() {
    const DevicePtr whole = allocate_in(world, arena, 6 * kPage, a);
    world.deallocate(whole, a);
    for (const Bytes page : {0, 2, 5})
      small.push_back(allocate_at(world, arena, {whole + page * kPage, 512}, a));
  }

  PoolWorld world{options()};
  EventLog log{world.pool()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world);
  std::vector<DevicePtr> small;
};

TEST_F(BusyStretch, gives_idle_chunks_to_a_request_of_the_pool) {
  const DevicePtr large = allocate_in(world, arena, 6 * kPage - kPage / 4, a);
  const DevicePtr last = allocate_in(world, arena, 512, a);
  ASSERT_LT(last - large, 6 * kPage) << "in the last page";
  world.deallocate(large, a);
  world.use(world.allocate(7 * kPage, a), 7 * kPage, a);
  world.use(last, 512, a);
  EXPECT_EQ(world.statistics().live_bytes, 7 * kPage + 512);
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  world.deallocate(last, a);
  EXPECT_EQ(trim(world, arena), kPage);
}

TEST_F(BusyStretch, gives_idle_chunks_between_blocks_and_keeps_theirs) {
  scatter();
  log.clear();
  EXPECT_EQ(trim(world, arena), 3 * kPage);
  ASSERT_EQ(log.of(EventKind::arena_shrink).size(), 2u);
  EXPECT_EQ(log.of(EventKind::arena_shrink)[0].ptr, small[0] + kPage);
  EXPECT_EQ(log.of(EventKind::arena_shrink)[0].bytes, kPage);
  EXPECT_EQ(log.of(EventKind::arena_shrink)[1].ptr, small[1] + kPage);
  EXPECT_EQ(log.of(EventKind::arena_shrink)[1].bytes, 2 * kPage);
  for (const DevicePtr each : small) world.use(each, 512, a);
  EXPECT_EQ(trim(world, arena), 0u);
  EXPECT_EQ(log.stretches().size(), 3u);
  world.use(world.allocate(5 * kPage, b), 5 * kPage, b);
  for (const DevicePtr each : small) world.deallocate(each, a);
  EXPECT_EQ(trim(world, arena), 3 * kPage);
  EXPECT_TRUE(log.stretches().empty());
}

TEST_F(BusyStretch, still_serves_the_arena_where_it_was_divided) {
  scatter();
  trim(world, arena);
  const DevicePtr again = allocate_in(world, arena, kPage - 512, a);
  EXPECT_EQ(again, small[0] + 512);
  world.use(again, kPage - 512, a);
}

TEST_F(BusyStretch, gives_chunks_with_the_stamp_of_their_work) {
  const DevicePtr large = allocate_in(world, arena, 5 * kPage, a);
  const DevicePtr last = allocate_in(world, arena, 512, a);
  static_cast<void>(last);
  world.use(large, 5 * kPage, a, kLongNs);
  world.deallocate(large, a);
  world.use(world.allocate(6 * kPage, b), 6 * kPage, b);
  EXPECT_GE(world.statistics().gpu_waits + world.statistics().host_waits, 1u)
      << "the GPU was still busy with it";
}

TEST_F(BusyStretch, says_what_a_request_could_have) {
  scatter();
  const auto info = world.pool().limits().memory_info();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().free, 5 * kPage);
  world.use(world.allocate(5 * kPage, b), 5 * kPage, b);
}

TEST_F(BusyStretch, of_a_released_arena_gives_its_chunks_in_a_shortage) {
  scatter();
  release(world, arena);
  world.use(world.allocate(5 * kPage, b), 5 * kPage, b);
  for (const DevicePtr each : small) world.deallocate(each, a);
  EXPECT_EQ(world.statistics().live_bytes, 5 * kPage);
}

TEST_F(BusyStretch, of_a_pinned_arena_keeps_all) {
  scatter();
  pin(world, arena);
  EXPECT_EQ(trim(world, arena), 0u);
  expect_error(world.pool().allocate({5 * kPage, 0, b}), ErrorCode::out_of_memory);
}

TEST_F(BusyStretch, of_a_pinned_arena_that_is_released_gives_its_chunks_after_all_work) {
  scatter();
  pin(world, arena);
  release(world, arena);
  world.use(world.allocate(5 * kPage, b), 5 * kPage, b);
  for (const DevicePtr each : small) world.deallocate(each, a);
}

TEST_F(BusyStretch, of_one_chunk_keeps_it) {
  arena::ArenaOptions one;
  one.one_chunk = true;
  const ArenaId other = make_arena(world, one);
  const DevicePtr whole = allocate_in(world, other, 6 * kPage, a);
  world.deallocate(whole, a);
  allocate_at(world, other, {whole, 512}, a);
  EXPECT_EQ(trim(world, other), 0u);
}

// Chunks go back whole, and what is idle in a chunk beside a live block stays.
TEST(BusyStretchOfLargeChunks, gives_whole_chunks_only) {
  PoolWorld world(adaptive_world());
  const StreamHandle a = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr whole = allocate_in(world, arena, 40 * kPage, a);
  world.deallocate(whole, a);
  const Vector<AddressRange> chunks = world.pool().reports().layout().chunks;
  ASSERT_GT(chunks.size(), 1u);
  const AddressRange largest = *std::max_element(
      chunks.begin(), chunks.end(),
      [](const AddressRange& one, const AddressRange& two) { return one.size < two.size; });
  ASSERT_GT(largest.size, kPage);
  allocate_at(world, arena, {largest.begin + kPage - 512, 1024}, a);
  const Bytes rest = 40 * kPage - largest.size;
  EXPECT_EQ(trim(world, arena), rest);
  world.pool().limits().set_capacity(40 * kPage);
  world.use(world.allocate(rest, a), rest, a);
}

TEST_F(ShortArena, a_failed_request_leaves_the_arena_as_it_was) {
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  expect_error(world.pool().allocate({3 * kPage, 0, a, arena}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.pool().arenas().live(arena).value(), Vector<DevicePtr>{ptr});
  EXPECT_EQ(world.statistics().failed_allocations, 1u);
}

TEST_F(ShortArena, the_out_of_memory_callback_may_free_in_the_arena) {
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return world.pool().deallocate(ptr, a).ok(); });
  allocate_in(world, arena, 5 * kPage, a);
}

// --- release

TEST_F(ArenaMemory, release_gives_back_what_is_idle_and_the_rest_when_it_is_freed) {
  const DevicePtr live = allocate_in(world, arena, 1000, a);
  const DevicePtr idle = allocate_in(world, arena, 3 * kPage, a);
  world.deallocate(idle, a);
  release(world, arena);
  EXPECT_EQ(world.allocate(3 * kPage, a), idle);
  EXPECT_EQ(info_of(live).requested, 1000u);
  world.use(live, 1000, a);
  expect_error(world.pool().allocate({1000, 0, a, arena}), ErrorCode::invalid_argument,
               {"released"});
  expect_error(world.pool().arenas().release(arena), ErrorCode::invalid_argument, {"released"});
  world.deallocate(live, a);
  settle();
  EXPECT_EQ(world.allocate(kPage, b), live) << "the page is the pool's again";
}

TEST_F(ArenaMemory, memory_of_a_pinned_arena_waits_for_all_work_that_was_queued_by_its_release) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  pin(world, arena);
  world.deallocate(ptr, a);
  ASSERT_EQ(world.sim().ctx_synchronize(), driver::CuResult::success);
  world.use(ptr, 3 * kPage, b, kLongNs);  // as a launch of a graph does
  release(world, arena);
  const DevicePtr other = world.allocate(3 * kPage, a);
  EXPECT_NE(other, ptr);
  world.use(other, 3 * kPage, a);
  settle();
  EXPECT_EQ(world.allocate(3 * kPage, a), ptr);
  world.use(ptr, 3 * kPage, a);
}

TEST_F(ArenaMemory, live_allocations_are_listed_in_ascending_order) {
  Vector<DevicePtr> all;
  for (const Bytes bytes : {Bytes{100}, 3 * kPage, Bytes{7000}})
    all.push_back(allocate_in(world, arena, bytes, a));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(world.pool().arenas().live(arena).value(), all);
  world.deallocate(all[1], a);
  EXPECT_EQ(world.pool().arenas().live(arena).value(), (Vector<DevicePtr>{all[0], all[2]}));
}

TEST_F(ShortArena, idle_chunks_make_room_for_one_chunk) {
  std::vector<DevicePtr> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(world.allocate(kPage, a));
  for (const DevicePtr ptr : idle) world.deallocate(ptr, a);
  world.wait();
  const DevicePtr ptr = allocate_in(world, make_arena(world, {true, true, 0}), 6 * kPage, a);
  const auto range = world.pool().sharing().share({ptr, 6 * kPage});
  ASSERT_TRUE(range.ok()) << message_of(range);
  EXPECT_EQ(world.pool().sharing().lease(range.value().share, 0, 6 * kPage).value().chunks.size(),
            1u);
  world.pool().sharing().end_lease(range.value().share, context::Holder::importer);
  world.pool().sharing().end_lease(range.value().share, context::Holder::handle);
}

}  // namespace
}  // namespace vpmm::test
