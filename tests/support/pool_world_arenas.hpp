// tests: arenas of a pool's world.
#pragma once

#include "support/pool_world_words.hpp"

namespace vpmm::testing {

using context::ArenaId;

inline ArenaId make_arena(PoolWorld& world, const context::ArenaOptions& options = {}) {
  const auto arena = world.pool().create_arena(options);
  EXPECT_TRUE(arena.ok()) << message_of(arena);
  return arena ? arena.value() : ArenaId{};
}
inline DevicePtr allocate_in(PoolWorld& world, ArenaId arena, Bytes bytes, context::Stream stream,
                             Bytes alignment = 0) {
  const auto result = world.pool().allocate_in_arena({bytes, alignment, stream, arena});
  EXPECT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(world.pool().validate(), "");
  return result ? result.value() : DevicePtr{};
}
inline DevicePtr allocate_at(PoolWorld& world, ArenaId arena, AddressRange place, context::Stream stream) {
  const auto result = world.pool().allocate_at(arena, place, stream);
  EXPECT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(world.pool().validate(), "");
  return result ? result.value() : DevicePtr{};
}
inline void pin(PoolWorld& world, ArenaId arena) {
  const auto pinned = world.pool().pin_arena(arena);
  EXPECT_TRUE(pinned.ok()) << message_of(pinned);
}
inline Bytes trim(PoolWorld& world, ArenaId arena) {
  const auto released = world.pool().trim_arena(arena);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_EQ(world.pool().validate(), "");
  return released ? released.value() : 0;
}
inline void release(PoolWorld& world, ArenaId arena) {
  const auto released = world.pool().release_arena(arena);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_EQ(world.pool().validate(), "");
}

}  // namespace vpmm::testing
