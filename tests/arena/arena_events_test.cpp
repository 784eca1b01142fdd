// SPDX-License-Identifier: Apache-2.0
// arena: what listeners hear of arenas, and what layouts show of them. EventLog holds each event
// against those before it: stretches come after their chunks and before what is allocated there,
// and go after the last free.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "observe/log_level.hpp"
#include "support/event_log.hpp"
#include "support/layout_tiles.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using region::RegionState;
using report::LayoutBlock;

using Kinds = std::vector<EventKind>;

constexpr arena::ArenaOptions kOneChunk{true, true, 0, false};

std::uint64_t number_of(ArenaId arena) { return static_cast<std::uint64_t>(arena); }

class ArenaEvents : public ::testing::Test {
 protected:
  PoolWorld world{adaptive_world()};
  EventLog log{world.pool()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world);
};

TEST_F(ArenaEvents, a_stretch_is_told_between_its_chunks_and_what_is_allocated_there) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage - 100, a);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::map, EventKind::arena_grow, EventKind::allocate}));
  const ReportedEvent grow = log.events()[1];
  EXPECT_EQ(grow.ptr, ptr);
  EXPECT_EQ(grow.bytes, 3 * kPage);
  EXPECT_EQ(grow.arena, number_of(arena));
  EXPECT_FALSE(grow.stream.has_value());
  EXPECT_EQ(log.events()[2].arena, number_of(arena));
  EXPECT_EQ(log.events()[2].bytes, 3 * kPage - 100);
}

TEST_F(ArenaEvents, what_fits_in_a_stretch_is_only_allocated_and_freed) {
  allocate_in(world, arena, 1000, a);
  log.clear();
  world.deallocate(allocate_in(world, arena, 1000, a), a);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::allocate, EventKind::free}));
  EXPECT_EQ(log.events()[1].arena, number_of(arena));
  EXPECT_EQ(log.events()[1].bytes, 1000u);
}

TEST_F(ArenaEvents, a_use_on_another_stream_names_the_arena) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  ASSERT_EQ(log.of(EventKind::record_use).size(), 1u);
  EXPECT_EQ(log.of(EventKind::record_use)[0].arena, number_of(arena));
}

TEST_F(ArenaEvents, memory_that_the_pool_has_idle_becomes_an_arenas_without_a_chunk_more) {
  world.deallocate(world.allocate(20 * kPage, a), a);
  world.wait();
  log.clear();
  allocate_in(world, arena, 20 * kPage, a);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::arena_grow, EventKind::allocate}));
}

TEST_F(ArenaEvents, a_trim_is_told_of_the_stretch_and_then_of_its_chunks) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  world.deallocate(ptr, a);
  world.wait();
  log.clear();
  EXPECT_EQ(trim(world, arena), 3 * kPage);
  ASSERT_EQ(log.kinds(), Kinds{EventKind::arena_shrink});
  EXPECT_EQ(log.events()[0].ptr, ptr);
  EXPECT_EQ(log.events()[0].bytes, 3 * kPage);
  EXPECT_EQ(log.events()[0].arena, number_of(arena));
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::arena_shrink, EventKind::unmap, EventKind::trim}));
}

TEST_F(ArenaEvents, a_released_arena_shrinks_behind_the_last_free) {
  const DevicePtr live = allocate_in(world, arena, 1000, a);
  world.deallocate(allocate_in(world, arena, 3 * kPage, a), a);
  log.clear();
  release(world, arena);
  EXPECT_EQ(log.kinds(), Kinds{EventKind::arena_shrink});
  log.clear();
  world.deallocate(live, a);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::free, EventKind::arena_shrink}));
  EXPECT_TRUE(log.stretches().empty());
}

TEST_F(ArenaEvents, memory_that_other_processes_hold_shrinks_when_they_let_go) {
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  const auto shared = world.pool().sharing().share({ptr, 3 * kPage});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  release(world, arena);
  log.clear();
  world.deallocate(ptr, a);
  EXPECT_EQ(log.kinds(), Kinds{EventKind::free});
  const std::vector<LayoutBlock> blocks = blocks_of(world.pool().reports().layout(), arena);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].state, RegionState::free);
  EXPECT_FALSE(blocks[0].is_complete);
  EXPECT_EQ(blocks[0].stream_id, 0u);
  world.pool().sharing().end_lease(shared.value().share, context::Holder::handle);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::free, EventKind::arena_shrink}));
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST_F(ArenaEvents, an_external_arena_grows_and_shrinks_with_what_it_is_given) {
  const ArenaId external = make_arena(world, kExternal);
  const AddressRange memory = user_memory(world, 2 * kPage);
  add_memory(world, external, memory);
  world.deallocate(allocate_in(world, external, 1000, a), a);
  EXPECT_EQ(take_memory(world, external), memory);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::arena_grow, EventKind::allocate, EventKind::free,
                                EventKind::arena_shrink}));
  for (const ReportedEvent& event : log.events()) EXPECT_EQ(event.arena, number_of(external));
  EXPECT_EQ(log.events()[0].ptr, memory.begin);
  EXPECT_EQ(log.events()[0].bytes, memory.size);
  EXPECT_EQ(log.events()[3].ptr, memory.begin);
  EXPECT_EQ(log.events()[3].bytes, memory.size);
  free_user_memory(world, memory);
}

TEST_F(ArenaEvents, a_request_that_fails_grows_nothing) {
  world.pool().limits().set_capacity(2 * kPage);
  expect_error(world.pool().allocate({3 * kPage, 0, a, arena}), ErrorCode::out_of_memory);
  EXPECT_EQ(log.kinds(), Kinds{EventKind::out_of_memory});
}

TEST_F(ArenaEvents, a_shortage_takes_idle_stretches_back_before_their_chunks_serve_others) {
  world.pool().limits().set_capacity(8 * kPage);
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  world.deallocate(ptr, a);
  log.clear();
  world.use(world.allocate(7 * kPage, b), 7 * kPage, b);
  EXPECT_EQ(log.of(EventKind::arena_shrink).size(), 1u);
  EXPECT_EQ(log.kinds().front(), EventKind::arena_shrink);
}

// --- layouts

TEST_F(ArenaEvents, a_layout_shows_the_blocks_of_each_stretch) {
  const DevicePtr live = allocate_in(world, arena, 1000, a);
  const DevicePtr freed = allocate_in(world, arena, 600 * kKiB, a);
  world.use(freed, 600 * kKiB, a, kLongNs);
  world.deallocate(freed, a);
  const DevicePtr large = allocate_in(world, arena, 3 * kPage, b);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  std::map<DevicePtr, Bytes> reached;  // of each stretch
  for (const LayoutBlock& block : blocks_of(layout, arena)) {
    const auto stretch = std::prev(log.stretches().upper_bound(block.range.begin));
    EXPECT_EQ(block.range.begin, stretch->first + reached[stretch->first]);
    reached[stretch->first] += block.range.size;
    EXPECT_EQ(block.state == RegionState::allocated,
              block.range.begin == live || block.range.begin == large);
  }
  EXPECT_EQ(reached, log.stretches());
  EXPECT_EQ(reached.size(), 2u);
}

TEST_F(ArenaEvents, a_layout_says_which_stream_may_have_what_is_free_in_an_arena) {
  const DevicePtr own = allocate_in(world, arena, 3 * kPage, a);
  const DevicePtr shared = allocate_in(world, arena, 5 * kPage, a);
  const auto block_at = [&](DevicePtr begin) {
    for (const LayoutBlock& block : world.pool().reports().layout().blocks)
      if (block.range.begin == begin) return block;
    ADD_FAILURE() << "no block begins at " << hex(begin);
    return LayoutBlock{};
  };
  const std::uint64_t stream = block_at(own).stream_id;
  EXPECT_NE(stream, 0u);
  ASSERT_TRUE(world.pool().record_use(shared, b).ok());
  world.use(own, 3 * kPage, a, kLongNs);
  world.deallocate(own, a);
  world.deallocate(shared, a);
  EXPECT_EQ(block_at(own).stream_id, stream);
  EXPECT_FALSE(block_at(own).is_complete);
  EXPECT_EQ(block_at(shared).stream_id, 0u) << "it waits";
  EXPECT_FALSE(block_at(shared).is_complete);
  world.sim().run_until_idle();
  world.wait();
  EXPECT_TRUE(block_at(own).is_complete);
  EXPECT_EQ(block_at(own).stream_id, 0u);
  EXPECT_TRUE(block_at(shared).is_complete);
  pin(world, arena);
  EXPECT_FALSE(block_at(own).is_complete) << "graphs use it at any time";
  EXPECT_EQ(block_at(own).stream_id, stream) << "it serves that stream alone";
}

TEST_F(ArenaEvents, an_arena_of_one_chunk_each_has_one_chunk_behind_each_stretch) {
  const ArenaId chunked = make_arena(world, kOneChunk);
  for (const Bytes pages : {1U, 5U, 17U}) allocate_in(world, chunked, pages * kPage, a);
  allocate_in(world, chunked, 1000, a);
  ASSERT_EQ(log.stretches().size(), 4u);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  std::map<DevicePtr, Bytes> chunks;
  for (const AddressRange& chunk : layout.chunks) chunks[chunk.begin] = chunk.size;
  EXPECT_EQ(chunks, log.stretches());
}

// --- anything in any order

// Requests in the pool and in four arenas, of which one is external, on three streams, with trims,
// releases and calls of the driver that fail.
class RandomArenas {
 public:
  explicit RandomArenas(std::uint32_t seed) : random_(seed) {
    memory_ = user_memory(world_, 16 * kPage);
    for (int i = 0; i < 4; ++i) arenas_.push_back(make(i));
    add_memory(world_, arenas_[3], memory_);
  }
  ~RandomArenas() { free_user_memory(world_, memory_); }
  RandomArenas(const RandomArenas&) = delete;
  RandomArenas& operator=(const RandomArenas&) = delete;

  void step() {
    if (pick(4) == 0) fail_soon();
    switch (pick(24)) {
      case 0: static_cast<void>(world_.pool().limits().trim(0)); break;
      case 1: static_cast<void>(world_.pool().arenas().trim(arenas_[pick(3)])); break;
      case 2: replace(pick(3)); break;
      case 3: take_and_add(); break;
      default: pick(3) != 0 || live_.empty() ? allocate() : deallocate();
    }
    world_.faults().clear_plan();
    EXPECT_EQ(world_.pool().reports().validate(), "");
  }
  void check() {
    const report::Layout layout = world_.pool().reports().layout();
    expect_tiled(layout,
                 has_memory_ ? std::vector<AddressRange>{memory_} : std::vector<AddressRange>{});
    std::map<DevicePtr, Bytes> shown;
    for (const LayoutBlock& block : layout.blocks)
      if (block.state == RegionState::allocated) shown[block.range.begin] = block.requested;
    EXPECT_EQ(shown, live_);
    EXPECT_EQ(log_.live(), live_);
    expect_stretches(layout);
  }
  void end() {
    while (!live_.empty()) deallocate();
    for (const ArenaId arena : arenas_) release(world_, arena);
    EXPECT_TRUE(log_.stretches().empty());
  }

 private:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.sim.capacity = 80 * kPage;
    options.config.log = observe::LogLevel::quiet;
    return options;
  }
  std::uint32_t pick(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  ArenaId make(int kind) {
    return make_arena(world_, kind == 1   ? kOneChunk
                              : kind == 3 ? kExternal
                                          : arena::ArenaOptions{});
  }
  void fail_soon() {
    using driver::Call;
    world_.faults().set_plan({{Call::mem_create, Call::mem_map, Call::mem_set_access,
                               Call::mem_unmap, Call::mem_release, Call::event_record},
                              1 + pick(4),
                              driver::CuResult::out_of_memory,
                              driver::FaultPlan::Repeat::once});
  }
  void replace(std::uint32_t which) {
    release(world_, arenas_[which]);
    arenas_[which] = make(static_cast<int>(which));
  }
  void take_and_add() {
    if (has_memory_) {
      const auto taken = world_.pool().arenas().take(arenas_[3]);
      if (taken.ok() && !taken.value().empty()) has_memory_ = false;
    } else {
      add_memory(world_, arenas_[3], memory_);
      has_memory_ = true;
    }
  }
  void allocate() {
    const StreamHandle stream = streams_[pick(3)];
    const Bytes bytes = pick(3) != 0 ? 1 + pick(1'900'000) : kPage * (1 + pick(8)) - pick(2);
    const std::uint32_t where = pick(6);
    pool::Request request{bytes, 0, stream};
    if (where < 4) request.arena = arenas_[where];
    const auto made = where < 4 ? world_.pool().allocate(request) : world_.pool().allocate(request);
    if (!made.ok()) return;
    live_[made.value()] = bytes;
    world_.use(made.value(), bytes, stream, 1 + pick(100'000));
    if (pick(4) == 0) {
      EXPECT_TRUE(world_.pool().record_use(made.value(), streams_[pick(3)]).ok());
    }
  }
  void deallocate() {
    const auto freed = std::next(live_.begin(), pick(static_cast<std::uint32_t>(live_.size())));
    const pool::Stream stream = pick(2) != 0 ? pool::Stream(streams_[pick(3)]) : std::nullopt;
    EXPECT_TRUE(world_.pool().deallocate(freed->first, stream).ok());
    live_.erase(freed);
  }
  // Blocks of arenas fill what they have, and blocks that are of none lie elsewhere.
  void expect_stretches(const report::Layout& layout) {
    Runs stretches, blocks;
    for (const auto& [begin, bytes] : log_.stretches()) stretches.add({begin, bytes});
    for (const LayoutBlock& block : layout.blocks)
      if (block.arena != 0) blocks.add(block.range);
    EXPECT_TRUE(blocks == stretches);
  }

  PoolWorld world_{options()};
  EventLog log_{world_.pool()};
  std::mt19937 random_;
  const std::vector<StreamHandle> streams_{world_.stream(), world_.stream(), world_.stream()};
  AddressRange memory_;
  bool has_memory_ = true;
  std::vector<ArenaId> arenas_;
  std::map<DevicePtr, Bytes> live_;
};

TEST(RandomArenaEvents, events_and_layouts_tell_the_same_whatever_fails) {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    RandomArenas run(seed);
    for (int step = 0; step < 200 && !::testing::Test::HasFailure(); ++step) {
      run.step();
      run.check();
    }
    if (::testing::Test::HasFailure()) return;
    run.end();
  }
}

}  // namespace
}  // namespace vpmm::test
