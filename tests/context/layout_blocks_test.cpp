// SPDX-License-Identifier: Apache-2.0
// context: what a layout and a snapshot tell of each kind of block, and a recording of what lives
// at its beginning.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "observe/recorded_event.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"
#include "support/recorded_file.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {
namespace {

using observe::RecordedEvent;
using observe::RegionSnapshot;
using region::RegionState;
using report::LayoutBlock;

class BlocksShown : public ::testing::Test {
 protected:
  explicit BlocksShown(const WorldOptions& options = adaptive_world()) : world(options) {}
  LayoutBlock block(DevicePtr begin) {
    const report::Layout layout = world.pool().reports().layout();
    for (const LayoutBlock& each : layout.blocks)
      if (each.range.contains(begin)) return each;
    ADD_FAILURE() << "no block at " << hex(begin);
    return {};
  }
  RegionSnapshot region(DevicePtr begin) {
    for (const RegionSnapshot& each : world.pool().reports().snapshot().regions)
      if (each.range.contains(begin)) return each;
    ADD_FAILURE() << "no region at " << hex(begin);
    return {};
  }
  std::uint64_t id_of(StreamHandle stream) {
    driver::StreamId id{};
    EXPECT_EQ(world.sim().stream_get_id(stream, id), driver::CuResult::success);
    return static_cast<std::uint64_t>(id);
  }
  std::string name_of(StreamHandle stream) {
    return "stream " + std::to_string(id_of(stream)) + " (" +
           hex(DevicePtr{static_cast<std::uint64_t>(stream)}) + ")";
  }
  void give_others(Bytes bytes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    const auto share = world.pool().sharing().share({ptr, 100});
    ASSERT_TRUE(share.ok());
    EXPECT_EQ(block(ptr).state, RegionState::allocated);
    world.deallocate(ptr, a);
    const LayoutBlock shown = block(ptr);
    EXPECT_EQ(shown.state, RegionState::free);
    EXPECT_FALSE(shown.is_complete);
    EXPECT_EQ(shown.stream_id, 0u);
    EXPECT_EQ(shown.requested, 0u);
    world.pool().sharing().end_lease(share.value().share, context::Holder::handle);
  }
  void trim() { ASSERT_TRUE(world.pool().limits().trim(world.statistics().mapped_bytes).ok()); }

  PoolWorld world;
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
};

// Block or span.
class PartsShown : public BlocksShown, public ::testing::WithParamInterface<Bytes> {};
INSTANTIATE_TEST_SUITE_P(Sizes, PartsShown, ::testing::Values(Bytes{1000}, 300 * kKiB));

TEST_P(PartsShown, are_live_then_kept_then_waiting_then_complete) {
  const DevicePtr beside = world.allocate(5000, a);  // keeps the page
  const DevicePtr ptr = world.allocate(GetParam(), a);
  LayoutBlock shown = block(ptr);
  EXPECT_EQ(shown.state, RegionState::allocated);
  EXPECT_TRUE(shown.is_small);
  EXPECT_FALSE(shown.is_complete);
  EXPECT_EQ(shown.requested, GetParam());
  EXPECT_EQ(shown.stream_id, id_of(a));
  world.use(ptr, GetParam(), a, kLongNs);
  world.deallocate(ptr, a);
  shown = block(ptr);
  EXPECT_EQ(shown.state, RegionState::free);
  EXPECT_EQ(shown.stream_id, id_of(a)) << "for its own next requests";
  EXPECT_FALSE(shown.is_complete);
  EXPECT_EQ(shown.requested, 0u);
  trim();
  shown = block(ptr);
  EXPECT_EQ(shown.stream_id, id_of(a)) << "whose work is not over";
  EXPECT_FALSE(shown.is_complete);
  world.wait();
  trim();
  shown = block(ptr);
  EXPECT_EQ(shown.state, RegionState::free);
  EXPECT_TRUE(shown.is_complete);
  EXPECT_EQ(shown.stream_id, 0u);
  // Used by two streams, whose memory is nobody's for a while.
  const DevicePtr both = world.allocate(GetParam(), a);
  ASSERT_TRUE(world.pool().record_use(both, b).ok());
  world.use(both, GetParam(), a, kLongNs);
  world.deallocate(both, a);
  shown = block(both);
  EXPECT_EQ(shown.state, RegionState::free);
  EXPECT_FALSE(shown.is_complete);
  world.deallocate(beside, a);
}

TEST_P(PartsShown, that_others_hold_are_free_for_nobody) { give_others(GetParam()); }

TEST_F(BlocksShown, pages_that_others_hold_are_free_for_nobody) { give_others(5 * kPage); }

// The only stream of a free range may have it again.
TEST_F(BlocksShown, pages_are_of_the_one_stream_that_work_is_pending_of) {
  const DevicePtr ptr = world.allocate(20 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.use(ptr, 20 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_EQ(block(ptr).stream_id, 0u) << "of two";
  EXPECT_FALSE(block(ptr).is_complete);
  const RegionSnapshot shown = region(ptr);
  EXPECT_EQ(shown.kind, '-');
  EXPECT_FALSE(shown.complete);
  for (const StreamHandle stream : {a, b})
    EXPECT_NE(shown.stamp.find(name_of(stream) + " up to "), std::string::npos) << shown.stamp;
  EXPECT_NE(shown.stamp.find(" and "), std::string::npos);
  world.wait();
  EXPECT_EQ(region(ptr).stamp, "");
  EXPECT_TRUE(region(ptr).complete);
  EXPECT_TRUE(block(ptr).is_complete);
}

TEST_F(BlocksShown, a_snapshot_tells_pages_cut_pages_and_kept_ones_apart) {
  const DevicePtr small = world.allocate(1000, a);
  world.allocate(3000, b);
  const DevicePtr pages = world.allocate(3 * kPage - 100, b);
  const DevicePtr kept = world.allocate(2 * kPage, a);
  world.deallocate(kept, a);
  const RegionSnapshot cut = region(small);
  EXPECT_EQ(cut.kind, ' ');
  EXPECT_EQ(cut.small_allocations, 2u);
  EXPECT_EQ(cut.requested, 4000u);
  const RegionSnapshot live = region(pages);
  EXPECT_EQ(live.kind, ' ');
  EXPECT_EQ(live.small_allocations, std::nullopt);
  EXPECT_EQ(live.requested, 3 * kPage - 100);
  EXPECT_EQ(live.stamp, name_of(b));
  const RegionSnapshot cached = region(kept);
  EXPECT_EQ(cached.kind, '-');
  EXPECT_FALSE(cached.complete) << "nobody asked";
  EXPECT_EQ(cached.requested, 0u);
  EXPECT_EQ(cached.stamp, name_of(a));
  const observe::PoolSnapshot all = world.pool().reports().snapshot();
  EXPECT_EQ(all.device, 0);
  EXPECT_EQ(all.driver, "sim");
  EXPECT_EQ(all.policy, "adaptive");
  EXPECT_EQ(all.page_size, kPage);
  EXPECT_EQ(all.statistics.live_allocations, 3u);
}

TEST(Snapshot, of_a_second_device_without_a_pool_of_its_own_names_the_device_alone) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  options.vmm_supported = false;
  driver::sim::SimDriver sim(options);
  const auto pool = context::Context::create(sim, 1, {});
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE(pool.value()->allocate({1000, 0, std::nullopt}).ok());
  const observe::PoolSnapshot all = pool.value()->reports().snapshot();
  EXPECT_EQ(all.device, 1);
  EXPECT_EQ(all.driver, "sim");
  EXPECT_EQ(all.policy, "stream_ordered");
  EXPECT_EQ(all.page_size, 0u);
  EXPECT_TRUE(all.regions.empty());
  EXPECT_EQ(all.statistics.live_allocations, 1u);
  const report::Layout layout = pool.value()->reports().layout();
  EXPECT_EQ(layout.largest_small, 0u);
  ASSERT_EQ(layout.blocks.size(), 1u);
  EXPECT_EQ(layout.blocks[0].requested, 1000u);
  EXPECT_EQ(layout.blocks[0].range.size, 1000u);
  EXPECT_EQ(layout.blocks[0].state, RegionState::allocated);
  EXPECT_FALSE(layout.blocks[0].is_small);
}

TEST(Drawn, no_size_is_cut_from_pages_where_the_drivers_pool_or_whole_pages_serve_all_of_them) {
  WorldOptions with_driver_pool = adaptive_world();
  with_driver_pool.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions isolated = adaptive_world();
  isolated.config.ipc_isolate = true;
  for (const WorldOptions& options : {with_driver_pool, isolated}) {
    PoolWorld world(options);
    world.allocate(1000, world.stream());
    const report::Layout layout = world.pool().reports().layout();
    EXPECT_EQ(layout.largest_small, 0u);
    ASSERT_EQ(layout.blocks.size(), 1u);
    EXPECT_FALSE(layout.blocks[0].is_small);
  }
}

class ArenaBlocksShown : public BlocksShown {
 protected:
  const ArenaId arena = make_arena(world);
};

TEST_F(ArenaBlocksShown, are_live_then_pending_then_complete) {
  const DevicePtr live = allocate_in(world, arena, 3 * kPage, a);
  const DevicePtr ptr = allocate_in(world, arena, kPage - 100, b);
  LayoutBlock shown = block(ptr);
  EXPECT_EQ(shown.state, RegionState::allocated);
  EXPECT_EQ(shown.requested, kPage - 100);
  EXPECT_EQ(shown.stream_id, id_of(b));
  EXPECT_EQ(shown.arena, static_cast<std::uint64_t>(arena));
  EXPECT_FALSE(shown.is_complete);
  EXPECT_FALSE(shown.is_suspended);
  EXPECT_FALSE(shown.is_small);
  EXPECT_EQ(region(ptr).kind, ' ');
  EXPECT_TRUE(region(ptr).complete);
  EXPECT_EQ(region(ptr).stamp, name_of(b));
  world.use(ptr, kPage - 100, b, kLongNs);
  world.deallocate(ptr, b);
  shown = block(ptr);
  EXPECT_EQ(shown.state, RegionState::free);
  EXPECT_EQ(shown.requested, 0u);
  EXPECT_EQ(shown.stream_id, id_of(b));
  EXPECT_FALSE(shown.is_complete);
  EXPECT_EQ(region(ptr).kind, '-');
  EXPECT_FALSE(region(ptr).complete);
  world.wait();
  shown = block(ptr);
  EXPECT_TRUE(shown.is_complete);
  EXPECT_EQ(shown.stream_id, 0u);
  EXPECT_TRUE(region(ptr).complete);
  pin(world, arena);
  EXPECT_FALSE(block(ptr).is_complete) << "a graph may use it";
  EXPECT_FALSE(region(ptr).complete);
  EXPECT_TRUE(region(live).complete);
  world.deallocate(live, a);
}

TEST_F(ArenaBlocksShown, of_a_suspended_arena_are_marked) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  ASSERT_TRUE(world.pool().suspension().suspend(arena, {}).ok());
  EXPECT_TRUE(block(ptr).is_suspended);
  EXPECT_EQ(block(ptr).state, RegionState::allocated);
  EXPECT_EQ(block(ptr).requested, 3 * kPage);
  EXPECT_EQ(region(ptr).kind, '^');
  EXPECT_EQ(region(ptr).requested, 3 * kPage);
  EXPECT_EQ(region(ptr).stamp, name_of(a));
  ASSERT_TRUE(world.pool().suspension().resume(arena, {}).ok());
  EXPECT_FALSE(block(ptr).is_suspended);
  EXPECT_EQ(region(ptr).kind, ' ');
  world.deallocate(ptr, a);
}

TEST_F(ArenaBlocksShown, of_memory_of_the_user_are_shown_without_a_chunk) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId external = make_arena(world, kExternal);
  add_memory(world, external, memory);
  const DevicePtr ptr = allocate_in(world, external, kPage, a);
  EXPECT_EQ(block(ptr).arena, static_cast<std::uint64_t>(external));
  EXPECT_EQ(block(ptr).requested, kPage);
  EXPECT_EQ(block(ptr).stream_id, id_of(a));
  for (const AddressRange& chunk : world.pool().reports().layout().chunks)
    EXPECT_FALSE(chunk.overlaps(memory));
  world.deallocate(ptr, a);
  world.wait();
  EXPECT_EQ(take_memory(world, external), memory);
  release(world, external);
  free_user_memory(world, memory);
}

class GuardedBlocksShown : public BlocksShown {
 protected:
  GuardedBlocksShown() : BlocksShown(guarded()) {}
  static WorldOptions guarded() {
    WorldOptions options = adaptive_world();
    options.config.checks.guard_every = 1;
    return options;
  }
};

TEST_F(GuardedBlocksShown, are_complete_as_soon_as_their_work_is_over) {
  const DevicePtr first = world.allocate(1000, a);
  world.use(first, 1000, a);
  world.deallocate(first, a);
  ASSERT_EQ(world.sim().stream_synchronize(a), driver::CuResult::success);
  const LayoutBlock pending = block(first);
  EXPECT_EQ(pending.state, RegionState::zombie);
  EXPECT_EQ(pending.stream_id, id_of(a));
  EXPECT_EQ(pending.requested, 0u);
  EXPECT_FALSE(pending.is_complete);
  // By address, among others.
  const DevicePtr second = world.allocate(5 * kPage, b);
  const report::Layout layout = world.pool().reports().layout();
  EXPECT_TRUE(std::is_sorted(layout.chunks.begin(), layout.chunks.end(),
                             [](const AddressRange& left, const AddressRange& right) {
                               return left.begin < right.begin;
                             }));
  EXPECT_TRUE(std::is_sorted(layout.blocks.begin(), layout.blocks.end(),
                             [](const LayoutBlock& left, const LayoutBlock& right) {
                               return left.range.begin < right.range.begin;
                             }));
  EXPECT_EQ(block(second).range, (AddressRange{second, 5 * kPage}));
  EXPECT_EQ(block(second).stream_id, id_of(b));
  world.deallocate(second, b);
}

TEST_F(GuardedBlocksShown, are_not_shown_once_they_are_unmapped) {
  const DevicePtr ptr = world.allocate(1000, a);
  world.deallocate(ptr, a);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_TRUE(world.pool().reports().layout().blocks.empty());
  EXPECT_TRUE(world.pool().reports().layout().chunks.empty());
}

TEST(GuardedBlocks, are_not_shown_before_they_are_mapped) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  HookedWorld world(options);
  std::size_t shown = 99;
  world.hooks.on[driver::Call::mem_map] = [&] {
    world.on_another_thread([&] {
      const report::Layout layout = world.pool->reports().layout();
      shown = layout.blocks.size() + layout.chunks.size();
    });
    return driver::CuResult::success;
  };
  const DevicePtr ptr = world.allocate(1000, std::nullopt);
  world.hooks.on.clear();
  EXPECT_EQ(shown, 0u);
  EXPECT_EQ(world.pool->reports().layout().blocks.size(), 1u);
  world.deallocate(ptr, std::nullopt);
}

TEST(Snapshot, shows_memory_that_a_request_is_mapping_as_in_flight) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "the request");
  HookedWorld world(page_world());
  const DevicePtr live = world.allocate(kPage, std::nullopt);
  std::string picture;
  std::size_t in_flight = 0;
  world.hooks.on[driver::Call::mem_map] = [&] {
    world.on_another_thread([&] {
      picture = observe::picture(world.pool->reports().snapshot());
      for (const report::LayoutBlock& block : world.pool->reports().layout().blocks)
        in_flight += block.state == RegionState::in_flight ? 1 : 0;
    });
    return driver::CuResult::success;
  };
  const DevicePtr ptr = world.allocate(3 * kPage, std::nullopt);
  world.hooks.on.clear();
  EXPECT_EQ(picture, "[1][#3]");
  EXPECT_EQ(in_flight, 3u);
  world.deallocate(ptr, std::nullopt);
  world.deallocate(live, std::nullopt);
}

TEST_F(BlocksShown, a_recording_begins_with_what_lives_and_names_its_streams) {
  const ArenaId arena = make_arena(world);
  const DevicePtr in_arena = allocate_in(world, arena, kPage, b);
  const std::uint32_t library = report::tag_with_name("a library");
  const DevicePtr labelled = world.pool().allocate({1000, 0, a, {}, 7, library}).value();
  const DevicePtr plain = world.allocate(3 * kPage, std::nullopt);
  world.deallocate(world.allocate(2000, a), a);
  const std::string path = ::testing::TempDir() + "vpmm_living_" + std::to_string(getpid());
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  const RecordedFile file = read_recorded(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(observe::RecordedKind::live), 3u);
  const auto recorded_at = [&](DevicePtr ptr) {
    for (const RecordedEvent& event : file.events)
      if (event.kind == static_cast<std::uint16_t>(observe::RecordedKind::live) &&
          event.address == to_integer(ptr))
        return event;
    ADD_FAILURE() << "nothing lives at " << hex(ptr);
    return RecordedEvent{};
  };
  const auto stream_of = [&](DevicePtr ptr) {
    return file.definitions["streams"].value(std::to_string(recorded_at(ptr).stream),
                                             nlohmann::json{});
  };
  EXPECT_EQ(recorded_at(in_arena).arena, static_cast<std::uint64_t>(arena));
  EXPECT_EQ(recorded_at(labelled).arena, 0u);
  EXPECT_EQ(recorded_at(labelled).tag, 7u);
  EXPECT_EQ(recorded_at(plain).tag, 0u);
  EXPECT_EQ(recorded_at(plain).flags, 0u) << "no library";
  const std::string libraries = file.definitions["libraries"].dump();
  EXPECT_NE(recorded_at(labelled).flags, 0u);
  EXPECT_NE(libraries.find("a library"), std::string::npos) << libraries;
  EXPECT_EQ(recorded_at(plain).stream, observe::kNoRecordedStream);
  EXPECT_NE(recorded_at(labelled).stream, recorded_at(in_arena).stream);
  for (const auto& [ptr, stream] : {std::pair(in_arena, b), std::pair(labelled, a)}) {
    const std::string told = stream_of(ptr).dump();
    EXPECT_NE(told.find(std::to_string(id_of(stream))), std::string::npos) << told;
    EXPECT_NE(told.find(hex(DevicePtr{static_cast<std::uint64_t>(stream)})), std::string::npos)
        << told << " of " << file.definitions.dump();
  }
  world.deallocate(in_arena, b);
  world.deallocate(labelled, a);
  world.deallocate(plain, std::nullopt);
}

}  // namespace
}  // namespace vpmm::test
