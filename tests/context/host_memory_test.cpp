// SPDX-License-Identifier: Apache-2.0
// context: calls while the process has no memory left.
#include <gtest/gtest.h>
#include <malloc.h>

#include <new>

#include "context/deferred.hpp"
#include "fault/no_memory.hpp"
#include "support/held.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using fault::HostFaults;
using fault::NoMemory;

TEST(DeferredList, takes_no_memory_for_what_it_provided_for) {
  context::DeferredList list;
  list.provide(3);
  std::uint64_t sum = 0;
  for (int round = 0; round < 2; ++round) {
    const NoMemory none(NoMemory::Reserve::left);
    for (const std::uint64_t value : {1U, 2U, 4U}) list.push(value);
    EXPECT_EQ(HostFaults::counted(), 0u);
    list.take_all([&](std::uint64_t value) { sum += value; });
  }
  EXPECT_EQ(sum, 14u);
  const NoMemory none(NoMemory::Reserve::left);
  EXPECT_THROW(list.provide(4), std::bad_alloc);
}

TEST(DeferredList, leaves_no_memory_behind) {
  const auto in_use = [] { return ::mallinfo2().uordblks; };
  const auto use = [] {
    context::DeferredList list;
    list.provide(3);
    for (std::uint64_t value = 1; value <= 10; ++value) list.push(value);
    list.take_all([](std::uint64_t) {});
    list.push(1);  // and nobody takes it
  };
  use();
  const std::size_t before = in_use();
  for (int round = 0; round < 1000; ++round) use();
  EXPECT_LT(in_use(), before + 64 * kKiB);
}

TEST(DeferredList, takes_values_that_nothing_was_provided_for) {
  context::DeferredList list;
  for (const std::uint64_t value : {1U, 2U, 4U}) list.push(value);
  Vector<std::uint64_t> taken;
  list.take_all([&](std::uint64_t value) { taken.push_back(value); });
  EXPECT_EQ(taken, (Vector<std::uint64_t>{1, 2, 4}));
}

TEST(DeferredList, keeps_what_a_visitor_threw_at_and_all_behind_it_in_order) {
  context::DeferredList list;
  for (const std::uint64_t value : {1U, 2U, 3U, 4U}) list.push(value);
  Vector<std::uint64_t> taken;
  const auto throw_at_2 = [&](std::uint64_t value) {
    if (value == 2) throw std::bad_alloc();
    taken.push_back(value);
  };
  EXPECT_THROW(list.take_all(throw_at_2), std::bad_alloc);
  EXPECT_EQ(taken, (Vector<std::uint64_t>{1}));
  list.push(5);
  list.take_all([&](std::uint64_t value) { taken.push_back(value); });
  EXPECT_EQ(taken, (Vector<std::uint64_t>{1, 2, 3, 4, 5}));
  list.take_all([&](std::uint64_t value) { taken.push_back(value); });
  EXPECT_EQ(taken.size(), 5u) << "each once";
}

TEST(DeferredList, loses_no_node_that_comes_while_one_is_taken) {
  for (const std::size_t stock : {1U, 3U}) {
    context::DeferredList list;
    list.provide(stock);
    Held held("a push has the stock", [&] { list.provide(stock + 2); });
    list.push(1);
    ASSERT_TRUE(held.end());
    const NoMemory none(NoMemory::Reserve::left);
    for (std::size_t i = 1; i < stock + 2; ++i) list.push(1);
    EXPECT_EQ(HostFaults::counted(), 0u);
    std::uint64_t sum = 0;
    list.take_all([&](std::uint64_t value) { sum += value; });
    EXPECT_EQ(sum, stock + 2);
  }
}

TEST(HostMemory, of_deferred_frees_is_there_from_their_allocations_on) {
  WorldOptions guarded = adaptive_world(), stream_ordered = adaptive_world();
  guarded.config.checks.guard_every = 1;
  stream_ordered.config.pool_enabled = false;
  for (const WorldOptions& options : {adaptive_world(), guarded, stream_ordered}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 40; ++i) live.push_back(world.allocate(8 * kPage, stream));
    {
      const NoMemory none(NoMemory::Reserve::left);
      for (const DevicePtr ptr : live) world.pool().deallocate_deferred(ptr);
      EXPECT_EQ(HostFaults::counted(), 0u);
    }
    world.wait();
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

TEST(HostMemory, of_deferred_frees_is_there_from_allocations_at_an_address_on) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr first = allocate_in(world, arena, 64 * kPage, stream);
  world.deallocate(first, stream);
  for (Bytes i = 0; i < 40; ++i) allocate_at(world, arena, {first + i * kPage, kPage}, stream);
  {
    const NoMemory none(NoMemory::Reserve::left);
    for (Bytes i = 0; i < 40; ++i) world.pool().deallocate_deferred(first + i * kPage);
    EXPECT_EQ(HostFaults::counted(), 0u);
  }
  world.wait();
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST(HostMemory, that_is_missing_leaves_a_lease_tags_and_an_arena_as_they_are) {
  PoolWorld world(adaptive_world());
  const ArenaId arena = make_arena(world);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  const DevicePtr other = world.allocate(kPage, stream);
  const auto shared = world.pool().sharing().share({ptr, 4 * kPage});
  ASSERT_TRUE(shared.ok());
  world.deallocate(ptr, stream);
  {
    const NoMemory none(NoMemory::Reserve::promised);
    EXPECT_THROW(world.pool().sharing().end_lease(shared.value().share, context::Holder::handle),
                 std::bad_alloc);
    EXPECT_EQ(world.pool().suspension().make_suspendable(7, {}).error().code,
              ErrorCode::host_out_of_memory);
    EXPECT_EQ(world.pool().arenas().release(arena).error().code, ErrorCode::host_out_of_memory);
    context::Suspension& suspension = world.pool().suspension();
    EXPECT_EQ(suspension.enter(7, context::TagScope::thread).error().code,
              ErrorCode::host_out_of_memory);
    EXPECT_EQ(suspension.suspend(arena, {}).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(suspension.resume(arena, {}).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(suspension.prepare(0).error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(world.pool().sharing().lease(shared.value().share, 0, kPage).error().code,
              ErrorCode::host_out_of_memory);
    EXPECT_EQ(world.pool().sharing().share({other, kPage}).error().code,
              ErrorCode::host_out_of_memory);
  }
  EXPECT_EQ(world.pool().suspension().entered().tag, 0u);
  EXPECT_EQ(world.statistics().leased_bytes, 4 * kPage);
  release(world, arena);
  EXPECT_TRUE(world.pool().suspension().suspendable_tags().empty());
  world.pool().sharing().end_lease(shared.value().share, context::Holder::handle);
  EXPECT_EQ(world.statistics().leased_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
