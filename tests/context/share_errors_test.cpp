// SPDX-License-Identifier: Apache-2.0
// tests/context: which memory cannot be shared, with the reason, and the ends of shares.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using context::Holder;
using context::ShareId;

WorldOptions with(void (*change)(WorldOptions&)) {
  WorldOptions options = adaptive_world();
  change(options);
  return options;
}

ShareId shared_part(PoolWorld& world, DevicePtr ptr, Bytes bytes) {
  const auto shared = world.pool().sharing().share({ptr, bytes});
  EXPECT_TRUE(shared.ok()) << message_of(shared);
  return shared ? shared.value().share : ShareId{};
}

TEST(NotShared, is_memory_of_these_kinds) {
  struct Case {
    WorldOptions options;
    Bytes bytes = 0;
    std::string reason;
  };
  const std::vector<Case> cases{
      {with([](WorldOptions& o) { o.config.small = settings::SmallRequests::stream_ordered; }), 100,
       "is memory of the driver's stream-ordered pool, which cannot be shared: VPMM_SMALL is not "
       "\"pool\""},
      {with([](WorldOptions& o) { o.config.pool_enabled = false; }), 3 * kPage,
       "which cannot be shared: there is no virtual memory pool on this device"},
      {with([](WorldOptions& o) { o.config.checks.guard_every = 1; }), 100,
       "is a guarded allocation, which cannot be shared; with VPMM_IPC_ISOLATE=1 or VPMM_GUARD=0 "
       "none is guarded"},
      {with([](WorldOptions& o) { o.sim.posix_file_descriptor_supported = false; }), 3 * kPage,
       "device 0 cannot export memory as a file descriptor"}};
  for (const Case& each : cases) {
    PoolWorld world(each.options);
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = world.allocate(each.bytes, stream);
    expect_error(world.pool().sharing().share({ptr, 100}), ErrorCode::unsupported, {each.reason});
    world.deallocate(ptr, stream);
    EXPECT_EQ(world.statistics().leased_bytes, 0u);
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

TEST(NotShared, is_memory_that_an_arena_was_given_and_memory_of_an_arena_is) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal), own = make_arena(world);
  add_memory(world, external, memory);
  const DevicePtr outside = allocate_in(world, external, 1000, stream);
  expect_error(
      world.pool().sharing().share({outside, 100}), ErrorCode::unsupported,
      {hex(outside) + " is memory that an arena was given, which is its owner's to share"});
  const DevicePtr inside = allocate_in(world, own, 1000, stream);
  const ShareId id = shared_part(world, inside, 100);
  world.deallocate(inside, stream);
  EXPECT_GE(world.statistics().leased_bytes, 1000u);
  world.pool().sharing().end_lease(id, Holder::handle);
  EXPECT_EQ(world.statistics().leased_bytes, 0u);
  world.deallocate(outside, stream);
  world.wait();
  for (const ArenaId arena : {external, own}) release(world, arena);
  free_user_memory(world, memory);
}

TEST(NotShared, are_ranges_beyond_the_allocation) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(3 * kPage - 100, stream);
  const std::string of = " are not inside the allocation of 6291456 bytes at " + hex(ptr);
  expect_error(world.pool().sharing().share({ptr + 100, 3 * kPage - 99}),
               ErrorCode::invalid_argument, {"6291357 bytes at " + hex(ptr + 100) + of});
  expect_error(world.pool().sharing().share({ptr + 100, 0}), ErrorCode::invalid_argument,
               {"0 bytes at " + hex(ptr + 100) + of});
  expect_error(world.pool().sharing().share({ptr + 64 * kPage, 1}), ErrorCode::invalid_pointer,
               {hex(ptr + 64 * kPage) + " is not inside a live allocation of this pool"});
  const ShareId id = shared_part(world, ptr + 100, 3 * kPage - 100);  // as much as is usable
  const auto refused = [&](Bytes offset, Bytes size) {
    expect_error(world.pool().sharing().lease(id, offset, size), ErrorCode::invalid_argument,
                 {std::to_string(size) + " bytes at offset " + std::to_string(offset) +
                  " are not inside an allocation of 6291456 bytes"});
  };
  refused(0, 0);
  refused(0, 3 * kPage + 1);
  refused(1, 3 * kPage);
  refused(3 * kPage, 1);
  for (const auto& [offset, size] : {std::pair<Bytes, Bytes>{0, 3 * kPage}, {3 * kPage - 1, 1}}) {
    const auto leased = world.pool().sharing().lease(id, offset, size);
    ASSERT_TRUE(leased.ok()) << message_of(leased);
    world.pool().sharing().end_lease(id, Holder::importer);
  }
  world.pool().sharing().end_lease(id, Holder::handle);
  world.deallocate(ptr, stream);
}

TEST(Shares, have_numbers_that_differ_and_none_is_0) {
  std::set<ShareId> all;
  PoolWorld first(adaptive_world()), second(adaptive_world());
  for (PoolWorld* const world : {&first, &second, &first}) {
    for (int i = 0; i < 3; ++i) {
      const DevicePtr ptr = world->allocate(3 * kPage, std::nullopt);
      const ShareId id = shared_part(*world, ptr, 1);
      EXPECT_NE(id, ShareId{0});
      EXPECT_TRUE(all.empty() || id > *all.rbegin());
      EXPECT_TRUE(all.insert(id).second);
      EXPECT_EQ(shared_part(*world, ptr + 100, 1), id) << "of one allocation";
      world->deallocate(ptr, std::nullopt);
      world->pool().sharing().end_lease(id, Holder::handle);
      world->pool().sharing().end_lease(id, Holder::handle);
    }
  }
}

// Contents are not passed on once the context is broken.
TEST(Shares, neither_begin_nor_are_leased_after_a_sticky_error) {
  HookedWorld world(adaptive_world());
  const DevicePtr ptr = world.allocate(3 * kPage, world.stream());
  context::Sharing& sharing = world.pool->sharing();
  const auto shared = sharing.share({ptr, 1});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  world.hooks.on[driver::Call::mem_create] = [] { return driver::CuResult::illegal_address; };
  expect_error(world.pool->allocate({64 * kPage, 0, std::nullopt}), ErrorCode::poisoned);
  expect_error(sharing.share({ptr, 1}), ErrorCode::poisoned);
  expect_error(sharing.lease(shared.value().share, 0, 1), ErrorCode::poisoned);
}

// A free comes before, between or after the ends of two handles and an import.
TEST(Shares, keep_freed_memory_until_each_holder_let_go) {
  for (int freed_after = 0; freed_after <= 3; ++freed_after) {
    SCOPED_TRACE(freed_after);
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = world.allocate(3 * kPage, stream);
    const ShareId id = shared_part(world, ptr, 1);
    ASSERT_EQ(shared_part(world, ptr, 1), id);
    ASSERT_TRUE(world.pool().sharing().lease(id, 0, 1).ok());
    const std::vector<Holder> holders{Holder::handle, Holder::importer, Holder::handle};
    for (int ended = 0; ended <= 3; ++ended) {
      if (ended == freed_after) world.deallocate(ptr, stream);
      const bool is_freed = ended >= freed_after;
      EXPECT_EQ(world.statistics().leased_bytes, is_freed && ended < 3 ? 3 * kPage : 0u);
      EXPECT_EQ(world.pool().query(ptr).ok(), !is_freed);
      if (ended < 3) {
        world.pool().sharing().end_lease(id, holders[static_cast<std::size_t>(ended)]);
        EXPECT_EQ(world.pool().reports().validate(), "");
      }
    }
    // One end more than there were begins.
    for (const Holder holder : {Holder::handle, Holder::importer})
      world.pool().sharing().end_lease(id, holder);
    EXPECT_EQ(world.pool().reports().validate(), "");
    expect_error(world.pool().sharing().lease(id, 0, 1), ErrorCode::not_shared,
                 {"the memory was freed by the process that exported it"});
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  }
}

// Others may have passed it on to any stream.
TEST(Shares, that_ended_leave_the_memory_as_used_by_all_streams) {
  for (const Bytes bytes : {Bytes{1000}, 3 * kPage})
    for (const bool in_arena : {false, true}) {
      SCOPED_TRACE(std::to_string(bytes) + (in_arena ? " in an arena" : ""));
      PoolWorld world(adaptive_world());
      const StreamHandle stream = world.stream(), other = world.stream();
      const ArenaId arena = make_arena(world);
      const auto allocate = [&] {
        return in_arena ? allocate_in(world, arena, bytes, stream) : world.allocate(bytes, stream);
      };
      const DevicePtr ptr = allocate();
      world.pool().sharing().end_lease(shared_part(world, ptr, 1), Holder::handle);
      ASSERT_EQ(world.sim().stream_synchronize(stream), driver::CuResult::success);
      world.use(ptr, bytes, other, kLongNs);
      world.deallocate(ptr, stream);
      const DevicePtr next = allocate();
      EXPECT_NE(next, ptr);
      world.use(next, bytes, stream);
      world.deallocate(next, stream);
    }
}

TEST(Shares, end_no_more_often_than_they_began) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(3 * kPage, stream);
  const ShareId id = shared_part(world, ptr, 1);
  world.pool().sharing().end_lease(id, Holder::importer);  // nobody has opened it
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.statistics().leased_bytes, 3 * kPage);
  world.pool().sharing().end_lease(id, Holder::importer);
  EXPECT_EQ(world.statistics().leased_bytes, 3 * kPage);
  world.pool().sharing().end_lease(id, Holder::handle);
  EXPECT_EQ(world.statistics().leased_bytes, 0u);
}

TEST(Shares, whose_handles_ended_serve_no_new_import_once_it_is_freed) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(3 * kPage, stream);
  const ShareId id = shared_part(world, ptr, 1);
  ASSERT_TRUE(world.pool().sharing().lease(id, 0, 1).ok());
  world.deallocate(ptr, stream);
  EXPECT_TRUE(world.pool().sharing().lease(id, 0, 1).ok()) << "a handle is left";
  world.pool().sharing().end_lease(id, Holder::handle);
  expect_error(world.pool().sharing().lease(id, 0, 1), ErrorCode::not_shared);
  EXPECT_EQ(world.statistics().leased_bytes, 3 * kPage) << "two importers have it";
  world.pool().sharing().end_lease(id, Holder::importer);
  EXPECT_EQ(world.statistics().leased_bytes, 3 * kPage);
  world.pool().sharing().end_lease(id, Holder::importer);
  EXPECT_EQ(world.statistics().leased_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
