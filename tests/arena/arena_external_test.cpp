// SPDX-License-Identifier: Apache-2.0
// arena: external arenas: memory of the user's that an arena divides, and how it comes back.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/quantity.hpp"
#include "support/hooked_world.hpp"
#include "support/layout_tiles.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr AddressRange kNone{};

class ExternalArena : public ::testing::Test {
 protected:
  explicit ExternalArena(const WorldOptions& options = adaptive_world()) : world(options) {
    add_memory(world, arena, memory);
  }
  void TearDown() override { free_user_memory(world, memory); }

  void settle() {  // the pool knows that all work is over
    world.sim().run_until_idle();
    world.wait();
  }
  bool is_inside(AddressRange range) const { return memory.contains(range); }

  PoolWorld world;
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = make_arena(world, kExternal);
  AddressRange memory = user_memory(world, 8 * kPage);
};

// --- dividing

TEST_F(ExternalArena, without_splitting_gives_a_whole_piece_of_at_most_twice_the_size) {
  const ArenaId whole = make_arena(world, {false, false, 0, true});
  const AddressRange piece = user_memory(world, 2 * kPage);
  add_memory(world, whole, piece);
  expect_error(world.pool().allocate({kPage - 512, 0, a, whole}), ErrorCode::out_of_memory);
  const DevicePtr ptr = allocate_in(world, whole, kPage, a);
  EXPECT_EQ(ptr, piece.begin);
  EXPECT_EQ(world.pool().query(ptr).value().usable, piece.size);
  world.deallocate(ptr, a);
  EXPECT_EQ(take_memory(world, whole), piece);
  free_user_memory(world, piece);
}

TEST_F(ExternalArena, divides_the_memory_to_the_last_byte_and_takes_no_other) {
  EXPECT_EQ(allocate_in(world, arena, 1000, a), memory.begin);
  EXPECT_EQ(allocate_in(world, arena, 500, a), memory.begin + 1024);
  const DevicePtr rest = allocate_in(world, arena, memory.size - 1536, b);
  EXPECT_EQ(rest, memory.begin + 1536);
  expect_error(world.pool().allocate({1, 0, a, arena}), ErrorCode::out_of_memory,
               {"no room for 1 byte in the " + readable_bytes(memory.size),
                "live " + readable_bytes(memory.size)});
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  world.use(memory.begin, 1000, a);
  world.use(rest, memory.size - 1536, b);
}

TEST_F(ExternalArena, several_pieces_of_memory_are_not_one) {
  const AddressRange whole = user_memory(world, 8 * kPage);
  const ArenaId divided = make_arena(world, kExternal);
  add_memory(world, divided, {whole.begin + 3 * kPage, 5 * kPage});
  add_memory(world, divided, {whole.begin, 3 * kPage});
  expect_error(world.pool().allocate({6 * kPage, 0, a, divided}), ErrorCode::out_of_memory);
  EXPECT_EQ(allocate_in(world, divided, 4 * kPage, a), whole.begin + 3 * kPage);
  EXPECT_EQ(allocate_in(world, divided, 3 * kPage, a), whole.begin);
  free_user_memory(world, whole);
}

TEST_F(ExternalArena, what_a_stream_freed_serves_it_at_once_and_others_when_the_work_is_over) {
  const DevicePtr ptr = allocate_in(world, arena, 5 * kPage, a);
  world.use(ptr, 5 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  expect_error(world.pool().allocate({6 * kPage, 0, b, arena}), ErrorCode::out_of_memory);
  EXPECT_EQ(allocate_in(world, arena, 5 * kPage, a), ptr);
  world.use(ptr, 5 * kPage, a);
  world.deallocate(ptr, a);
  settle();
  EXPECT_EQ(allocate_in(world, arena, 6 * kPage, b), ptr);
  world.use(ptr, 6 * kPage, b);
}

TEST_F(ExternalArena, a_recorded_use_is_waited_for_also_by_the_own_stream) {
  const DevicePtr ptr = allocate_in(world, arena, 8 * kPage, a);
  ASSERT_EQ(world.sim().ctx_synchronize(), CuResult::success);
  world.use(ptr, 8 * kPage, b, kLongNs);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.deallocate(ptr, a);
  expect_error(world.pool().allocate({kPage, 0, a, arena}), ErrorCode::out_of_memory);
  settle();
  EXPECT_EQ(allocate_in(world, arena, kPage, a), ptr);
  world.use(ptr, kPage, a);
}

TEST_F(ExternalArena, pointers_inside_are_queried_and_freed_like_all_others) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  const auto info = world.pool().query(ptr + 700);
  ASSERT_TRUE(info.ok()) << message_of(info);
  EXPECT_EQ(info.value().begin, ptr);
  EXPECT_EQ(info.value().requested, 1000u);
  EXPECT_EQ(info.value().usable, 1024u);
  EXPECT_EQ(info.value().arena, arena);
  expect_error(world.pool().query(ptr + 1024), ErrorCode::invalid_pointer);
  expect_error(world.pool().deallocate(ptr + 512, a), ErrorCode::invalid_pointer,
               {"inside", hex(ptr)});
  expect_error(world.pool().record_use(ptr + 512, b), ErrorCode::invalid_pointer,
               {"inside", hex(ptr)});
  world.deallocate(ptr, a);
  expect_error(world.pool().deallocate(ptr, a), ErrorCode::invalid_pointer, {hex(ptr)});
  world.pool().deallocate_deferred(allocate_in(world, arena, 3 * kPage, a));
  allocate_in(world, arena, 8 * kPage - 1024, std::nullopt);
  EXPECT_EQ(world.statistics().caller_mistakes, 3u);
}

TEST_F(ExternalArena, a_place_in_it_can_be_named) {
  EXPECT_EQ(allocate_at(world, arena, {memory.begin + kPage, 1000}, a), memory.begin + kPage);
  expect_error(world.pool().arenas().allocate_at(arena, {memory.end(), 512}, a),
               ErrorCode::invalid_pointer);
  EXPECT_EQ(world.pool().arenas().live(arena).value(), Vector<DevicePtr>{memory.begin + kPage});
}

TEST_F(ExternalArena, a_bound_stream_frees_memory_of_it) {
  auto bound = world.pool().bind(a);
  ASSERT_TRUE(bound.ok());
  const DevicePtr ptr = allocate_in(world, arena, 8 * kPage, a);
  EXPECT_TRUE(bound.value()->deallocate(ptr).ok());
  EXPECT_EQ(allocate_in(world, arena, 8 * kPage, a), ptr);
}

TEST_F(ExternalArena, a_captured_graph_uses_it_and_it_stays) {
  begin_capture(world, a, driver::CaptureMode::global);
  const DevicePtr ptr = allocate_in(world, arena, kPage, a);
  world.use(ptr, kPage, a);
  world.deallocate(ptr, a);
  const driver::GraphHandle graph = end_capture(world, a);
  const driver::GraphExecHandle exec = launch(world, graph, a);
  EXPECT_EQ(take_memory(world, arena), kNone) << "launches use it at any time";
  EXPECT_EQ(allocate_in(world, arena, kPage, a), ptr);
  destroy(world, graph, exec);
}

// --- apart from the pool

TEST_F(ExternalArena, counts_in_no_figure) {
  const auto figures = [&] {
    const observe::Statistics now = world.statistics();
    const auto info = world.pool().limits().memory_info();
    EXPECT_TRUE(info.ok());
    return std::vector<std::uint64_t>{now.live_bytes,    now.allocated_bytes, now.free_bytes,
                                      now.pending_bytes, now.mapped_bytes,    now.live_allocations,
                                      now.allocations,   now.deallocations,   now.peak_live_bytes,
                                      now.leased_bytes,  info.value().free};
  };
  world.allocate(3 * kPage, a);
  allocate_in(world, make_arena(world), 1000, a);
  const auto before = figures();
  const DevicePtr live = allocate_in(world, arena, 1000, a);
  const DevicePtr freed = allocate_in(world, arena, 3 * kPage, a);
  EXPECT_EQ(figures(), before);
  world.use(freed, 3 * kPage, a, kLongNs);
  world.deallocate(freed, a);
  EXPECT_EQ(figures(), before);
  world.deallocate(live, std::nullopt);
  EXPECT_EQ(trim(world, arena), 0u);
  EXPECT_EQ(figures(), before);
  EXPECT_EQ(world.picture().find(hex(memory.begin)), std::string::npos);
}

TEST_F(ExternalArena, counts_among_live_allocations_of_its_arena_alone) {
  const DevicePtr ptr = allocate_in(world, arena, 1000, a);
  EXPECT_EQ(world.pool().arenas().live(arena).value(), Vector<DevicePtr>{ptr});
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

class ShortExternalArena : public ExternalArena {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.limits.capacity = 4 * kPage;
    return options;
  }
  ShortExternalArena() : ExternalArena(options()) {}
};

TEST_F(ShortExternalArena, what_is_idle_there_serves_no_request_of_the_pool) {
  expect_error(world.pool().allocate({5 * kPage, 0, a}), ErrorCode::out_of_memory);
  expect_error(world.pool().allocate({5 * kPage, 0, a, make_arena(world)}),
               ErrorCode::out_of_memory);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(allocate_in(world, arena, 8 * kPage, a), memory.begin)
      << "and its room is not the pool's capacity";
}

TEST_F(ShortExternalArena, the_report_of_a_shortage_is_about_memory_of_the_pool) {
  allocate_in(world, arena, kPage, a);
  const auto result = world.pool().allocate({5 * kPage, 0, a});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message.find("arena"), std::string::npos) << result.error().message;
}

TEST_F(ExternalArena, the_out_of_memory_callback_may_make_room) {
  const DevicePtr ptr = allocate_in(world, arena, 8 * kPage, a);
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return world.pool().deallocate(ptr, a).ok(); });
  EXPECT_EQ(allocate_in(world, arena, kPage, a), ptr);
}

TEST_F(ExternalArena, sharing_its_memory_is_refused) {
  const DevicePtr ptr = allocate_in(world, arena, kPage, a);
  expect_error(world.pool().sharing().share({ptr, kPage}), ErrorCode::unsupported,
               {hex(ptr), "arena"});
  world.deallocate(ptr, a);
  expect_error(world.pool().sharing().share({ptr, kPage}), ErrorCode::invalid_pointer);
}

TEST_F(ExternalArena, a_layout_shows_its_blocks_and_no_chunk_behind_them) {
  world.allocate(3 * kPage, a);
  pool::Request request{1000, 0, a, arena};
  request.tag = 9;
  const auto live = world.pool().allocate(request);
  ASSERT_TRUE(live.ok());
  const DevicePtr freed = allocate_in(world, arena, kPage, a);
  world.use(freed, kPage, a, kLongNs);
  world.deallocate(freed, a);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout, {memory});
  const std::vector<report::LayoutBlock> blocks = blocks_of(layout, arena);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].range, (AddressRange{live.value(), 1024}));
  EXPECT_EQ(blocks[0].requested, 1000u);
  EXPECT_EQ(blocks[0].tag, 9u);
  EXPECT_EQ(blocks[1].range, (AddressRange{freed, kPage}));
  EXPECT_EQ(blocks[1].state, region::RegionState::free);
  EXPECT_FALSE(blocks[1].is_complete);
  EXPECT_EQ(blocks[1].stream_id, blocks[0].stream_id) << "its stream may have it at once";
  EXPECT_TRUE(blocks[2].is_complete);
}

TEST_F(ExternalArena, after_a_reset_of_the_context_what_lives_is_known_still) {
  const AddressRange kept = user_memory(world, kPage);
  const ArenaId other = make_arena(world, kExternal);
  add_memory(world, other, kept);
  pool::Request request{1000, 0, a, other};
  request.tag = 9;
  ASSERT_TRUE(world.pool().allocate(request).ok());
  ASSERT_TRUE(world.pool().streams().reset().ok());
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_EQ(blocks_of(world.pool().reports().layout(), other).front().tag, 9u);
  world.deallocate(kept.begin, std::nullopt);
  EXPECT_EQ(take_memory(world, other), kept);
  memory = user_memory(world, kPage);  // the rest went with the context
}

// --- giving and taking back

TEST_F(ExternalArena, memory_comes_back_as_it_was_added_when_nothing_lives_in_it) {
  const AddressRange second = user_memory(world, 2 * kPage);
  add_memory(world, arena, second);
  const DevicePtr ptr = allocate_in(world, arena, 6 * kPage, a);
  EXPECT_EQ(take_memory(world, arena), second);
  EXPECT_EQ(take_memory(world, arena), kNone);
  free_user_memory(world, second);
  world.use(ptr, 6 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_EQ(take_memory(world, arena), memory);
  EXPECT_EQ(take_memory(world, arena), kNone) << "it is empty";
  expect_error(world.pool().allocate({1, 0, a, arena}), ErrorCode::out_of_memory);
}

// The hazard checker is told by the driver when memory goes that work still uses.
TEST_F(ExternalArena, no_work_is_under_way_in_memory_that_comes_back) {
  const AddressRange second = user_memory(world, 16 * kPage);
  add_memory(world, arena, second);
  for (const pool::Stream stream : {pool::Stream(a), pool::Stream(b), pool::Stream()}) {
    const DevicePtr ptr = allocate_in(world, arena, 10 * kPage, a);
    world.use(ptr, 10 * kPage, a, kLongNs);
    world.deallocate(ptr, stream);
    const std::uint64_t before = world.sim().now_ns();
    AddressRange taken = take_memory(world, arena);
    if (taken == memory) taken = take_memory(world, arena);
    EXPECT_EQ(taken, second);
    EXPECT_GE(world.sim().now_ns() - before, kLongNs / 2);
    add_memory(world, arena, second);
  }
  free_user_memory(world, second);
}

TEST_F(ExternalArena, taking_waits_for_nothing_where_there_is_nothing_to_take) {
  const DevicePtr ptr = allocate_in(world, arena, kPage, a);
  world.use(ptr, kPage, a, kLongNs);
  const std::uint64_t waits = world.calls().count(Call::ctx_synchronize);
  EXPECT_EQ(take_memory(world, arena), kNone);
  EXPECT_EQ(world.calls().count(Call::ctx_synchronize), waits);
}

TEST(ExternalArenaOnThreads, what_is_used_again_during_the_wait_does_not_come_back) {
  HookedWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = world.pool->arenas().create(kExternal).value();
  DevicePtr begin{};
  ASSERT_EQ(world.sim.mem_alloc(8 * kPage, begin), CuResult::success);
  ASSERT_TRUE(world.pool->arenas().add(arena, {begin, 8 * kPage}).ok());
  bool is_first = true;
  world.hooks.on[Call::ctx_synchronize] = [&] {
    if (!std::exchange(is_first, false)) return CuResult::success;
    world.on_another_thread([&] {
      const auto ptr = world.pool->allocate({kPage, 0, stream, arena});
      ASSERT_TRUE(ptr.ok()) << message_of(ptr);
      world.use(ptr.value(), kPage, stream, kLongNs);
      world.deallocate(ptr.value(), stream);
    });
    return CuResult::success;
  };
  const auto busy = world.pool->arenas().take(arena);
  ASSERT_TRUE(busy.ok()) << message_of(busy);
  EXPECT_TRUE(busy.value().empty()) << "the wait was for what was queued before";
  EXPECT_EQ(world.pool->arenas().take(arena).value(), (AddressRange{begin, 8 * kPage}));
  EXPECT_EQ(world.sim.mem_free(begin), CuResult::success);
}

TEST_F(ExternalArena, a_wait_that_fails_takes_nothing) {
  world.faults().set_plan(
      {{Call::ctx_synchronize}, 1, CuResult::invalid_value, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(world.pool().arenas().take(arena).ok());
  world.faults().clear_plan();
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_EQ(take_memory(world, arena), memory);
}

TEST_F(ExternalArena, nothing_comes_back_while_a_stream_is_captured) {
  begin_capture(world, b, driver::CaptureMode::global);
  world.allocate(kPage, b);
  expect_error(world.pool().arenas().take(arena), ErrorCode::capture_active);
  destroy(world, end_capture(world, b));
  EXPECT_EQ(take_memory(world, arena), memory);
}

TEST_F(ExternalArena, nothing_comes_back_of_a_pinned_arena) {
  pin(world, arena);
  EXPECT_EQ(take_memory(world, arena), kNone);
  release(world, arena);
  EXPECT_TRUE(world.pool().reports().layout().blocks.empty());
}

TEST_F(ExternalArena, frees_that_finalizers_deferred_are_carried_out_first) {
  world.pool().deallocate_deferred(allocate_in(world, arena, kPage, a));
  EXPECT_EQ(take_memory(world, arena), memory);
}

TEST_F(ExternalArena, release_drops_what_is_idle_at_once_and_the_rest_with_its_last_free) {
  const AddressRange second = user_memory(world, 2 * kPage);
  add_memory(world, arena, second);
  const DevicePtr ptr = allocate_in(world, arena, kPage, a);
  ASSERT_TRUE(second.contains(ptr)) << "the smaller one fits";
  release(world, arena);
  EXPECT_EQ(blocks_of(world.pool().reports().layout(), arena).size(), 2u);
  expect_error(world.pool().arenas().add(arena, memory), ErrorCode::invalid_argument, {"released"});
  expect_error(world.pool().arenas().take(arena), ErrorCode::invalid_argument, {"released"});
  const ArenaId other = make_arena(world, kExternal);
  add_memory(world, other, memory);
  world.deallocate(ptr, a);
  expect_error(world.pool().query(ptr), ErrorCode::invalid_pointer);
  add_memory(world, other, second);
  EXPECT_TRUE(blocks_of(world.pool().reports().layout(), arena).empty());
  free_user_memory(world, second);
}

// --- mistakes

TEST_F(ExternalArena, memory_is_refused_that_is_none_or_not_in_whole_grains) {
  const AddressRange fresh = user_memory(world, kPage);
  const auto refused = [&](AddressRange given, const char* why) {
    expect_error(world.pool().arenas().add(arena, given), ErrorCode::invalid_argument,
                 {hex(given.begin), why});
    EXPECT_EQ(world.pool().reports().validate(), "");
  };
  refused({fresh.begin, 0}, "no memory");
  refused({fresh.begin, 1000}, "512");
  refused({fresh.begin + 256, 1024}, "512");
  refused({fresh.begin, Bytes{1} << 48}, "address space");
  refused({DevicePtr{~std::uint64_t{0} - 511}, 1024}, "address space");
  expect_error(world.pool().arenas().add(arena, {DevicePtr{}, 512}), ErrorCode::invalid_argument,
               {"no memory"});
  free_user_memory(world, fresh);
}

TEST_F(ExternalArena, memory_is_refused_that_an_arena_has_in_part) {
  const ArenaId other = make_arena(world, kExternal);
  const auto refused = [&](AddressRange given) {
    for (const ArenaId each : {arena, other})
      expect_error(world.pool().arenas().add(each, given), ErrorCode::invalid_argument,
                   {"an arena's already"});
  };
  refused(memory);
  refused({memory.begin + kPage, 512});
  refused({memory.end() - 512, kPage});
  refused({memory.begin - 512, 1024});
  refused({memory.begin - 512, memory.size + 1024});
}

TEST_F(ExternalArena, memory_is_refused_that_is_the_pools_in_part) {
  const DevicePtr page = world.allocate(4 * kPage, a);
  const DevicePtr small = world.allocate(1024, a);
  const DevicePtr in_arena = allocate_in(world, make_arena(world), 1024, a);
  const DevicePtr freed = world.allocate(4 * kPage, a);
  world.deallocate(freed, a);
  for (const DevicePtr begin : {page, page + kPage, small, in_arena, freed, page - 64 * kGiB})
    expect_error(world.pool().arenas().add(arena, {begin, begin < page ? 65 * kGiB : Bytes{1024}}),
                 ErrorCode::invalid_argument, {"this pool's"});
}

TEST_F(ExternalArena, memory_is_refused_that_is_of_the_drivers_own_pool) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld other(options);
  const StreamHandle stream = other.stream();
  const DevicePtr ptr = other.allocate(4096, stream);
  const DevicePtr begin = align_up(ptr, 512);
  expect_error(other.pool().arenas().add(make_arena(other, kExternal), {begin, 512}),
               ErrorCode::invalid_argument, {"this pool's"});
  other.deallocate(ptr, stream);
}

TEST_F(ExternalArena, arenas_of_the_pools_memory_take_none_and_give_none) {
  const ArenaId ordinary = make_arena(world);
  const AddressRange fresh = user_memory(world, kPage);
  const std::string name = "arena " + std::to_string(static_cast<std::uint64_t>(ordinary));
  expect_error(world.pool().arenas().add(ordinary, fresh), ErrorCode::invalid_argument,
               {name, "from the pool"});
  expect_error(world.pool().arenas().take(ordinary), ErrorCode::invalid_argument,
               {name, "from the pool"});
  const ArenaId none{~std::uint64_t{0}};
  expect_error(world.pool().arenas().add(none, fresh), ErrorCode::invalid_argument, {"no arena"});
  expect_error(world.pool().arenas().take(none), ErrorCode::invalid_argument, {"no arena"});
  free_user_memory(world, fresh);
}

TEST_F(ExternalArena, without_splitting_each_allocation_has_a_whole_piece) {
  const ArenaId whole = make_arena(world, {false, false, 0, true});
  const AddressRange two = user_memory(world, 2 * kPage);
  add_memory(world, whole, {two.begin, kPage});
  add_memory(world, whole, {two.begin + kPage, kPage});
  const DevicePtr first = allocate_in(world, whole, kPage, a);
  EXPECT_NE(allocate_in(world, whole, kPage - 5, a), first);
  expect_error(world.pool().allocate({512, 0, a, whole}), ErrorCode::out_of_memory);
  free_user_memory(world, two);
}

}  // namespace
}  // namespace vpmm::test
