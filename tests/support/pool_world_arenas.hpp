// SPDX-License-Identifier: Apache-2.0
// tests: arenas of a pool's world.
#pragma once

#include "support/pool_world_words.hpp"

namespace vpmm::test {

using pool::ArenaId;

inline ArenaId make_arena(PoolWorld& world, const arena::ArenaOptions& options = {}) {
  const auto arena = world.pool().arenas().create(options);
  EXPECT_TRUE(arena.ok()) << message_of(arena);
  return arena ? arena.value() : ArenaId{};
}
inline DevicePtr allocate_in(PoolWorld& world, ArenaId arena, Bytes bytes, pool::Stream stream,
                             Bytes alignment = 0) {
  const auto result = world.pool().allocate({bytes, alignment, stream, arena});
  EXPECT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return result ? result.value() : DevicePtr{};
}
inline DevicePtr allocate_at(PoolWorld& world, ArenaId arena, AddressRange place,
                             pool::Stream stream) {
  const auto result = world.pool().arenas().allocate_at(arena, place, stream);
  EXPECT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return result ? result.value() : DevicePtr{};
}
inline void pin(PoolWorld& world, ArenaId arena) {
  const auto pinned = world.pool().arenas().pin(arena);
  EXPECT_TRUE(pinned.ok()) << message_of(pinned);
}
inline Bytes trim(PoolWorld& world, ArenaId arena) {
  const auto released = world.pool().arenas().trim(arena);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return released ? released.value() : 0;
}
// --- memory of the user's, for arenas that are external ---
constexpr arena::ArenaOptions kExternal{false, true, 0, true};

inline AddressRange user_memory(PoolWorld& world, Bytes bytes) {
  DevicePtr begin{};
  EXPECT_EQ(world.sim().mem_alloc(bytes, begin), driver::CuResult::success);
  return {begin, bytes};
}
inline void free_user_memory(PoolWorld& world, AddressRange memory) {
  EXPECT_EQ(world.sim().mem_free(memory.begin), driver::CuResult::success);
}
inline void add_memory(PoolWorld& world, ArenaId arena, AddressRange memory) {
  const auto added = world.pool().arenas().add(arena, memory);
  EXPECT_TRUE(added.ok()) << message_of(added);
  EXPECT_EQ(world.pool().reports().validate(), "");
}
inline AddressRange take_memory(PoolWorld& world, ArenaId arena) {
  const auto taken = world.pool().arenas().take(arena);
  EXPECT_TRUE(taken.ok()) << message_of(taken);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return taken ? taken.value() : AddressRange{};
}
inline void release(PoolWorld& world, ArenaId arena) {
  const auto released = world.pool().arenas().release(arena);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

// A pool, two streams and an arena.
class ArenaWorld : public ::testing::Test {
 protected:
  PoolWorld world{adaptive_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world);

  void settle() {  // the pool knows that all work is over
    world.sim().run_until_idle();
    world.wait();
  }
  context::AllocationInfo info_of(DevicePtr ptr) {
    const auto info = world.pool().query(ptr);
    EXPECT_TRUE(info.ok()) << message_of(info);
    return info ? info.value() : context::AllocationInfo{};
  }
};

}  // namespace vpmm::test
