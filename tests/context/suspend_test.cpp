// tests/context: memory that is suspended and resumed by tag or arena.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "context/suspend_case.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using context::Holder;
using context::ResumeHow;
using context::SuspendHow;
using context::TagScope;
using context::TagState;
using driver::CuResult;

TEST_F(Suspend, contents_and_addresses_come_back) {
  const DevicePtr large = tagged(5 * kPage + 3000);
  const DevicePtr small = tagged(1000);
  write(large, 5 * kPage + 3000, 3);
  write(small, 1000, 9);
  for (const bool to_driver : {false, true, false}) {
    SuspendHow how;
    how.to_driver = to_driver;
    suspend(kWeights, how);
    EXPECT_EQ(state(), TagState::suspended);
    EXPECT_TRUE(is_suspended(large));
    EXPECT_TRUE(is_suspended(small + 10));
    resume();
    EXPECT_EQ(state(), TagState::live);
    EXPECT_FALSE(is_suspended(large));
    expect_written(large, 5 * kPage + 3000, 3);
    expect_written(small, 1000, 9);
  }
  world.deallocate(large, a);
  world.deallocate(small, a);
}

TEST_F(Suspend, to_the_driver_returns_all_memory_of_the_tag) {
  const DevicePtr other = world.allocate(3 * kPage, a);
  const DevicePtr ptr = tagged(9 * kPage);
  const Bytes mapped = world.statistics().mapped_bytes;
  const Bytes live = world.statistics().live_bytes;
  suspend(kWeights, kToDriver);
  const observe::Statistics asleep = world.statistics();
  EXPECT_LE(asleep.mapped_bytes, mapped - 9 * kPage);
  EXPECT_EQ(asleep.suspended_bytes, 9 * kPage);
  EXPECT_EQ(asleep.host_copy_bytes, 9 * kPage);
  EXPECT_EQ(asleep.live_bytes, live - 9 * kPage);
  EXPECT_EQ(asleep.live_allocations, 1u);
  EXPECT_EQ(world.sim().census().physical_bytes, asleep.mapped_bytes);
  resume();
  const observe::Statistics awake = world.statistics();
  EXPECT_EQ(awake.suspended_bytes, 0u);
  EXPECT_EQ(awake.host_copy_bytes, 0u);
  EXPECT_EQ(awake.live_bytes, live);
  EXPECT_EQ(awake.live_allocations, 2u);
  EXPECT_GE(awake.allocations, asleep.allocations);
  EXPECT_GE(awake.deallocations, asleep.deallocations);
  EXPECT_EQ(awake.allocations - awake.deallocations, awake.live_allocations);
  world.deallocate(ptr, a);
  world.deallocate(other, a);
}

TEST_F(Suspend, counts_chunks_that_move_and_allocations_that_end_asleep) {
  const DevicePtr ptr = tagged(9 * kPage);
  const observe::Statistics before = world.statistics();
  suspend();
  resume();
  const observe::Statistics awake = world.statistics();
  EXPECT_EQ(awake.bytes_moved, before.bytes_moved + 2 * 9 * kPage) << "away and back";
  EXPECT_GT(awake.chunks_moved, before.chunks_moved);
  suspend();
  const std::uint64_t ended = world.statistics().deallocations;
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().deallocations, ended + 1);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST_F(Suspend, in_the_pool_the_next_phase_has_the_memory_without_a_driver_call) {
  const DevicePtr ptr = tagged(8 * kPage);
  suspend();
  const std::uint64_t calls = world.statistics().driver_calls;
  const DevicePtr next = world.allocate(8 * kPage, a);
  EXPECT_EQ(world.statistics().driver_calls, calls);
  EXPECT_NE(next, ptr);
  world.deallocate(next, a);
  world.wait();
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, memory_of_a_tag_shares_no_chunk_with_other_memory) {
  std::vector<DevicePtr> pointers;
  for (int i = 0; i < 12; ++i) {
    const Bytes bytes = kPage / 3 * static_cast<Bytes>(i + 1);
    pointers.push_back(i % 3 == 0 ? world.allocate(bytes, a)
                                  : tagged(bytes, i % 3 == 1 ? kWeights : kCache));
  }
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (i % 3 != 1) write(pointers[i], 2000, static_cast<std::uint8_t>(i));
  suspend(kWeights, kToDriver);
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (i % 3 != 1) expect_written(pointers[i], 2000, static_cast<std::uint8_t>(i));
  resume();
  for (const DevicePtr ptr : pointers) world.deallocate(ptr, a);
}

TEST_F(Suspend, discarded_memory_comes_back_zeroed_if_asked) {
  const DevicePtr ptr = tagged(2 * kPage, kCache);
  write(ptr, 2 * kPage, 1);
  suspend(kCache);
  EXPECT_EQ(state(kCache), TagState::discarded);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  ResumeHow how;
  how.clears = true;
  resume(kCache, how);
  std::vector<std::uint8_t> data(2 * kPage, 1);
  ASSERT_EQ(world.sim().memcpy_device_to_host(data.data(), ptr, data.size()), CuResult::success);
  EXPECT_EQ(data, std::vector<std::uint8_t>(2 * kPage, 0));
  world.deallocate(ptr, a);
}

TEST_F(Suspend, requests_fail_and_frees_drop_copy_and_address) {
  const DevicePtr first = tagged(3 * kPage);
  const DevicePtr second = tagged(5 * kPage);
  write(second, 5 * kPage, 5);
  suspend(kWeights, kToDriver);
  expect_error(request(1000, kWeights), ErrorCode::suspended, {"suspended", "resume"});
  world.deallocate(first, a);
  EXPECT_EQ(world.statistics().suspended_bytes, 5 * kPage);
  expect_error(suspension().is_suspended(first), ErrorCode::invalid_pointer);
  resume();
  expect_written(second, 5 * kPage, 5);
  world.deallocate(second, a);
  suspend();
  resume();
}

TEST_F(Suspend, all_freed_while_suspended_leaves_nothing) {
  const DevicePtr first = tagged(3 * kPage);
  const DevicePtr second = tagged(300);
  suspend(kWeights, kToDriver);
  world.deallocate(first, a);
  world.deallocate(second, a);
  EXPECT_EQ(world.statistics().suspended_bytes, 0u);
  resume();
  EXPECT_EQ(state(), TagState::live);
  world.deallocate(tagged(1000), a);
}

TEST_F(Suspend, a_shortage_is_reported_and_changes_nothing) {
  const DevicePtr ptr = tagged(6 * kPage);
  const DevicePtr small = tagged(1000);
  write(ptr, 6 * kPage, 4);
  suspend(kWeights, kToDriver);
  world.pool().limits().set_capacity(8 * kPage);
  const DevicePtr other = world.allocate(4 * kPage, a);
  const observe::Statistics before = world.statistics();
  expect_error(suspension().resume(kWeights, {}), ErrorCode::out_of_memory,
               {"out of device memory", "14 MiB", "tag 7"});
  EXPECT_EQ(world.pool().reports().validate(), "");
  const observe::Statistics after = world.statistics();
  EXPECT_EQ(after.suspended_bytes, before.suspended_bytes);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.live_allocations, before.live_allocations);
  EXPECT_EQ(state(), TagState::suspended);
  world.deallocate(other, a);
  resume();
  expect_written(ptr, 6 * kPage, 4);
  world.deallocate(ptr, a);
  world.deallocate(small, a);
}

TEST_F(Suspend, an_out_of_memory_callback_may_help_a_resume) {
  const DevicePtr ptr = tagged(6 * kPage);
  suspend(kWeights, kToDriver);
  world.pool().limits().set_capacity(8 * kPage);
  DevicePtr other = world.allocate(4 * kPage, a);
  world.pool().limits().out_of_memory_callbacks().add([&](const context::OutOfMemory&) {
    if (is_null(other)) return false;
    world.deallocate(std::exchange(other, DevicePtr{}), a);
    return true;
  });
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, waits_for_the_work_that_uses_the_memory) {
  const DevicePtr ptr = tagged(2 * kPage);
  const StreamHandle b = world.stream();
  ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
  world.use(ptr, 2 * kPage, b, kLongNs);  // a stream that the pool does not know
  suspend(kWeights, kToDriver);
  EXPECT_EQ(world.sim().stream_query(b), CuResult::success);
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, behind_a_stream_it_does_not_wait_for_others) {
  const DevicePtr ptr = tagged(2 * kPage);
  const DevicePtr other = world.allocate(2 * kPage, a);
  const StreamHandle b = world.stream();
  ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
  world.use(other, 2 * kPage, b, kLongNs);
  world.use(ptr, 2 * kPage, a, 1000);
  SuspendHow how;
  how.after = a;
  suspend(kWeights, how);
  EXPECT_EQ(world.sim().stream_query(b), CuResult::not_ready) << "still running";
  resume();
  ASSERT_TRUE(world.pool().record_use(other, b).ok());
  world.deallocate(other, a);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, behind_a_stream_it_waits_for_what_was_freed_elsewhere) {
  const DevicePtr ptr = tagged(2 * kPage);
  const DevicePtr freed = tagged(2 * kPage);
  const StreamHandle b = world.stream();
  ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
  world.use(freed, 2 * kPage, b, kLongNs);
  ASSERT_TRUE(world.pool().record_use(freed, b).ok());
  world.deallocate(freed, a);
  SuspendHow how;
  how.after = a;
  suspend(kWeights, how);
  EXPECT_EQ(world.sim().stream_query(b), CuResult::success);
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, is_refused_during_a_capture_and_while_others_hold_memory) {
  const DevicePtr ptr = tagged(2 * kPage);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::capture_active);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  const auto shared = world.pool().sharing().share({ptr, 1000});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::not_shared,
               {hex(ptr), "openings in other processes: 0", "handles for them: 1"});
  EXPECT_EQ(state(), TagState::live);
  world.pool().sharing().end_lease(shared.value().share, Holder::handle);
  suspend();
  expect_error(world.pool().sharing().share({ptr, 1000}), ErrorCode::suspended, {"suspended"});
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  expect_error(suspension().resume(kWeights, {}), ErrorCode::capture_active);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, entered_tags_nest_and_the_innermost_serves) {
  const auto tag_of = [&](DevicePtr ptr) {
    const report::Layout layout = world.pool().reports().layout();
    for (const report::LayoutBlock& block : layout.blocks)
      if (block.range.begin == ptr) return block.tag;
    return 0U;
  };
  std::vector<DevicePtr> pointers;
  const auto next = [&] {
    pointers.push_back(world.allocate(1000, a));
    return tag_of(pointers.back());
  };
  EXPECT_EQ(next(), 0u);
  const std::uint64_t entries = context::TagScopes::entries_so_far();
  ASSERT_TRUE(suspension().enter(kWeights, TagScope::process).ok());
  EXPECT_GT(context::TagScopes::entries_so_far(), entries);
  EXPECT_EQ(next(), kWeights);
  ASSERT_TRUE(suspension().enter(kCache, TagScope::thread).ok());
  EXPECT_EQ(next(), kCache);
  std::thread([&] { EXPECT_EQ(next(), kWeights); }).join();
  const ArenaId arena = make_arena(world);
  pointers.push_back(allocate_in(world, arena, 1000, a));
  ASSERT_TRUE(suspension().enter(kWeights, TagScope::process).ok());
  EXPECT_EQ(next(), kWeights);
  ASSERT_TRUE(suspension().leave(kWeights, TagScope::process).ok());
  EXPECT_EQ(next(), kCache);
  ASSERT_TRUE(suspension().leave(kCache, TagScope::thread).ok());
  ASSERT_TRUE(suspension().leave(kWeights, TagScope::process).ok());
  expect_error(suspension().leave(kWeights, TagScope::process), ErrorCode::invalid_argument);
  EXPECT_EQ(next(), 0u);
  // The arena was made inside kCache.
  suspend(kCache);
  EXPECT_TRUE(is_suspended(pointers[4]));
  resume(kCache);
  suspend(0);
  EXPECT_FALSE(is_suspended(pointers.front()));
  EXPECT_TRUE(is_suspended(pointers[1]));
  resume(0);
  for (const DevicePtr ptr : pointers) world.deallocate(ptr, a);
  ASSERT_TRUE(world.pool().arenas().release(arena).ok());
}

TEST_F(Suspend, an_arena_is_suspended_by_itself_and_external_ones_are_not) {
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  write(ptr, 3 * kPage, 8);
  ASSERT_TRUE(suspension().suspend(arena, kToDriver).ok());
  EXPECT_TRUE(is_suspended(ptr));
  expect_error(world.pool().allocate({1000, 0, a, arena}), ErrorCode::suspended);
  ASSERT_TRUE(suspension().resume(arena, {}).ok());
  expect_written(ptr, 3 * kPage, 8);
  ASSERT_TRUE(suspension().suspend(arena, {}).ok());
  ASSERT_TRUE(world.pool().arenas().release(arena).ok());
  expect_error(suspension().resume(arena, {}), ErrorCode::invalid_argument);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().suspended_bytes, 0u);
  const ArenaId external = make_arena(world, kExternal);
  expect_error(suspension().suspend(external, {}), ErrorCode::unsupported);
  ASSERT_TRUE(world.pool().arenas().release(external).ok());
}

TEST_F(Suspend, a_captured_graph_runs_again_after_a_resume) {
  const ArenaId arena = make_arena(world);
  begin_capture(world, a, driver::CaptureMode::relaxed);
  const DevicePtr ptr = allocate_in(world, arena, 2 * kPage, a);
  world.use(ptr, 2 * kPage, a);
  world.deallocate(ptr, a);
  const driver::GraphHandle graph = end_capture(world, a);
  const driver::GraphExecHandle exec = launch(world, graph, a);
  expect_error(suspension().suspend(arena, {}), ErrorCode::capture_active);
  world.deallocate(world.allocate(1000, a), a);  // the pool learns that the capture is over
  for (int i = 0; i < 3; ++i) {
    const auto suspended = suspension().suspend(arena, kToDriver);
    ASSERT_TRUE(suspended.ok()) << message_of(suspended);
    ASSERT_TRUE(suspension().resume(arena, {}).ok());
    EXPECT_EQ(world.pool().reports().validate(), "");
    ASSERT_EQ(world.sim().graph_launch(exec, a), CuResult::success);
  }
  destroy(world, graph, exec);
  ASSERT_TRUE(world.pool().arenas().release(arena).ok());
}

TEST_F(Suspend, one_chunk_stays_one_chunk) {
  const auto made = world.pool().allocate({3 * kPage, 0, a, {}, kWeights, 0, true});
  ASSERT_TRUE(made.ok()) << message_of(made);
  suspend(kWeights, kToDriver);
  resume();
  AddressRange chunk;
  ASSERT_EQ(world.sim().mem_get_address_range(made.value(), chunk), CuResult::success);
  EXPECT_EQ(chunk, (AddressRange{made.value(), 3 * kPage}));
  world.deallocate(made.value(), a);
}

TEST_F(Suspend, the_largest_memory_comes_back_first_so_that_the_rest_fits) {
  const DevicePtr small = tagged(2 * kPage);
  const auto large = world.pool().allocate({8 * kPage, 0, a, {}, kWeights, 0, true});
  ASSERT_TRUE(large.ok()) << message_of(large);
  suspend(kWeights, kToDriver);
  const auto idle = world.pool().allocate({8 * kPage, 0, a, {}, 0, 0, true});
  ASSERT_TRUE(idle.ok()) << message_of(idle);
  world.deallocate(idle.value(), a);
  world.wait();
  const std::uint64_t created = world.calls().count(driver::Call::mem_create);
  world.pool().limits().set_capacity(10 * kPage);
  resume();
  EXPECT_EQ(world.calls().count(driver::Call::mem_create) - created, 1u) << "of the small one";
  EXPECT_EQ(world.statistics().mapped_bytes, 10 * kPage);
  world.deallocate(small, a);
  world.deallocate(large.value(), a);
}

TEST_F(Suspend, the_first_memory_of_a_kind_waits_for_the_tag_to_be_resumed) {
  const DevicePtr chunk = world.pool().allocate({kPage, 0, a, {}, kWeights, 0, true}).value();
  suspend();
  expect_error(request(1000, kWeights), ErrorCode::suspended);
  resume();
  const DevicePtr first = tagged(1000);
  const DevicePtr second = tagged(1000);
  EXPECT_LT(second - first, kPage) << "not in one chunk each";
  for (const DevicePtr ptr : {first, second, chunk}) world.deallocate(ptr, a);
}

TEST_F(Suspend, a_hundred_cycles_leave_mappings_and_memory_as_ten_do) {
  std::vector<DevicePtr> pointers;
  for (std::uint32_t tag = 20; tag < 28; ++tag) {
    make(tag, tag % 2 == 0);
    for (const Bytes bytes : {Bytes{1000}, Bytes{70'001}, 3 * kMiB + 1, (tag - 18) * kMiB})
      pointers.push_back(tagged(bytes, tag));
  }
  observe::Statistics early;
  for (int cycle = 0; cycle < 100; ++cycle) {
    SuspendHow how;
    how.to_driver = cycle % 2 == 0;
    if (cycle % 3 == 0) {
      suspend(0, how);
      world.deallocate(world.allocate(20 * kMiB, a), a);
      resume(0);
    } else {
      for (std::uint32_t tag = 20; tag < 28; ++tag) suspend(tag, how);
      for (std::uint32_t tag = 28; tag-- > 20;) resume(tag);
    }
    if (cycle == 10) early = world.statistics();
  }
  const observe::Statistics late = world.statistics();
  EXPECT_LE(late.mappings, early.mappings + early.mappings / 100);
  EXPECT_LE(late.mapped_bytes, early.mapped_bytes + early.mapped_bytes / 100);
  EXPECT_EQ(late.live_bytes, early.live_bytes);
  for (const DevicePtr ptr : pointers) world.deallocate(ptr, a);
}

TEST_F(Suspend, a_loader_leaves_little_beside_the_weights) {
  std::vector<DevicePtr> kept;
  Bytes live = 0;
  const auto of_tag = [&](Bytes bytes) { return tagged(bytes, kCache); };
  for (Bytes layer = 0; layer < 6; ++layer)
    for (const Bytes bytes : {Bytes{33'500'000}, Bytes{90'100'000}, Bytes{45'000'000}}) {
      const Bytes size = bytes + layer % 3 * 16'384;
      const DevicePtr parts[] = {of_tag(size), of_tag(size)};  // twice as wide
      const DevicePtr halves[] = {of_tag(size / 2), of_tag(size / 2)};
      const DevicePtr joined = of_tag(size);
      kept.push_back(of_tag(size));
      live += size;
      for (const DevicePtr ptr : {parts[0], parts[1], halves[0], halves[1], joined})
        world.deallocate(ptr, a);
    }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  const Bytes mapped = world.statistics().mapped_bytes;
  EXPECT_LE(mapped, live + live * 3 / 100) << mapped << " of " << live;
  for (const DevicePtr ptr : kept) world.deallocate(ptr, a);
}

}  // namespace
}  // namespace vpmm::test
