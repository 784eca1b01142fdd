// SPDX-License-Identifier: Apache-2.0
// tests/context: memory that other processes hold: what becomes of frees, and of the chunks behind
// it, until they let go.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "support/page_size.hpp"
#include "support/pool_world.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using context::Holder;
using context::SharedChunks;
using context::SharedRange;
using context::ShareId;

Bytes total(const SharedChunks& shared) {
  Bytes bytes = 0;
  for (const auto& chunk : shared.chunks) bytes += chunk.size;
  return bytes;
}

SharedRange share(PoolWorld& world, AddressRange range) {
  auto shared = world.pool().sharing().share(range);
  EXPECT_TRUE(shared.ok()) << shared.error().message;
  return shared ? shared.value() : SharedRange{};
}

ErrorCode error_of_lease(PoolWorld& world, ShareId id, Bytes offset, Bytes size) {
  const auto leased = world.pool().sharing().lease(id, offset, size);
  EXPECT_FALSE(leased.ok());
  return leased ? ErrorCode{} : leased.error().code;
}

TEST(Sharing, ends_with_a_free_after_the_last_holder_let_go) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {5 * kPage, Bytes{1000}}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    const SharedRange shared = share(world, {ptr, bytes});
    world.pool().sharing().end_lease(shared.share, Holder::handle);
    world.deallocate(ptr, stream);
    EXPECT_EQ(world.statistics().leased_bytes, 0u);
    EXPECT_EQ(error_of_lease(world, shared.share, shared.offset, 1), ErrorCode::not_shared);
    const DevicePtr again = world.allocate(bytes, stream);
    EXPECT_EQ(error_of_lease(world, shared.share, shared.offset, 1), ErrorCode::not_shared)
        << "its memory may be this one's";
    EXPECT_NE(share(world, {again, bytes}).share, shared.share);
  }
}

TEST(Sharing, tells_the_chunks_behind_a_range_and_where_it_begins_in_them) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(5 * kPage, stream);
  const SharedRange whole = share(world, {ptr, 5 * kPage});
  EXPECT_EQ(whole.allocation, ptr);
  EXPECT_EQ(whole.offset, 0U);
  const SharedRange inside = share(world, {ptr + kPage + 100, 1000});
  EXPECT_EQ(inside.share, whole.share) << "one allocation, one number";
  EXPECT_EQ(inside.offset, kPage + 100);
  const auto leased = world.pool().sharing().lease(inside.share, inside.offset, 1000);
  ASSERT_TRUE(leased.ok()) << leased.error().message;
  EXPECT_GE(total(leased.value()), leased.value().offset + 1000);
  EXPECT_EQ(leased.value().offset % kPage, 100U) << "chunks are whole pages";
  world.pool().sharing().end_lease(whole.share, Holder::handle);
  world.pool().sharing().end_lease(whole.share, Holder::handle);
  world.pool().sharing().end_lease(whole.share, Holder::importer);
  world.deallocate(ptr, stream);
}

TEST(Sharing, a_shortage_names_what_others_still_hold) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(5 * kPage, stream);
  const ShareId id = share(world, {ptr, 5 * kPage}).share;
  ASSERT_TRUE(world.pool().sharing().lease(id, 0, 5 * kPage).ok());
  world.deallocate(ptr, stream);
  const auto refused = world.pool().allocate({5 * kPage, 0, stream});
  ASSERT_FALSE(refused.ok());
  const std::string leased = "10 MiB are freed, but other processes have them open";
  EXPECT_NE(refused.error().message.find(leased), std::string::npos) << refused.error().message;
  world.pool().sharing().end_lease(id, Holder::handle);
  world.pool().sharing().end_lease(id, Holder::importer);
  EXPECT_TRUE(world.pool().allocate({5 * kPage, 0, stream}).ok());
}

TEST(Sharing, what_was_freed_stays_until_the_last_holder_let_go) {
  for (const Bytes size : {Bytes{100}, 300 * kKiB, kPage, 5 * kPage}) {
    SCOPED_TRACE(size);
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    const DevicePtr ptr = world.allocate(size, stream);
    const ShareId id = share(world, {ptr, size}).share;
    ASSERT_TRUE(world.pool().sharing().lease(id, 0, size).ok());
    world.deallocate(ptr, stream);
    EXPECT_GE(world.statistics().leased_bytes, size);
    EXPECT_FALSE(world.pool().query(ptr).ok()) << "it is no live allocation any more";
    EXPECT_EQ(world.pool().deallocate(ptr, stream).error().code, ErrorCode::invalid_pointer)
        << "freed twice";
    std::set<DevicePtr> others;
    for (int i = 0; i < 50; ++i) others.insert(world.allocate(size, stream));
    EXPECT_FALSE(others.contains(ptr));
    world.pool().sharing().end_lease(id, Holder::handle);
    EXPECT_GE(world.statistics().leased_bytes, size) << "an importer has it still";
    world.pool().sharing().end_lease(id, Holder::importer);
    EXPECT_EQ(world.statistics().leased_bytes, 0U);
    for (const DevicePtr other : others) world.deallocate(other, stream);
    ASSERT_TRUE(world.pool().streams().synchronize().ok());
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0U) << "nothing is held for ever";
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
}

TEST(Sharing, chunks_of_leased_memory_are_neither_moved_nor_released) {
  WorldOptions options = page_world();
  options.sim.capacity = 16 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(world.allocate(2 * kPage, stream));
  const ShareId id = share(world, {pieces[3], 2 * kPage}).share;
  const auto leased = world.pool().sharing().lease(id, 0, 2 * kPage);
  ASSERT_TRUE(leased.ok());
  for (const DevicePtr piece : pieces) world.deallocate(piece, stream);
  ASSERT_TRUE(world.pool().streams().synchronize().ok());
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 2 * kPage) << "all but what is leased went back";
  const DevicePtr large = world.allocate(14 * kPage, stream);
  EXPECT_FALSE(world.pool().allocate({2 * kPage, 0, stream}).ok())
      << "memory runs out before a lease does";
  const auto again = world.pool().sharing().lease(id, 0, 2 * kPage);
  ASSERT_TRUE(again.ok()) << "its handle has not ended";
  EXPECT_EQ(again.value().chunks.front().handle, leased.value().chunks.front().handle);
  world.pool().sharing().end_lease(id, Holder::importer);
  world.pool().sharing().end_lease(id, Holder::importer);
  world.pool().sharing().end_lease(id, Holder::handle);
  world.deallocate(large, stream);
  EXPECT_TRUE(world.pool().allocate({16 * kPage, 0, stream}).ok());
}

TEST(Sharing, the_rest_of_a_leased_chunk_stays_in_use) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr small = world.allocate(256, stream);
  const DevicePtr neighbour = world.allocate(256, stream);
  const ShareId id = share(world, {small, 256}).share;
  world.deallocate(small, stream);
  const Bytes mapped = world.statistics().mapped_bytes;
  for (int i = 0; i < 1000; ++i) {
    world.deallocate(world.allocate(256, stream), stream);
  }
  world.deallocate(neighbour, stream);
  EXPECT_EQ(world.allocate(256, stream), neighbour);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  world.pool().sharing().end_lease(id, Holder::handle);
  EXPECT_EQ(world.statistics().leased_bytes, 0U);
}

TEST(Sharing, a_number_of_the_past_is_refused) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(kPage, stream);
  const ShareId id = share(world, {ptr, kPage}).share;
  world.pool().sharing().end_lease(id, Holder::handle);
  EXPECT_TRUE(world.pool().sharing().lease(id, 0, kPage).ok())
      << "allocated, though no handle is left";
  world.deallocate(ptr, stream);
  EXPECT_EQ(error_of_lease(world, id, 0, kPage), ErrorCode::not_shared)
      << "freed: only who has it keeps it";
  world.pool().sharing().end_lease(id, Holder::importer);
  EXPECT_EQ(error_of_lease(world, id, 0, kPage), ErrorCode::not_shared);
  const DevicePtr next = world.allocate(kPage, stream);
  EXPECT_NE(share(world, {next, kPage}).share, id);
  EXPECT_EQ(error_of_lease(world, id, 0, kPage), ErrorCode::not_shared);
  EXPECT_EQ(error_of_lease(world, ShareId{0}, 0, kPage), ErrorCode::not_shared);
  world.pool().sharing().end_lease(id, Holder::importer);  // of the past: ignored
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST(Sharing, ranges_outside_of_the_allocation_are_refused) {
  PoolWorld world(adaptive_world());
  const DevicePtr ptr = world.allocate(kPage, world.stream());
  EXPECT_EQ(world.pool().sharing().share({ptr, kPage + 1}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(world.pool().sharing().share({ptr, 0}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(world.pool().sharing().share({ptr + 100, kPage}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(world.pool().sharing().share({ptr, ~Bytes{0}}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(world.pool().sharing().share({ptr + 64 * kPage, 1}).error().code,
            ErrorCode::invalid_pointer);
  const ShareId id = share(world, {ptr, 100}).share;
  for (const auto& [offset, size] :
       {std::pair<Bytes, Bytes>{0, kPage + 1}, {kPage, 1}, {0, 0}, {~Bytes{0}, 2}, {1, ~Bytes{0}}})
    EXPECT_EQ(error_of_lease(world, id, offset, size), ErrorCode::invalid_argument)
        << offset << " " << size;
}

TEST(Sharing, stream_ordered_memory_cannot_be_shared_and_the_error_names_the_setting) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const auto shared = world.pool().sharing().share({world.allocate(100, world.stream()), 100});
  ASSERT_FALSE(shared.ok());
  EXPECT_EQ(shared.error().code, ErrorCode::unsupported);
  EXPECT_NE(shared.error().message.find("VPMM_SMALL"), std::string::npos) << shared.error().message;
}

TEST(Sharing, the_error_says_where_there_is_no_pool_of_our_own) {
  WorldOptions options = adaptive_world();
  options.config.pool_enabled = false;
  PoolWorld world(options);
  for (const Bytes bytes : {Bytes{100}, 3 * kPage})
    expect_error(
        world.pool().sharing().share({world.allocate(bytes, world.stream()), bytes}),
        ErrorCode::unsupported,
        {"stream-ordered pool, which cannot be shared", "no virtual memory pool on this device"});
}

// The hazard checker fails the test if it is not so.
TEST(Sharing, memory_that_was_held_is_reused_behind_all_work_that_may_use_it) {
  PoolWorld world(adaptive_world());
  const StreamHandle first = world.stream();
  const StreamHandle second = world.stream();
  for (const Bytes size : {4 * kKiB, 3 * kPage}) {
    const DevicePtr ptr = world.allocate(size, first);
    const ShareId id = share(world, {ptr, size}).share;
    world.use(ptr, size, first);
    world.deallocate(ptr, first);
    world.pool().sharing().end_lease(id, Holder::handle);
    for (int i = 0; i < 4; ++i) {
      const DevicePtr other = world.allocate(size, second);
      world.use(other, size, second);
    }
  }
}

TEST(Sharing, with_isolation_every_allocation_has_chunks_of_its_own) {
  WorldOptions options = adaptive_world();
  options.config.ipc_isolate = true;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<std::pair<DevicePtr, Bytes>> live;
  std::uint64_t dice = 7;
  for (int round = 0; round < 300; ++round) {
    dice = dice * 6364136223846793005 + 1442695040888963407;
    const Bytes size = 1 + (dice >> 33) % (round % 3 == 0 ? 4 * kKiB : 7 * kPage);
    live.emplace_back(world.allocate(size, stream), size);
    if (round % 2 == 0) continue;
    const std::size_t victim = (dice >> 20) % live.size();
    world.deallocate(live[victim].first, stream);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  std::set<std::uint64_t> seen;
  for (const auto& [ptr, size] : live) {
    const SharedRange shared = share(world, {ptr, size});
    const auto leased = world.pool().sharing().lease(shared.share, 0, size);
    ASSERT_TRUE(leased.ok()) << leased.error().message;
    EXPECT_EQ(leased.value().offset, 0U);
    EXPECT_LT(total(leased.value()), size + kPage);
    for (const auto& chunk : leased.value().chunks)
      EXPECT_TRUE(seen.insert(static_cast<std::uint64_t>(chunk.handle)).second)
          << "two allocations in one chunk";
  }
}

TEST(Sharing, memory_of_a_released_arena_is_everybodys_after_its_last_holder_let_go) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 8 * kPage, stream);
  const ShareId id = share(world, {ptr, 8 * kPage}).share;
  world.deallocate(ptr, stream);
  release(world, arena);
  world.pool().sharing().end_lease(id, Holder::handle);
  world.wait();
  EXPECT_EQ(world.allocate(8 * kPage, stream), ptr);
}

TEST(Sharing, tells_no_chunk_beside_a_range) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(5 * kPage, stream);
  const ShareId id = share(world, {ptr, 5 * kPage}).share;
  const auto all = world.pool().sharing().lease(id, 0, 5 * kPage);
  ASSERT_TRUE(all.ok() && all.value().chunks.size() == 5);
  EXPECT_EQ(all.value().offset, 0U);
  struct Case {
    Bytes offset, size, in_chunk;
    std::size_t first, count;
  };
  for (const Case& each :
       {Case{kPage + 100, 1000, 100, 1, 1}, Case{2 * kPage, kPage, 0, 2, 1},
        Case{3 * kPage - 1, 2, kPage - 1, 2, 2}, Case{4 * kPage + 7, kPage - 7, 7, 4, 1}}) {
    const auto leased = world.pool().sharing().lease(id, each.offset, each.size);
    ASSERT_TRUE(leased.ok());
    EXPECT_EQ(leased.value().offset, each.in_chunk);
    ASSERT_EQ(leased.value().chunks.size(), each.count);
    EXPECT_EQ(leased.value().chunks[0].handle, all.value().chunks[each.first].handle);
    EXPECT_EQ(leased.value().chunks[0].size, kPage);
    world.pool().sharing().end_lease(id, Holder::importer);
  }
  for (const Holder holder : {Holder::importer, Holder::handle})
    world.pool().sharing().end_lease(id, holder);
  world.deallocate(ptr, stream);
}

}  // namespace
}  // namespace vpmm::test
