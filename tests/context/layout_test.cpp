// SPDX-License-Identifier: Apache-2.0
// context: what lies where in a pool: blocks down to those below a page, and chunks.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "observe/log_level.hpp"
#include "support/event_log.hpp"
#include "support/layout_tiles.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using region::RegionState;
using report::bit_of;
using report::LayoutBlock;

std::vector<LayoutBlock> in_state(const report::Layout& layout, RegionState state) {
  std::vector<LayoutBlock> found;
  for (const LayoutBlock& block : layout.blocks)
    if (block.state == state) found.push_back(block);
  return found;
}

LayoutBlock at(const report::Layout& layout, DevicePtr begin) {
  for (const LayoutBlock& block : layout.blocks)
    if (block.range.begin == begin) return block;
  ADD_FAILURE() << "no block begins at " << hex(begin);
  return {};
}

std::uint64_t id_of(PoolWorld& world, StreamHandle stream) {
  driver::StreamId id{};
  EXPECT_EQ(world.sim().stream_get_id(stream, id), driver::CuResult::success);
  return static_cast<std::uint64_t>(id);
}

TEST(Layout, of_a_pool_that_has_nothing_is_empty) {
  PoolWorld world(adaptive_world());
  const report::Layout layout = world.pool().reports().layout();
  EXPECT_TRUE(layout.blocks.empty());
  EXPECT_TRUE(layout.chunks.empty());
}

TEST(Layout, shows_an_allocation_with_what_was_asked_for_and_its_stream) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage - 100, stream);
  const DevicePtr any = world.allocate(6 * kPage, std::nullopt);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  const LayoutBlock block = at(layout, ptr);
  EXPECT_EQ(block.state, RegionState::allocated);
  EXPECT_EQ(block.range.size, 4 * kPage);
  EXPECT_EQ(block.requested, 4 * kPage - 100);
  EXPECT_EQ(block.stream_id, id_of(world, stream));
  EXPECT_FALSE(block.is_small);
  EXPECT_EQ(at(layout, any).stream_id, 0u);
}

TEST(Layout, shows_where_chunks_end_inside_an_allocation) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(3 * kPage, world.stream());
  const report::Layout layout = world.pool().reports().layout();
  ASSERT_EQ(layout.chunks.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(layout.chunks[i], (AddressRange{ptr + i * kPage, kPage}));
}

TEST(Layout, says_which_stream_may_have_what_is_free_until_it_is_complete) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(20 * kPage, stream);
  world.use(ptr, 20 * kPage, stream);
  world.deallocate(ptr, stream);
  LayoutBlock block = at(world.pool().reports().layout(), ptr);
  EXPECT_EQ(block.state, RegionState::free);
  EXPECT_FALSE(block.is_complete);
  EXPECT_EQ(block.stream_id, id_of(world, stream));
  EXPECT_EQ(block.requested, 0u);
  world.wait();
  block = at(world.pool().reports().layout(), ptr);
  EXPECT_TRUE(block.is_complete);
  EXPECT_EQ(block.stream_id, 0u);
}

TEST(Layout, what_a_stream_keeps_for_its_next_requests_is_free_for_that_stream) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(2 * kPage, stream);
  world.deallocate(ptr, stream);
  ASSERT_EQ(world.statistics().live_allocations, 0u);
  const LayoutBlock block = at(world.pool().reports().layout(), ptr);
  EXPECT_EQ(block.state, RegionState::free);
  EXPECT_EQ(block.stream_id, id_of(world, stream));
}

TEST(Layout, shows_each_block_and_span_of_a_page_that_is_cut_and_what_is_idle_between) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  std::map<DevicePtr, Bytes> live;
  std::vector<DevicePtr> blocks;
  for (const Bytes bytes :
       {Bytes{1}, Bytes{1000}, Bytes{1024}, 40 * kKiB, 119 * kKiB, 300 * kKiB, 700 * kKiB}) {
    for (const StreamHandle on : {stream, other, stream}) {
      const DevicePtr ptr = world.allocate(bytes, on);
      live[ptr] = bytes;
      blocks.push_back(ptr);
    }
  }
  for (std::size_t i = 0; i < blocks.size(); i += 3) {
    world.deallocate(blocks[i], stream);
    live.erase(blocks[i]);
  }
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  std::map<DevicePtr, Bytes> shown;
  for (const LayoutBlock& block : in_state(layout, RegionState::allocated)) {
    EXPECT_TRUE(block.is_small);
    EXPECT_GE(block.range.size, block.requested);
    EXPECT_NE(block.stream_id, 0u);
    shown[block.range.begin] = block.requested;
  }
  EXPECT_EQ(shown, live);
}

TEST(Layout, a_block_that_waits_for_another_stream_is_free_and_not_complete) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  const DevicePtr next = world.allocate(1000, stream);
  ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
  world.deallocate(ptr, stream);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  const std::vector<LayoutBlock> live = in_state(layout, RegionState::allocated);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].range.begin, next);
  for (const LayoutBlock& block : in_state(layout, RegionState::free)) {
    if (block.range.contains(ptr)) {
      EXPECT_FALSE(block.is_complete);
    }
  }
}

TEST(Layout, what_was_freed_and_is_kept_for_a_captured_graph_is_free_for_nobody_yet) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  EXPECT_EQ(at(world.pool().reports().layout(), ptr).state, RegionState::allocated);
  world.deallocate(ptr, stream);
  const LayoutBlock block = at(world.pool().reports().layout(), ptr);
  EXPECT_EQ(block.state, RegionState::free);
  EXPECT_FALSE(block.is_complete);
  EXPECT_EQ(block.stream_id, 0u);
  const driver::GraphHandle graph = end_capture(world, stream);
  EXPECT_EQ(world.sim().graph_destroy(graph), driver::CuResult::success);
}

TEST(Layout, memory_of_the_drivers_own_pool_is_shown_and_has_no_chunk) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  const report::Layout layout = world.pool().reports().layout();
  EXPECT_TRUE(layout.chunks.empty());
  EXPECT_EQ(at(layout, ptr).requested, 1000u);
  EXPECT_EQ(at(layout, ptr).stream_id, id_of(world, stream));
  world.deallocate(ptr, stream);
}

TEST(Layout, old_places_of_chunks_that_moved_are_zombies_and_hold_no_chunk) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(4 * kPage);
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(world.allocate(kPage, stream));
  for (const std::size_t i : {0U, 2U}) {
    world.use(pages[i], kPage, stream, kLongNs);
    world.deallocate(pages[i], stream);
  }
  const DevicePtr two = world.allocate(2 * kPage, stream);
  const report::Layout layout = world.pool().reports().layout();
  EXPECT_FALSE(in_state(layout, RegionState::zombie).empty());
  EXPECT_EQ(layout.chunks.size(), 4u);
  EXPECT_EQ(at(layout, two).range.size, 2 * kPage);
  expect_tiled(layout);
}

TEST(Layout, tells_the_largest_size_that_is_cut_from_shared_pages) {
  for (const Bytes page : {2 * kMiB, 6 * kMiB, 10 * kMiB, 14 * kMiB}) {
    WorldOptions options = adaptive_world();
    options.config.page_size = page;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const Bytes largest = world.pool().reports().layout().largest_small;
    const DevicePtr small = world.allocate(largest, stream);
    const DevicePtr whole = world.allocate(largest + 1, stream);
    const report::Layout layout = world.pool().reports().layout();
    EXPECT_TRUE(at(layout, small).is_small);
    EXPECT_FALSE(at(layout, whole).is_small);
  }
}

TEST(Layout, names_the_arena_of_its_blocks) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr inside = allocate_in(world, arena, 1000, stream);
  const DevicePtr outside = world.allocate(4 * kPage, stream);
  const report::Layout layout = world.pool().reports().layout();
  EXPECT_EQ(at(layout, inside).arena, static_cast<std::uint64_t>(arena));
  EXPECT_EQ(at(layout, outside).arena, 0u);
  world.deallocate(inside, stream);
}

class LayoutOfAnArena : public ArenaWorld {};

TEST_F(LayoutOfAnArena, tells_whom_freed_blocks_serve) {
  const DevicePtr own = allocate_in(world, arena, kPage, a);
  const DevicePtr both = allocate_in(world, arena, kPage, a);
  const DevicePtr shared = allocate_in(world, arena, kPage, a);
  const DevicePtr last = allocate_in(world, arena, kPage, a);
  const auto share = world.pool().sharing().share({shared, kPage});
  ASSERT_TRUE(share.ok()) << message_of(share);
  world.use(own, kPage, a, kLongNs);
  world.use(both, kPage, a, kLongNs);
  ASSERT_TRUE(world.pool().record_use(both, b).ok());
  for (const DevicePtr ptr : {own, both, shared}) world.deallocate(ptr, a);
  EXPECT_NE(at(world.pool().reports().layout(), own).stream_id, 0u);
  EXPECT_FALSE(at(world.pool().reports().layout(), own).is_complete);
  EXPECT_EQ(at(world.pool().reports().layout(), both).stream_id, 0u) << "serves nobody";
  EXPECT_FALSE(at(world.pool().reports().layout(), both).is_complete);
  EXPECT_EQ(at(world.pool().reports().layout(), shared).stream_id, 0u) << "kept";
  EXPECT_FALSE(at(world.pool().reports().layout(), shared).is_complete);
  world.pool().sharing().end_lease(share.value().share, context::Holder::handle);
  settle();
  EXPECT_TRUE(at(world.pool().reports().layout(), own).is_complete);
  EXPECT_EQ(at(world.pool().reports().layout(), own).stream_id, 0u);
  world.deallocate(last, a);
}

TEST(Layout, a_guarded_block_is_a_zombie_until_it_is_unmapped) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  const LayoutBlock live = at(world.pool().reports().layout(), ptr);
  EXPECT_EQ(live.state, RegionState::allocated);
  EXPECT_EQ(live.requested, 1000u);
  EXPECT_EQ(live.range.size, 1000u);
  EXPECT_EQ(live.stream_id, id_of(world, stream));
  EXPECT_FALSE(live.is_complete);
  const auto chunks = world.pool().reports().layout().chunks;
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].size, kPage);
  EXPECT_TRUE(chunks[0].contains(ptr));
  world.use(ptr, 1000, stream, kLongNs);
  world.deallocate(ptr, stream);
  const std::vector<LayoutBlock> gone =
      in_state(world.pool().reports().layout(), RegionState::zombie);
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].range.size, kPage) << "all that is mapped";
  EXPECT_EQ(gone[0].requested, 0u);
  EXPECT_FALSE(gone[0].is_complete);
}

// The system hands out addresses from above.
TEST(Snapshot, lists_reservations_by_address) {
  WorldOptions options = adaptive_world();
  options.config.va_size = kGiB;
  PoolWorld world(options);
  for (const Bytes bytes : {kPage, 2 * kGiB, 4 * kGiB}) world.allocate(bytes, std::nullopt);
  const auto reservations = world.pool().reports().snapshot().reservations;
  ASSERT_EQ(reservations.size(), 3u);
  EXPECT_LT(reservations[0].begin, reservations[1].begin);
  EXPECT_LT(reservations[1].begin, reservations[2].begin);
}

// Sizes below and around pages on three streams, with uses of others, trims and calls that fail.
class RandomLayout : public ::testing::TestWithParam<bool> {};

TEST_P(RandomLayout, is_what_live_allocations_and_events_say_whatever_fails) {
  using driver::Call;
  WorldOptions options = GetParam() ? page_world() : adaptive_world();
  options.sim.capacity = 64 * kPage;
  options.config.log = observe::LogLevel::quiet;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    PoolWorld world(options);
    EventLog log(world.pool(), bit_of(EventKind::map) | bit_of(EventKind::unmap));
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t below) { return random() % below; };
    const std::vector<StreamHandle> streams{world.stream(), world.stream(), world.stream()};
    std::map<DevicePtr, Bytes> live;
    for (int step = 0; step < 150; ++step) {
      const StreamHandle stream = streams[pick(3)];
      if (pick(4) == 0)
        world.faults().set_plan({{Call::mem_create, Call::mem_map, Call::mem_set_access,
                                  Call::mem_unmap, Call::mem_release},
                                 1 + pick(4),
                                 driver::CuResult::out_of_memory,
                                 driver::FaultPlan::Repeat::once});
      if (pick(20) == 0) {
        static_cast<void>(world.pool().limits().trim(0));
      } else if (pick(3) != 0 || live.empty()) {
        const Bytes bytes = pick(3) != 0 ? 1 + pick(1'900'000) : kPage * (1 + pick(12)) - pick(2);
        const auto made = world.pool().allocate({bytes, 0, stream});
        if (made) live[made.value()] = bytes;
        if (made) world.use(made.value(), bytes, stream, 1 + pick(100'000));
        if (made && pick(4) == 0) {
          ASSERT_TRUE(world.pool().record_use(made.value(), streams[pick(3)]).ok());
        }
      } else {
        const auto freed =
            std::next(live.begin(),
                      static_cast<std::ptrdiff_t>(pick(static_cast<std::uint32_t>(live.size()))));
        ASSERT_TRUE(world.pool()
                        .deallocate(freed->first, pick(2) ? pool::Stream(stream) : std::nullopt)
                        .ok());
        live.erase(freed);
      }
      world.faults().clear_plan();
      ASSERT_EQ(world.pool().reports().validate(), "");
      const report::Layout layout = world.pool().reports().layout();
      expect_tiled(layout);
      std::map<DevicePtr, Bytes> shown;
      for (const LayoutBlock& block : in_state(layout, RegionState::allocated))
        shown[block.range.begin] = block.requested;
      ASSERT_EQ(shown, live);
      std::map<DevicePtr, Bytes> chunks;
      for (const AddressRange& chunk : layout.chunks) chunks[chunk.begin] = chunk.size;
      ASSERT_EQ(chunks, log.chunks());
      if (::testing::Test::HasFailure()) return;
    }
    for (const auto& [ptr, bytes] : live) world.deallocate(ptr, std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RandomLayout, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "pages" : "adaptive"; });

}  // namespace
}  // namespace vpmm::test
