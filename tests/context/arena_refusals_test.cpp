// SPDX-License-Identifier: Apache-2.0
// context: calls on arenas that are refused: mistakes, no pool, no host memory.
#include <gtest/gtest.h>

#include "fault/no_memory.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using fault::NoMemory;

class ArenaRefusals : public ArenaWorld {
 protected:
  std::uint64_t mistakes() { return world.statistics().caller_mistakes; }
};

TEST_F(ArenaRefusals, ranges_that_nothing_can_be_are_mistakes) {
  const DevicePtr begin = allocate_in(world, arena, 8 * kPage, a);
  const std::uint64_t before = mistakes();
  for (const Bytes size : {Bytes{0}, pool::kAddressSpace + 1})
    expect_error(world.pool().arenas().allocate_at(arena, {begin, size}, a),
                 ErrorCode::invalid_argument,
                 {std::to_string(size) + " bytes at " + hex(begin) + " are nothing to allocate"});
  expect_error(world.pool().arenas().allocate_at(arena, {begin, pool::kAddressSpace}, a),
               ErrorCode::invalid_argument,
               {std::to_string(pool::kAddressSpace) + " bytes at " + hex(begin) + " are not free"});
  EXPECT_EQ(mistakes(), before + 3);
  expect_error(world.pool().arenas().allocate_at(arena, {begin, 512}, a),
               ErrorCode::invalid_argument);
  EXPECT_EQ(mistakes(), before + 4);
}

TEST_F(ArenaRefusals, a_block_at_a_place_is_one_as_any_other) {
  const DevicePtr begin = allocate_in(world, arena, 8 * kPage, a);
  world.deallocate(begin, a);
  const observe::Statistics before = world.statistics();
  const auto made = world.pool().arenas().allocate_at(arena, {begin + kPage, 9 * 512}, a, 77);
  ASSERT_TRUE(made.ok()) << message_of(made);
  EXPECT_EQ(made.value(), begin + kPage);
  const observe::Statistics now = world.statistics();
  EXPECT_EQ(now.allocations, before.allocations + 1);
  EXPECT_EQ(now.live_bytes, before.live_bytes + 9 * 512);
  EXPECT_GE(now.peak_live_bytes, now.live_bytes);
  bool is_told = false;
  const report::Layout layout = world.pool().reports().layout();
  for (const report::LayoutBlock& block : layout.blocks) {
    if (block.range.begin != made.value()) continue;
    is_told = true;
    EXPECT_EQ(block.library, 77u);
    EXPECT_EQ(block.requested, 9 * 512u);
    EXPECT_EQ(block.arena, static_cast<std::uint64_t>(arena));
  }
  EXPECT_TRUE(is_told);
  world.deallocate(made.value(), a);
}

TEST_F(ArenaRefusals, a_block_at_a_place_has_no_library_and_no_tag_if_none_is_named) {
  const DevicePtr begin = allocate_in(world, arena, 8 * kPage, a);
  world.deallocate(begin, a);
  const DevicePtr ptr = allocate_at(world, arena, {begin, 512}, a);
  bool is_shown = false;
  const report::Layout layout = world.pool().reports().layout();
  for (const report::LayoutBlock& block : layout.blocks) {
    is_shown = is_shown || block.range.begin == ptr;
    EXPECT_EQ(block.tag, 0u);
    EXPECT_EQ(block.library, 0u);
  }
  EXPECT_TRUE(is_shown);
  world.deallocate(ptr, a);
}

TEST_F(ArenaRefusals, without_host_memory_change_nothing) {
  const DevicePtr ptr = allocate_in(world, arena, 4 * kPage, a);
  world.deallocate(ptr, a);
  settle();
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal);
  auto& arenas = world.pool().arenas();
  {
    const NoMemory none(NoMemory::Reserve::promised);
    EXPECT_EQ(arenas.create({}).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(arenas.add(external, memory).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(arenas.trim(arena).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(arenas.release(arena).error().code, ErrorCode::host_out_of_memory);
  }
  EXPECT_EQ(trim(world, arena), 4 * kPage);
  add_memory(world, external, memory);
  EXPECT_EQ(take_memory(world, external), memory);
  release(world, external);
  release(world, arena);
  free_user_memory(world, memory);
}

TEST(ArenasWithoutPool, are_refused) {
  WorldOptions options = adaptive_world();
  options.config.pool_enabled = false;
  PoolWorld world(options);
  expect_error(world.pool().arenas().create({}), ErrorCode::unsupported,
               {"arenas need the virtual memory pool"});
  expect_error(world.pool().allocate({kPage, 0, world.stream(), ArenaId{1}}),
               ErrorCode::unsupported, {"arenas need the virtual memory pool"});
}

}  // namespace
}  // namespace vpmm::test
