// SPDX-License-Identifier: Apache-2.0
// arena: streams that allocate and free in one arena, and its memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

class ArenaOnPool : public ArenaWorld {
 protected:
  void idle() { ASSERT_EQ(world.sim().ctx_synchronize(), driver::CuResult::success); }
};

// --- what is where

TEST_F(ArenaOnPool, small_requests_share_a_page_and_large_ones_have_whole_pages) {
  const DevicePtr first = allocate_in(world, arena, 1000, a);
  const DevicePtr second = allocate_in(world, arena, 500, a);
  EXPECT_EQ(second, first + 1024);
  EXPECT_EQ(world.statistics().allocated_bytes, 1024 + 512u);
  const DevicePtr large = allocate_in(world, arena, 3 * kPage, a);
  EXPECT_EQ(world.statistics().allocated_bytes, 3 * kPage + 1024 + 512);
  world.use(first, 1000, a);
  world.use(second, 500, a);
  world.use(large, 3 * kPage, a);
}

TEST_F(ArenaOnPool, zero_bytes_are_null) {
  EXPECT_EQ(allocate_in(world, arena, 0, a), DevicePtr{});
}

TEST_F(ArenaOnPool, an_alignment_is_kept) {
  allocate_in(world, arena, 512, a);
  EXPECT_TRUE(is_aligned(allocate_in(world, arena, 512, a, 4096), 4096));
  EXPECT_TRUE(is_aligned(allocate_in(world, arena, 512, a, 4 * kPage), 4 * kPage));
  expect_error(world.pool().allocate({512, 384, a, arena}), ErrorCode::invalid_argument, {"384"});
}

TEST_F(ArenaOnPool, a_query_tells_the_request_and_the_arena) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  const auto info = info_of(ptr + 700);
  EXPECT_EQ(info.begin, ptr);
  EXPECT_EQ(info.requested, 1000u);
  EXPECT_EQ(info.usable, 1024u);
  EXPECT_EQ(info.arena, arena);
  EXPECT_EQ(info_of(world.allocate(1000, a)).arena, ArenaId{});
  expect_error(world.pool().query(ptr + 1024),
               ErrorCode::invalid_pointer);  // free memory of the arena
}

TEST_F(ArenaOnPool, mistakes_change_nothing_and_say_what_is_wrong) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  expect_error(world.pool().deallocate(ptr + 512, a), ErrorCode::invalid_pointer,
               {"inside", hex(ptr)});
  expect_error(world.pool().record_use(ptr + 512, b), ErrorCode::invalid_pointer,
               {"inside", hex(ptr)});
  world.deallocate(ptr, a);
  expect_error(world.pool().deallocate(ptr, a), ErrorCode::invalid_pointer, {hex(ptr)});
  expect_error(world.pool().record_use(ptr, b), ErrorCode::invalid_pointer, {hex(ptr)});
  EXPECT_EQ(world.statistics().caller_mistakes, 4u);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST_F(ArenaOnPool, what_is_no_arena_is_refused) {
  const ArenaId none{~std::uint64_t{0}};
  expect_error(world.pool().allocate({100, 0, a, none}), ErrorCode::invalid_argument, {"no arena"});
  expect_error(world.pool().arenas().allocate_at(none, {DevicePtr{4096}, 100}, a),
               ErrorCode::invalid_argument, {"no arena"});
  expect_error(world.pool().arenas().pin(none), ErrorCode::invalid_argument);
  expect_error(world.pool().arenas().trim(none), ErrorCode::invalid_argument);
  expect_error(world.pool().arenas().live(none), ErrorCode::invalid_argument);
  expect_error(world.pool().arenas().release(none), ErrorCode::invalid_argument);
}

TEST_F(ArenaOnPool, a_number_is_never_given_twice) {
  const ArenaId first = make_arena(world);
  release(world, first);
  EXPECT_NE(make_arena(world), first);
}

TEST(ArenaWithoutPool, is_refused) {
  WorldOptions options;
  options.config.pool_enabled = false;
  PoolWorld world(options);
  expect_error(world.pool().arenas().create({}), ErrorCode::unsupported);
  expect_error(world.pool().allocate({100, 0, world.stream(), ArenaId{1}}), ErrorCode::unsupported);
}

// --- streams

TEST_F(ArenaOnPool, what_a_stream_freed_serves_it_again_at_once) {
  for (const Bytes bytes : {Bytes{1000}, 3 * kPage}) {
    const DevicePtr ptr = allocate_in(world, arena, bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, a);
    EXPECT_EQ(allocate_in(world, arena, bytes, a), ptr);
    world.use(ptr, bytes, a);
    world.deallocate(ptr, a);
  }
}

TEST_F(ArenaOnPool, another_stream_has_it_when_the_work_is_over) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  const DevicePtr other = allocate_in(world, arena, 3 * kPage, b);
  EXPECT_NE(other, ptr);
  settle();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, b), ptr);
  world.use(ptr, 3 * kPage, b);
}

TEST_F(ArenaOnPool, another_stream_has_it_at_once_where_proof_shows_that_the_work_is_over) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a);
  world.deallocate(ptr, a);
  world.sim().run_until_idle();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, b), ptr) << "rather than more memory";
  world.use(ptr, 3 * kPage, b);
}

TEST_F(ArenaOnPool, a_stream_with_the_handle_of_one_that_is_gone_is_another) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  ASSERT_EQ(world.sim().stream_destroy(a), driver::CuResult::success);
  const StreamHandle again = world.stream();
  ASSERT_EQ(again, a);
  const DevicePtr other = allocate_in(world, arena, 3 * kPage, again);
  EXPECT_NE(other, ptr);
  world.use(other, 3 * kPage, again);
}

TEST_F(ArenaOnPool, both_names_of_the_legacy_stream_are_one) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, driver::kNullStream);
  world.use(ptr, 1000, driver::kNullStream, kLongNs);
  world.deallocate(ptr, driver::kLegacyStream);
  EXPECT_EQ(allocate_in(world, arena, 1000, driver::kNullStream), ptr);
}

TEST_F(ArenaOnPool, a_recorded_use_is_waited_for_also_by_the_own_stream) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  idle();
  world.use(ptr, 3 * kPage, b, kLongNs);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.deallocate(ptr, a);
  const DevicePtr other = allocate_in(world, arena, 3 * kPage, a);
  EXPECT_NE(other, ptr);
  settle();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
  world.use(ptr, 3 * kPage, a);
}

// Only a request that finds nothing else looks at what waited, although that would fit better.
TEST_F(ArenaOnPool, what_is_ready_goes_before_what_waited) {
  const DevicePtr waited = allocate_in(world, arena, 2 * kPage, a);
  const DevicePtr ready = allocate_in(world, arena, 3 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(waited, b).ok());
  world.deallocate(waited, a);
  world.deallocate(ready, a);
  settle();
  EXPECT_EQ(allocate_in(world, arena, 2 * kPage, a), ready);
  EXPECT_EQ(allocate_in(world, arena, 2 * kPage, a), waited);
}

TEST_F(ArenaOnPool, a_free_without_a_stream_waits_for_all) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, std::nullopt);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, a), ptr);
  settle();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
}

TEST_F(ArenaOnPool, a_free_on_another_stream_waits_for_both) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, b);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, a), ptr);
}

TEST_F(ArenaOnPool, what_no_stream_asked_for_is_at_once_the_stream_that_frees_it) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, std::nullopt);
  world.use(ptr, 3 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
}

TEST_F(ArenaOnPool, an_arena_that_holds_nothing_is_in_no_report) {
  const auto failed = world.pool().allocate({Bytes{1} << 50, 0, a});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message.find("arena"), std::string::npos) << failed.error().message;
}

TEST_F(ArenaOnPool, in_a_pinned_arena_a_free_on_another_stream_leaves_it_its_streams) {
  pin(world, arena);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.deallocate(ptr, b);
  settle();
  EXPECT_NE(allocate_in(world, arena, 3 * kPage, b), ptr);
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
}

TEST_F(ArenaOnPool, deferred_frees_are_carried_out_by_the_next_request) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  world.pool().deallocate_deferred(ptr);
  allocate_in(world, arena, 500, a);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
}

TEST_F(ArenaOnPool, a_bound_stream_frees_memory_of_an_arena) {
  auto bound = world.pool().bind(a);
  ASSERT_TRUE(bound.ok());
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  EXPECT_TRUE(bound.value()->deallocate(ptr).ok());
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, a), ptr);
}

// Also those that used memory of others.
TEST_F(ArenaOnPool, streams_that_are_gone_are_forgotten_with_their_blocks) {
  const DevicePtr stays = allocate_in(world, arena, 1000, a);
  for (int i = 0; i < 200; ++i) {
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = allocate_in(world, arena, 1000, stream);
    ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
    const DevicePtr used = allocate_in(world, arena, 1000, a);
    ASSERT_TRUE(world.pool().record_use(used, stream).ok());
    world.deallocate(used, a);
    world.deallocate(ptr, stream);
    ASSERT_EQ(world.sim().stream_synchronize(stream), driver::CuResult::success);
    ASSERT_EQ(world.sim().stream_destroy(stream), driver::CuResult::success);
  }
  settle();
  EXPECT_LT(world.statistics().timelines, 100u);
  world.deallocate(stays, a);
}

// The idle chunks would serve another arena.
TEST_F(ArenaOnPool, exact_memory_is_made_anew_where_idle_chunks_are_of_other_sizes) {
  arena::ArenaOptions options;
  options.is_exact = true;
  for (const ArenaId id : {make_arena(world, options), arena}) {
    std::vector<DevicePtr> singles;
    for (int i = 0; i < 6; ++i) {
      const auto made = world.pool().allocate({kPage, 0, a, {}, 0, 0, true});
      ASSERT_TRUE(made.ok()) << message_of(made);
      singles.push_back(made.value());
    }
    for (std::size_t i = 0; i < 6; i += 2) world.deallocate(singles[i], a);
    settle();
    const std::uint64_t moved = world.statistics().chunks_moved;
    allocate_in(world, id, 3 * kPage, a);
    EXPECT_EQ(world.statistics().chunks_moved, moved + (id == arena ? 3 : 0));
  }
}

TEST_F(ArenaOnPool, large_requests_in_exact_memory_share_no_stretch) {
  arena::ArenaOptions options;
  options.is_exact = true;
  const ArenaId exact = make_arena(world, options);
  const DevicePtr large = allocate_in(world, exact, 64 * kPage, a);
  world.deallocate(large, a);
  EXPECT_NE(allocate_in(world, exact, 40 * kPage, a), large);
  EXPECT_EQ(allocate_in(world, exact, 63 * kPage, a), large) << "a 32nd is lost at most";
  const DevicePtr smaller = allocate_in(world, exact, 33 * kPage, a);
  world.deallocate(smaller, a);
  EXPECT_EQ(allocate_in(world, exact, 32 * kPage, a), smaller) << "a 32nd, and no byte more";
  const DevicePtr shared = allocate_in(world, arena, 64 * kPage, a);
  world.deallocate(shared, a);
  EXPECT_EQ(allocate_in(world, arena, 40 * kPage, a), shared) << "where memory need not be exact";
}

// The pagemap has known the page as an allocation of the stream's.
TEST_F(ArenaOnPool, a_stretch_where_the_stream_had_pages_before_is_not_taken_for_them) {
  const DevicePtr pages = world.allocate(kPage, a);
  world.deallocate(pages, a);
  settle();
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  ASSERT_EQ(ptr, pages);
  world.use(ptr, 1000, a);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_NE(world.allocate(kPage, a), pages) << "it is the arena's";
}

// --- at an address

TEST_F(ArenaOnPool, a_place_that_is_free_can_be_asked_for) {
  const DevicePtr ptr = allocate_in(world, arena, 8192, a);
  world.use(ptr, 8192, a);
  world.deallocate(ptr, a);
  settle();
  EXPECT_EQ(allocate_at(world, arena, {ptr + 1024, 1500}, b), ptr + 1024);
  EXPECT_EQ(info_of(ptr + 2000).begin, ptr + 1024);
  EXPECT_EQ(info_of(ptr + 1024).usable, 1536u);
  world.use(ptr + 1024, 1500, b);
  EXPECT_EQ(allocate_in(world, arena, 1024, a), ptr);
}

TEST_F(ArenaOnPool, a_place_is_refused_that_is_not_free_or_not_of_the_arena) {
  const DevicePtr ptr = allocate_in(world, arena, 8192, a);
  expect_error(world.pool().arenas().allocate_at(arena, {ptr, 100}, a), ErrorCode::invalid_argument,
               {"not free", hex(ptr)});
  expect_error(world.pool().arenas().allocate_at(arena, {ptr + 8192, kPage}, a),
               ErrorCode::invalid_argument, {"not free"});
  expect_error(world.pool().arenas().allocate_at(arena, {ptr + 8200, 100}, a),
               ErrorCode::invalid_argument, {"multiple"});
  expect_error(world.pool().arenas().allocate_at(arena, {ptr + 8192, 0}, a),
               ErrorCode::invalid_argument);
  const DevicePtr elsewhere = world.allocate(kPage, a);
  expect_error(world.pool().arenas().allocate_at(arena, {elsewhere, 100}, a),
               ErrorCode::invalid_pointer, {hex(elsewhere)});
  expect_error(world.pool().arenas().allocate_at(make_arena(world), {ptr + 8192, 100}, a),
               ErrorCode::invalid_pointer);
}

TEST_F(ArenaOnPool, a_checkpoint_is_restored_block_by_block) {
  const std::vector<Bytes> sizes = {1000, 3 * kPage, 70'000, 600 * kKiB};
  std::vector<AddressRange> blocks;
  for (const Bytes bytes : sizes) blocks.push_back({allocate_in(world, arena, bytes, a), bytes});
  pin(world, arena);
  for (const AddressRange& block : blocks) world.deallocate(block.begin, a);
  settle();
  const Bytes mapped = world.statistics().mapped_bytes;
  for (const AddressRange& block : blocks)
    EXPECT_EQ(allocate_at(world, arena, block, a), block.begin);
  EXPECT_EQ(world.pool().arenas().live(arena).value().size(), blocks.size());
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

// --- kinds of arenas

TEST_F(ArenaOnPool, without_splitting_each_allocation_has_pages_of_its_own) {
  const ArenaId whole = make_arena(world, {false, false, 0});
  const DevicePtr first = allocate_in(world, whole, 1000, a);
  const DevicePtr second = allocate_in(world, whole, 1000, a);
  EXPECT_EQ(info_of(first).usable, kPage);
  EXPECT_GE(first < second ? second - first : first - second, kPage);
  world.deallocate(first, a);
  EXPECT_EQ(allocate_in(world, whole, 5000, a), first);
  world.deallocate(first, a);
  EXPECT_EQ(allocate_at(world, whole, {first, 3000}, a), first);
  world.deallocate(second, a);
  expect_error(world.pool().arenas().allocate_at(whole, {second + 512, 100}, a),
               ErrorCode::invalid_argument);
}

TEST_F(ArenaOnPool, one_chunk_stands_behind_each_stretch_where_that_is_asked_for) {
  std::vector<DevicePtr> idle;  // one chunk each
  for (int i = 0; i < 4; ++i) idle.push_back(world.allocate(kPage, a));
  for (const DevicePtr ptr : idle) world.deallocate(ptr, a);
  settle();
  const ArenaId registered = make_arena(world, {true, true, 0});
  const DevicePtr ptr = allocate_in(world, registered, 4 * kPage, a);
  const auto range = world.pool().sharing().share({ptr, 4 * kPage});
  ASSERT_TRUE(range.ok()) << message_of(range);
  const auto chunks = world.pool().sharing().lease(range.value().share, 0, 4 * kPage);
  ASSERT_TRUE(chunks.ok());
  EXPECT_EQ(chunks.value().chunks.size(), 1u);
  world.pool().sharing().end_lease(range.value().share, context::Holder::importer);
  world.pool().sharing().end_lease(range.value().share, context::Holder::handle);
}

TEST(IsolatedArena, allocations_that_may_be_shared_alone_have_chunks_of_their_own) {
  WorldOptions options = adaptive_world();
  options.config.ipc_isolate = true;
  PoolWorld world(options);
  const StreamHandle a = world.stream();
  const ArenaId arena = make_arena(world);
  allocate_in(world, arena, 1000, a);
  allocate_in(world, arena, 1000, a);
  EXPECT_EQ(world.statistics().mapped_bytes, 2 * kPage);
}

// --- sharing, figures, resets, threads

TEST_F(ArenaOnPool, a_block_that_is_leased_stays_until_it_is_let_go) {
  const DevicePtr ptr = allocate_in(world, arena, 4096, a);
  const auto range = world.pool().sharing().share({ptr, 4096});
  ASSERT_TRUE(range.ok()) << message_of(range);
  ASSERT_TRUE(world.pool().sharing().lease(range.value().share, 0, 4096).ok());
  world.pool().sharing().end_lease(range.value().share, context::Holder::handle);
  world.deallocate(ptr, a);
  expect_error(world.pool().query(ptr), ErrorCode::invalid_pointer);
  expect_error(world.pool().deallocate(ptr, a), ErrorCode::invalid_pointer);
  EXPECT_TRUE(world.pool().arenas().live(arena).value().empty());
  release(world, arena);
  EXPECT_EQ(world.statistics().leased_bytes, 4096u);
  EXPECT_NE(world.allocate(kPage, a), ptr);
  world.pool().sharing().end_lease(range.value().share, context::Holder::importer);
  EXPECT_EQ(world.pool().reports().validate(), "");
  settle();
  EXPECT_EQ(world.allocate(kPage, b), ptr);
}

TEST_F(ArenaOnPool, figures_count_what_users_have_and_what_lies_idle) {
  const auto small = allocate_in(world, arena, 1000, a);
  const auto large = allocate_in(world, arena, 3 * kPage - 100, a);
  auto now = world.statistics();
  EXPECT_EQ(now.live_bytes, 900 + 3 * kPage);
  EXPECT_EQ(now.allocated_bytes, 1024 + 3 * kPage);
  EXPECT_EQ(now.free_bytes, kPage - 1024);
  EXPECT_EQ(now.mapped_bytes, 4 * kPage);
  EXPECT_EQ(now.live_allocations, 2u);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.allocations, now.hits + now.plans);
  world.deallocate(large, a);
  now = world.statistics();
  EXPECT_EQ(now.live_bytes, 1000u);
  EXPECT_EQ(now.peak_live_bytes, 900 + 3 * kPage);
  EXPECT_EQ(now.pending_bytes, 3 * kPage);
  EXPECT_EQ(now.deallocations, 1u);
  world.deallocate(small, a);
  settle();
  trim(world, arena);
  now = world.statistics();
  EXPECT_EQ(now.free_bytes, 4 * kPage);
  EXPECT_EQ(now.live_allocations, 0u);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.deallocations, 2u);
}

TEST_F(ArenaOnPool, a_snapshot_shows_the_blocks) {
  const DevicePtr first = allocate_in(world, arena, 512 * kKiB, a);
  allocate_in(world, arena, 512 * kKiB, a);
  world.deallocate(first, a);
  const auto snapshot = world.pool().reports().snapshot();
  ASSERT_GE(snapshot.regions.size(), 3u);
  EXPECT_EQ(snapshot.regions[0].kind, '-');
  EXPECT_FALSE(snapshot.regions[0].complete);
  EXPECT_EQ(snapshot.regions[1].kind, ' ');
  EXPECT_EQ(snapshot.regions[1].requested, 512 * kKiB);
  EXPECT_EQ(snapshot.regions[2].kind, '-');
  EXPECT_TRUE(snapshot.regions[2].complete);
}

TEST_F(ArenaOnPool, memory_that_is_free_counts_stretches_that_are_idle_and_not_pinned) {
  const auto free_bytes = [&] { return world.pool().limits().memory_info().value().free; };
  const Bytes all = free_bytes();
  const DevicePtr ptr = allocate_in(world, arena, 4 * kPage, a);  // a chunk
  EXPECT_EQ(free_bytes(), all - 4 * kPage);
  EXPECT_EQ(world.statistics().small_free_bytes, 0u);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().small_free_bytes, 0u);
  EXPECT_EQ(free_bytes(), all);
  pin(world, arena);
  EXPECT_EQ(free_bytes(), all - 4 * kPage);
}

TEST_F(ArenaOnPool, blocks_survive_a_reset_and_serve_new_streams) {
  const DevicePtr kept = allocate_in(world, arena, 1000, a);
  const DevicePtr freed = allocate_in(world, arena, 3 * kPage, a);
  pin(world, arena);
  world.deallocate(freed, a);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  const StreamHandle fresh = world.stream();
  EXPECT_EQ(allocate_in(world, arena, 3 * kPage, fresh), freed)
      << "the stream that it was kept for is gone";
  world.deallocate(kept, fresh);
  allocate_in(world, arena, 1000, fresh);
}

TEST_F(ArenaOnPool, threads_may_share_an_arena) {
  const DevicePtr live = allocate_in(world, arena, 64 * kPage, a);  // others share stretches
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([this, t] {
      driver::ContextHandle context{};
      EXPECT_EQ(world.sim().device_primary_ctx_retain(0, context), driver::CuResult::success);
      EXPECT_EQ(world.sim().ctx_set_current(context), driver::CuResult::success);
      StreamHandle stream{};
      EXPECT_EQ(world.sim().stream_create(StreamFlags::non_blocking, stream),
                driver::CuResult::success);
      for (int i = 0; i < 200; ++i) {
        const Bytes bytes = static_cast<Bytes>(i % 7 + 1) * (t % 2 == 0 ? 3000 : kPage * 9 / 8);
        const auto ptr = world.pool().allocate({bytes, 0, stream, arena});
        ASSERT_TRUE(ptr.ok()) << message_of(ptr);
        world.use(ptr.value(), bytes, stream);
        ASSERT_TRUE(
            world.pool().deallocate(ptr.value(), i % 5 == 0 ? pool::Stream() : stream).ok());
        if (i % 50 == 0) {
          EXPECT_TRUE(world.pool().limits().trim(0).ok());
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  world.deallocate(live, a);
}

}  // namespace
}  // namespace vpmm::test
