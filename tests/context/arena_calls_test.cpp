// SPDX-License-Identifier: Apache-2.0
// context: arenas through the calls of a pool: proof, waits, and memory that goes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

TEST_F(ArenaWorld, trim_returns_its_idle_memory_to_the_pool) {
  const DevicePtr ptr = allocate_in(world, arena, 8 * kPage, a);
  world.deallocate(ptr, a);
  settle();
  EXPECT_EQ(trim(world, arena), 8 * kPage);
  EXPECT_EQ(trim(world, arena), 0u);
}

TEST_F(ArenaWorld, grows_by_more_than_a_request_so_that_blocks_share_pages) {
  PoolWorld shared(page_by_page_world());
  const ArenaId many = make_arena(shared);
  const StreamHandle stream = shared.stream();
  for (int i = 0; i < 400; ++i) allocate_in(shared, many, 1100 * kKiB, stream);
  const observe::Statistics now = shared.statistics();
  EXPECT_LT(now.mapped_bytes, now.live_bytes + now.live_bytes / 4);
}

TEST_F(ArenaWorld, growth_of_one_asks_for_no_proof_of_work_elsewhere) {
  world.deallocate(world.allocate(64 * kPage, b), b);
  settle();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.deallocate(world.allocate(8 * kPage, b), b);
  const std::uint64_t recorded = world.statistics().events_recorded;
  allocate_in(world, arena, kPage, a);
  EXPECT_EQ(world.statistics().events_recorded, recorded);
}

// Streams that are done are asked once each, the other one by the proof and by two looks for
// memory.
TEST_F(ArenaWorld, growth_of_one_proves_once_what_is_done) {
  constexpr std::uint64_t kDone = 12;
  const DevicePtr busy = allocate_in(world, arena, 4 * kPage, b);
  world.use(busy, 4 * kPage, b, kLongNs);
  for (std::uint64_t i = 0; i < kDone; ++i) {
    const StreamHandle stream = world.stream();
    std::vector<DevicePtr> blocks;
    for (int k = 0; k < 20; ++k) blocks.push_back(allocate_in(world, arena, 1000, stream));
    for (const DevicePtr ptr : blocks) world.use(ptr, 1000, stream, kLongNs / 40);
    for (const DevicePtr ptr : blocks) world.deallocate(ptr, stream);
  }
  world.deallocate(busy, b);
  world.sim().advance_host_ns(kLongNs * 6 / 10);
  const std::uint64_t asked = world.calls().count(Call::event_query);
  EXPECT_NE(allocate_in(world, arena, 4 * kPage, a), busy);
  EXPECT_GT(world.calls().count(Call::event_query), asked + kDone);
  EXPECT_LE(world.calls().count(Call::event_query), asked + kDone + 3);
}

TEST_F(ArenaWorld, without_copies_on_the_host_is_released_without_a_driver_call) {
  const std::uint64_t before = world.calls().total_count();
  release(world, arena);
  EXPECT_EQ(world.calls().total_count(), before);
}

TEST_F(ArenaWorld, of_external_memory_gives_none_back_during_a_capture) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal);
  add_memory(world, external, memory);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  expect_error(world.pool().arenas().take(external), ErrorCode::capture_active);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_EQ(take_memory(world, external), memory);
  release(world, external);
  free_user_memory(world, memory);
}

// Nobody waits for work on memory that stays.
TEST_F(ArenaWorld, of_external_memory_in_use_gives_none_back_without_a_wait) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal);
  add_memory(world, external, memory);
  const DevicePtr ptr = allocate_in(world, external, 4 * kPage, a);
  world.use(ptr, 4 * kPage, a, kLongNs);
  const std::uint64_t began_ns = world.sim().now_ns();
  const std::uint64_t waits = world.statistics().host_waits;
  EXPECT_TRUE(take_memory(world, external).empty());
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  EXPECT_TRUE(take_memory(world, external).empty()) << "nor is a capture broken";
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  EXPECT_LT(world.sim().now_ns() - began_ns, kLongNs);
  EXPECT_EQ(world.statistics().host_waits, waits);
  world.deallocate(ptr, a);
  EXPECT_EQ(take_memory(world, external), memory);
  EXPECT_TRUE(take_memory(world, external).empty()) << "it is gone";
  release(world, external);
  free_user_memory(world, memory);
}

TEST_F(ArenaWorld, of_external_memory_gives_back_what_was_freed_without_a_lock) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal);
  add_memory(world, external, memory);
  world.pool().deallocate_deferred(allocate_in(world, external, 4 * kPage, a));
  EXPECT_EQ(take_memory(world, external), memory);
  release(world, external);
  free_user_memory(world, memory);
}

TEST_F(ArenaWorld, lists_what_lives_in_it_without_what_only_other_processes_hold) {
  const DevicePtr first = allocate_in(world, arena, 2 * kPage, a);
  const DevicePtr second = allocate_in(world, arena, 2 * kPage, a);
  const auto shared = world.pool().sharing().share({first, kPage});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  ASSERT_TRUE(world.pool().sharing().lease(shared.value().share, 0, kPage).ok());
  const auto live = [&] {
    const auto listed = world.pool().arenas().live(arena);
    EXPECT_TRUE(listed.ok()) << message_of(listed);
    return std::vector<DevicePtr>(listed.value().begin(), listed.value().end());
  };
  EXPECT_EQ(live(), (std::vector<DevicePtr>{std::min(first, second), std::max(first, second)}));
  world.deallocate(first, a);
  EXPECT_EQ(live(), std::vector<DevicePtr>{second});
  for (const context::Holder holder : {context::Holder::handle, context::Holder::importer})
    world.pool().sharing().end_lease(shared.value().share, holder);
  world.deallocate(second, a);
  EXPECT_TRUE(live().empty());
  release(world, arena);
  expect_error(world.pool().arenas().live(arena), ErrorCode::invalid_argument);
}

// The tag of a scope is for the pool's memory, not for the user's.
TEST_F(ArenaWorld, has_the_tag_of_its_scope_unless_its_memory_is_external) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  context::Suspension& scopes = world.pool().suspension();
  ASSERT_TRUE(scopes.enter(7, context::TagScope::thread).ok());
  const ArenaId own = make_arena(world);
  const ArenaId other = make_arena(world, {false, true, 9});
  const ArenaId external = make_arena(world, kExternal);
  ASSERT_TRUE(scopes.leave(7, context::TagScope::thread).ok());
  add_memory(world, external, memory);
  for (const auto& [in, tag] : {std::pair{own, 7U}, {other, 9U}, {external, 0U}}) {
    const DevicePtr ptr = allocate_in(world, in, 4 * kPage, a);
    for (const report::LayoutBlock& block : world.pool().reports().layout().blocks)
      if (block.range.begin == ptr) {
        EXPECT_EQ(block.tag, tag);
      }
    world.deallocate(ptr, a);
  }
  EXPECT_EQ(take_memory(world, external), memory);
  release(world, external);
  free_user_memory(world, memory);
}

class ArenaShortage : public ::testing::Test {
 protected:
  static WorldOptions limited() {
    WorldOptions options = adaptive_world();
    options.config.limits.capacity = 8 * kPage;
    return options;
  }
  PoolWorld world{limited()};
  StreamHandle first = world.stream();
  StreamHandle second = world.stream();
  ArenaId arena = make_arena(world);
};

TEST_F(ArenaShortage, nobody_waits_for_work_that_frees_nothing) {
  const DevicePtr live = allocate_in(world, arena, 6 * kPage, first);
  world.use(live, 6 * kPage, first, kLongNs);
  const std::uint64_t began_ns = world.sim().now_ns();
  expect_error(world.pool().allocate({4 * kPage, 0, second, arena}), ErrorCode::out_of_memory);
  EXPECT_LT(world.sim().now_ns() - began_ns, kLongNs);
  EXPECT_EQ(world.statistics().host_waits, 0u);
  world.deallocate(live, first);
}

TEST_F(ArenaShortage, a_block_that_fits_is_waited_for) {
  const DevicePtr live = allocate_in(world, arena, 2 * kPage, first);  // keeps the chunk
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, first);
  world.use(ptr, 6 * kPage, first, kLongNs);
  world.deallocate(ptr, first);
  EXPECT_EQ(allocate_in(world, arena, 6 * kPage, second), ptr);
  world.use(ptr, 6 * kPage, second);
  EXPECT_EQ(world.statistics().host_waits, 1u);
  world.deallocate(ptr, second);
  world.deallocate(live, first);
}

}  // namespace
}  // namespace vpmm::test
