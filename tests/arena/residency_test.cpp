// SPDX-License-Identifier: Apache-2.0
// arena: blocks, figures and events of arenas without physical memory. Contents, hooks and threads:
// tests/context/suspend*.
#include "arena/residency.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/event_log.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

constexpr std::uint32_t kTag = 7;
constexpr context::SuspendHow kAway{std::nullopt, false, true, std::nullopt};  // to the driver

// An arena with a stretch of four pages: a block of a page and 1000 bytes lives, the rest is free.
class AsleepArena : public ::testing::Test {
 protected:
  static constexpr Bytes kBlock = kPage + 1024;  // in whole grains
  static constexpr Bytes kStretch = 4 * kPage;
  AsleepArena() {
    const DevicePtr whole = allocate_in(world, arena, kStretch, a);
    world.deallocate(whole, a);
    block = allocate_in(world, arena, kPage + 1000, a);
    EXPECT_EQ(block, whole);
    world.wait();
  }
  static arena::ArenaOptions tagged() {
    arena::ArenaOptions options;
    options.tag = kTag;
    return options;
  }
  void suspend(const context::SuspendHow& how = kAway) {
    const auto done = world.pool().suspension().suspend(arena, how);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  void resume() {
    const auto done = world.pool().suspension().resume(arena, {});
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  void free_block() {
    world.deallocate(block, a);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  context::TagInfo info() { return world.pool().suspension().info(kTag); }

  PoolWorld world{page_by_page_world()};
  EventLog log{world.pool()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world, tagged());
  DevicePtr block{};
};

TEST_F(AsleepArena, counts_neither_as_live_nor_as_free_nor_as_pending) {
  const observe::Statistics before = world.statistics();
  EXPECT_EQ(before.live_bytes, kPage + 1000);
  EXPECT_EQ(before.allocated_bytes, kBlock);
  EXPECT_EQ(before.free_bytes, kStretch - kBlock);
  suspend();
  const observe::Statistics asleep = world.statistics();
  EXPECT_EQ(asleep.live_bytes + asleep.allocated_bytes + asleep.free_bytes, 0u);
  EXPECT_EQ(asleep.pending_bytes + asleep.mapped_bytes, 0u);
  EXPECT_EQ(asleep.suspended_bytes, kStretch);
  EXPECT_EQ(asleep.live_allocations, 0u);
  const auto amounts = info().amounts;
  EXPECT_EQ(amounts.live, kPage + 1000);
  EXPECT_EQ(amounts.held, kStretch);
  EXPECT_EQ(amounts.suspended, kStretch);
  resume();
  const observe::Statistics awake = world.statistics();
  EXPECT_EQ(awake.live_bytes, before.live_bytes);
  EXPECT_EQ(awake.allocated_bytes, before.allocated_bytes);
  EXPECT_EQ(awake.free_bytes, before.free_bytes);
  EXPECT_EQ(info().amounts.suspended, 0u);
}

TEST_F(AsleepArena, serves_no_request_and_says_why) {
  suspend();
  const std::string name = "arena " + std::to_string(static_cast<std::uint64_t>(arena));
  expect_error(world.pool().allocate({1000, 0, a, arena}), ErrorCode::suspended,
               {name + " is suspended", "resume it first"});
  report::set_tag_name(kTag, "weights");
  expect_error(world.pool().allocate({1000, 0, a, arena}), ErrorCode::suspended,
               {name + " of the tag \"weights\" is suspended"});
  expect_error(world.pool().arenas().allocate_at(arena, {block + kBlock, 512}, a),
               ErrorCode::suspended);
  resume();
  EXPECT_EQ(allocate_in(world, arena, kPage, a), block + kBlock) << "its free blocks are there";
}

TEST_F(AsleepArena, has_nothing_to_trim) {
  suspend();
  EXPECT_EQ(trim(world, arena), 0u);
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
  resume();
  EXPECT_EQ(trim(world, arena), 2 * kPage) << "of chunks without a live block";
}

TEST_F(AsleepArena, loses_a_stretch_with_its_last_block) {
  const DevicePtr other = allocate_in(world, arena, kStretch, a);
  suspend();
  EXPECT_EQ(world.statistics().suspended_bytes, 2 * kStretch);
  log.clear();
  free_block();
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch) << "nobody can use its addresses again";
  const auto shrinks = log.of(EventKind::arena_shrink);
  ASSERT_EQ(shrinks.size(), 1u);
  EXPECT_EQ(shrinks[0].ptr, block);
  EXPECT_EQ(shrinks[0].bytes, kStretch);
  resume();
  EXPECT_EQ(world.statistics().mapped_bytes, kStretch);
  world.deallocate(other, a);
}

TEST_F(AsleepArena, has_no_stretch_in_which_nothing_lives) {
  world.deallocate(allocate_in(world, arena, 6 * kPage, a), a);
  suspend();
  EXPECT_EQ(info().amounts.held, kStretch) << "nobody can use the other's addresses again";
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
}

TEST_F(AsleepArena, has_its_contents_again_afterwards) {
  const std::vector<std::uint8_t> written(kPage + 1000, 0x5a);
  std::vector<std::uint8_t> read(written.size());
  ASSERT_EQ(world.sim().memcpy_host_to_device(block, written.data(), written.size()),
            driver::CuResult::success);
  suspend({std::nullopt, true, true, std::nullopt});
  resume();
  ASSERT_EQ(world.sim().memcpy_device_to_host(read.data(), block, read.size()),
            driver::CuResult::success);
  EXPECT_EQ(read, written);
}

TEST_F(AsleepArena, keeps_a_stretch_in_which_another_block_lives) {
  const DevicePtr second = allocate_in(world, arena, kPage, a);
  suspend();
  free_block();
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
  resume();
  EXPECT_EQ(world.statistics().live_bytes, kPage);
  EXPECT_EQ(allocate_in(world, arena, kPage, a), block) << "the block was freed";
  EXPECT_EQ(second, block + kBlock);
}

TEST_F(AsleepArena, that_is_released_ends_with_its_last_block) {
  suspend();
  release(world, arena);
  expect_error(world.pool().suspension().resume(arena, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
  free_block();
  EXPECT_EQ(world.statistics().suspended_bytes, 0u);
  EXPECT_TRUE(world.pool().suspension().all_tags().empty());
}

TEST_F(AsleepArena, is_told_with_its_bytes_once_each_way) {
  log.clear();
  suspend();
  suspend();
  const auto suspends = log.of(EventKind::suspend);
  ASSERT_EQ(suspends.size(), 1u);
  EXPECT_EQ(suspends[0].bytes, kStretch);
  EXPECT_EQ(suspends[0].arena, static_cast<std::uint64_t>(arena));
  EXPECT_EQ(suspends[0].tag, kTag);
  resume();
  resume();
  const auto resumes = log.of(EventKind::resume);
  ASSERT_EQ(resumes.size(), 1u);
  EXPECT_EQ(resumes[0].bytes, kStretch);
  EXPECT_EQ(resumes[0].tag, kTag);
}

TEST_F(AsleepArena, that_graphs_use_keeps_its_addresses) {
  pin(world, arena);
  suspend();
  free_block();
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
  resume();
  EXPECT_EQ(world.statistics().mapped_bytes, kStretch);
  EXPECT_EQ(allocate_in(world, arena, kStretch, a), block);
}

TEST_F(AsleepArena, of_a_tag_are_those_that_take_memory_of_the_pool) {
  arena::ArenaOptions external = tagged();
  external.is_external = true;
  const ArenaId of_user = make_arena(world, external);
  const AddressRange memory = user_memory(world, kPage);
  add_memory(world, of_user, memory);
  expect_error(world.pool().suspension().suspend(of_user, kAway), ErrorCode::unsupported);
  const auto done = world.pool().suspension().suspend(kTag, kAway);
  ASSERT_TRUE(done.ok()) << message_of(done);
  EXPECT_EQ(world.statistics().suspended_bytes, kStretch);
  EXPECT_EQ(info().amounts.held, kStretch);
  world.deallocate(allocate_in(world, of_user, 1000, a), a);
  resume();
  EXPECT_EQ(take_memory(world, of_user), memory);
  free_user_memory(world, memory);
}

// Work on memory that was freed before goes on.
TEST_F(AsleepArena, has_waited_for_work_on_its_free_blocks) {
  const DevicePtr freed = allocate_in(world, arena, kPage, b);
  world.use(freed, kPage, b, kLongNs);
  world.deallocate(freed, b);
  const std::uint64_t before = world.sim().now_ns();
  suspend();
  EXPECT_GE(world.sim().now_ns() - before, kLongNs / 2);
  EXPECT_EQ(world.sim().hazard_count(), 0u);
}

// Where the caller names the stream that used it last, others are waited for if they used it, too.
TEST_F(AsleepArena, waits_for_a_named_stream_and_for_others_that_freed_in_it) {
  for (const bool is_used : {false, true}) {
    const DevicePtr freed =
        is_used ? allocate_in(world, arena, kPage, b) : world.allocate(kPage, b);
    world.use(freed, kPage, b, kLongNs);
    world.deallocate(freed, b);
    const std::uint64_t before = world.sim().now_ns();
    context::SuspendHow how = kAway;
    how.after = a;
    suspend(how);
    EXPECT_EQ(world.sim().now_ns() - before >= kLongNs / 2, is_used);
    EXPECT_EQ(world.sim().hazard_count(), 0u);
    resume();
  }
}

// What a block waited for when it was free is nothing to its next user.
TEST(AsleepAfterAStream, a_block_that_was_used_again_waits_for_that_stream_alone) {
  for (const Bytes bytes : {kPage, 4 * kPage, 32 * kPage}) {
    SCOPED_TRACE(bytes);
    PoolWorld world(adaptive_world());
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    arena::ArenaOptions options;
    options.tag = kTag;
    options.is_exact = true;
    const ArenaId arena = make_arena(world, options);
    const DevicePtr other = world.allocate(2 * kPage, b);
    const DevicePtr first = allocate_in(world, arena, bytes, a);
    world.use(first, bytes, a);
    world.deallocate(first, a);
    const DevicePtr block = allocate_in(world, arena, bytes, a);
    EXPECT_EQ(block, first);
    world.use(block, bytes, a);
    world.use(other, 2 * kPage, b, kLongNs);
    const std::uint64_t before = world.sim().now_ns();
    context::SuspendHow how = kAway;
    how.after = a;
    const auto done = world.pool().suspension().suspend(arena, how);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_LT(world.sim().now_ns() - before, kLongNs / 2);
    EXPECT_EQ(world.sim().hazard_count(), 0u);
  }
}

}  // namespace
}  // namespace vpmm::test
