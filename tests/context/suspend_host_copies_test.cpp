// SPDX-License-Identifier: Apache-2.0
// tests/context: host memory of copies: how much there is, of which pages, pinned or not, and what
// frees give back of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <vector>

#include "context/suspend_case.hpp"
#include "context/suspend_races_case.hpp"
#include "host_copy/host_memory.hpp"

namespace vpmm::test {
namespace {

using context::ResumeHow;
using context::SuspendHow;
using context::TagState;
using driver::Call;
using driver::CuResult;

std::uint64_t pinned_pieces(PoolWorld& world) {
  return world.calls().count(Call::mem_host_register) -
         world.calls().count(Call::mem_host_unregister);
}

TEST_F(Suspend, copies_that_are_not_kept_go_through_the_pinned_ring) {
  const DevicePtr ptr = tagged(3 * kPage);
  suspend();
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 1u) << "of the ring";
  resume();
  suspend();
  resume();
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 1u);
  // A copy that a context before kept pinned counts as not pinned.
  make(kWeights, true, true);
  suspend();
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 2u);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
  resume();
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 3u) << "of the ring, in the new context";
  ASSERT_TRUE(world.pool().deallocate(ptr, std::nullopt).ok());
}

TEST_F(Suspend, neighbours_are_copied_at_once_and_what_ended_asleep_is_not_copied_back) {
  make(kWeights, true, true);
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(tagged(64 * kKiB));
    write(blocks.back(), 64 * kKiB, static_cast<std::uint8_t>(i));
    if (i > 0) {
      ASSERT_EQ(blocks[static_cast<std::size_t>(i)], blocks[0] + static_cast<Bytes>(i) * 64 * kKiB);
    }
  }
  const auto copies = [&](Call call) { return world.calls().count(call); };
  suspend();
  EXPECT_EQ(copies(Call::memcpy_device_to_host_async), 1u);
  for (const std::size_t ended : {0U, 1U, 3U}) world.deallocate(blocks[ended], a);
  resume();
  EXPECT_EQ(copies(Call::memcpy_host_to_device_async), 2u);
  for (const std::size_t stayed : {2U, 4U}) {
    expect_written(blocks[stayed], 64 * kKiB, static_cast<std::uint8_t>(stayed));
    world.deallocate(blocks[stayed], a);
  }
}

// A kept copy has the contents of its last suspend, and of no other.
TEST_F(Suspend, a_kept_copy_that_is_made_again_has_each_block_once) {
  make(kWeights, true, true);
  const DevicePtr first = tagged(64 * kKiB);
  const DevicePtr second = tagged(128 * kKiB);
  const DevicePtr third = tagged(64 * kKiB);
  write(third, 64 * kKiB, 3);
  suspend();
  const std::uint64_t copies = world.calls().count(Call::memcpy_device_to_host_async);
  resume();
  for (int i = 0; i < 2; ++i) {
    suspend();
    EXPECT_EQ(world.calls().count(Call::memcpy_device_to_host_async),
              copies * static_cast<std::uint64_t>(i + 2));
    resume();
  }
  world.deallocate(second, a);
  write(first, 64 * kKiB, 1);
  suspend();
  world.deallocate(third, a);
  expect_error(suspension().host_copy({third, 1}), ErrorCode::invalid_pointer);
  const auto host = suspension().host_copy({first, 64 * kKiB});
  ASSERT_TRUE(host.ok()) << message_of(host);
  EXPECT_EQ(host.value()[5], std::byte{6});
  const std::uint64_t back = world.calls().count(Call::memcpy_host_to_device_async);
  resume();
  EXPECT_EQ(world.calls().count(Call::memcpy_host_to_device_async), back + 1)
      << "what ended is not copied";
  expect_written(first, 64 * kKiB, 1);
  world.deallocate(first, a);
}

TEST_F(Suspend, memory_that_is_discarded_is_left_as_it_comes_unless_it_is_to_be_cleared) {
  const DevicePtr cache = tagged(kPage, kCache);
  const DevicePtr weights = tagged(2 * kPage);
  write(weights, 2 * kPage, 4);
  suspend(0);
  resume(0);
  EXPECT_EQ(world.calls().count(Call::memset_d8_async), 0u);
  expect_written(weights, 2 * kPage, 4);
  // A copy that is dropped is none.
  suspend();
  ResumeHow how;
  how.clears = true;
  how.copies_back = false;
  resume(kWeights, how);
  std::vector<std::uint8_t> data(2 * kPage, 1);
  ASSERT_EQ(world.sim().memcpy_device_to_host(data.data(), weights, data.size()),
            CuResult::success);
  EXPECT_EQ(data, std::vector<std::uint8_t>(2 * kPage, 0));
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  world.deallocate(cache, a);
  world.deallocate(weights, a);
}

TEST_F(Suspend, a_copy_that_is_used_again_is_whole_again) {
  const DevicePtr first = tagged(3 * kPage);
  const DevicePtr second = tagged(64 * kPage);
  suspend();
  make(kWeights, true, true);  // too late to pin the copy
  world.deallocate(second, a);
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 3 * kPage);
  resume();
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 3 * kPage);
  const DevicePtr third = tagged(32 * kPage);
  write(third, 32 * kPage, 9);
  suspend();
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 67 * kPage) << "pinned, and so all of it";
  resume();
  expect_written(third, 32 * kPage, 9);
  world.deallocate(first, a);
  world.deallocate(third, a);
}

// The copy may still write there, or read.
TEST_F(SuspendRaces, what_ends_while_it_is_copied_keeps_its_part_of_the_copy) {
  for (const Call step : {Call::memcpy_device_to_host_async, Call::memcpy_host_to_device_async}) {
    SCOPED_TRACE(driver::to_string(step));
    ASSERT_TRUE(suspension().make_suspendable(kKept, {true, false}).ok());
    const DevicePtr stays = written(3 * kPage, 1);
    const DevicePtr ends = tagged(64 * kPage);
    at_next(step, [&] { free(ends); });
    suspend();
    EXPECT_EQ(suspension().info(kKept).host_bytes, 67 * kPage);
    ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());  // too late to pin it
    resume();
    world.hooks.on.clear();
    EXPECT_FALSE(world.pool->query(ends).ok());
    EXPECT_EQ(suspension().info(kKept).host_bytes, 67 * kPage);
    expect_written(stays, 3 * kPage, 1);
    // Later frees do give theirs back.
    free(stays);
    EXPECT_EQ(suspension().info(kKept).host_bytes, 64 * kPage);
    ASSERT_TRUE(suspension().make_suspendable(kKept, {true, false}).ok());
    suspend();
    resume();
  }
}

Bytes resident() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, pages = 0;
  EXPECT_TRUE(file >> all >> pages);
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(Suspend, host_memory_that_is_prepared_is_taken_from_the_system) {
  const DevicePtr ptr = tagged(128 * kMiB);
  const std::uint64_t before = resident();
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  EXPECT_GT(resident(), before + 100 * kMiB);
  world.deallocate(ptr, a);
}

TEST_F(SuspendRaces, a_copy_that_is_too_small_ends_before_its_successor_is_filled) {
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  const DevicePtr first = tagged(128 * kMiB);
  suspend();
  resume();
  const DevicePtr second = tagged(kPage);
  const Bytes before = resident();
  Bytes now = 0;
  at_next(Call::memcpy_device_to_host_async, [&] { now = resident(); });
  suspend();
  EXPECT_GT(now, 0u);
  EXPECT_LT(now, before + 64 * kMiB) << "both are held";
  resume();
  free(first);
  free(second);
}

// All but 1/32 of what is available may be taken, by what no memory is there for yet.
TEST_F(Suspend, copies_leave_a_part_of_the_hosts_memory) {
  make(kWeights, true, true);
  const DevicePtr most = tagged(30 * kPage);
  host_copy::set_available_host_bytes(32 * kPage);
  EXPECT_TRUE(suspension().prepare(kWeights).ok());
  const DevicePtr rest = tagged(kPage);
  const DevicePtr other = tagged(256, kCache);
  suspend();  // 31 of 32
  resume();
  host_copy::set_available_host_bytes(0);
  EXPECT_TRUE(suspension().prepare(kWeights).ok()) << "it is there";
  suspend();
  resume();
  const DevicePtr more = tagged(256);
  host_copy::set_available_host_bytes(32 * kPage);
  const std::vector<std::string> words{"the host has 64 MiB of free memory",
                                       "and the copies take 62.0 MiB"};
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::host_out_of_memory, words);
  expect_error(suspension().prepare(kWeights), ErrorCode::host_out_of_memory, words);
  // Of several arenas together.
  make(kCache, true);
  world.deallocate(more, a);
  suspend();
  resume();
  host_copy::set_available_host_bytes(kKiB);
  const DevicePtr third = tagged(768, kCache);
  expect_error(suspension().suspend(0, {}), ErrorCode::host_out_of_memory, {"take 1.50 KiB"});
  host_copy::set_available_host_bytes(std::nullopt);
  for (const DevicePtr ptr : {most, rest}) world.deallocate(ptr, a);
  for (const DevicePtr ptr : {other, third}) world.deallocate(ptr, a);
}

TEST_F(Suspend, pinned_memory_ends_with_its_copy) {
  make(kWeights, true, true);
  const DevicePtr first = tagged(2 * kPage);
  suspend();
  resume();
  EXPECT_EQ(pinned_pieces(world), 1u) << "the copy";
  const DevicePtr second = tagged(4 * kPage);
  suspend();
  resume();
  EXPECT_EQ(pinned_pieces(world), 1u) << "a larger one instead";
  const DevicePtr third = tagged(4 * kPage);
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  EXPECT_EQ(pinned_pieces(world), 2u) << "a larger one instead, and the ring";
  // Of an arena of its own.
  const ArenaId arena = make_arena(world);
  const DevicePtr inside = allocate_in(world, arena, kPage, a);
  SuspendHow keeping;
  keeping.keeps_host_copy = true;
  ASSERT_TRUE(suspension().suspend(arena, keeping).ok());
  ASSERT_TRUE(suspension().resume(arena, {}).ok());
  EXPECT_EQ(pinned_pieces(world), 3u);
  EXPECT_EQ(world.statistics().host_copy_bytes, 11 * kPage);
  world.deallocate(inside, a);
  release(world, arena);
  EXPECT_EQ(pinned_pieces(world), 2u);
  EXPECT_EQ(world.statistics().host_copy_bytes, 10 * kPage);
  make(kWeights, true, false);
  suspend();
  resume();
  EXPECT_EQ(pinned_pieces(world), 1u) << "the ring";
  make(kWeights, true, true);
  suspend();
  EXPECT_EQ(pinned_pieces(world), 2u);
  for (const DevicePtr ptr : {first, second, third}) world.deallocate(ptr, a);
  world.end();
  EXPECT_EQ(pinned_pieces(world), 0u);
}

TEST_F(Suspend, what_was_pinned_before_a_failure_is_pinned_no_more) {
  make(kWeights, true, true);
  const DevicePtr shared = tagged(2 * kPage);
  const auto one = world.pool().allocate({kPage, 0, a, {}, kWeights, 0, true});
  ASSERT_TRUE(one.ok());
  const auto fail_second = [&] {
    world.faults().set_plan({{Call::mem_host_register}, 2, CuResult::invalid_value});
  };
  fail_second();
  EXPECT_FALSE(suspension().suspend(kWeights, {}).ok());
  EXPECT_EQ(pinned_pieces(world), 0u);
  fail_second();
  EXPECT_FALSE(suspension().prepare(kWeights).ok());
  EXPECT_EQ(pinned_pieces(world), 0u);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  world.faults().clear_plan();
  world.deallocate(shared, a);
  world.deallocate(one.value(), a);
}

TEST_F(Suspend, that_breaks_the_context_while_it_prepares_makes_no_driver_call_any_more) {
  make(kWeights, true, true);
  tagged(kPage);
  world.break_context();
  expect_error(suspension().prepare(kWeights), ErrorCode::poisoned);
  const std::uint64_t calls = world.calls().total_count();
  expect_error(world.pool().allocate({kPage, 0, a}), ErrorCode::poisoned);
  EXPECT_EQ(world.calls().total_count(), calls);
}

TEST_F(SuspendRaces, whose_pinning_breaks_the_context_makes_no_driver_call_any_more) {
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  tagged(kPage);
  world.hooks.on[Call::mem_host_register] = [] { return CuResult::illegal_address; };
  expect_error(suspension().prepare(kKept), ErrorCode::poisoned, {"mem_host_register"});
  world.hooks.on.clear();
  expect_error(request(kPage, kKept), ErrorCode::poisoned, {"mem_host_register"});
}

// The arena ends with what others held longest, and no free tells of that.
TEST_F(Suspend, copies_of_arenas_that_are_gone_are_dropped_by_the_next_call) {
  const DevicePtr ptr = tagged(2 * kPage);
  for (int call = 0; call < 3; ++call) {
    SCOPED_TRACE(call);
    const ArenaId arena = make_arena(world);
    const DevicePtr inside = allocate_in(world, arena, 3 * kPage, a);
    SuspendHow keeping;
    keeping.keeps_host_copy = true;
    ASSERT_TRUE(suspension().suspend(arena, keeping).ok());
    ASSERT_TRUE(suspension().resume(arena, {}).ok());
    const auto shared = world.pool().sharing().share({inside, 1});
    ASSERT_TRUE(shared.ok());
    world.deallocate(inside, a);
    release(world, arena);
    world.pool().sharing().end_lease(shared.value().share, context::Holder::handle);
    EXPECT_EQ(world.statistics().host_copy_bytes, (call == 1 ? 5 : 3) * kPage);
    if (call == 0) {
      suspend();
    } else if (call == 1) {
      resume();
    } else {
      EXPECT_TRUE(suspension().prepare(kCache).ok());
    }
    EXPECT_EQ(world.statistics().host_copy_bytes, call == 0 ? 2 * kPage : 0u);
  }
  world.deallocate(ptr, a);
}

// An arena of a tag that is not suspendable is copied, and its memory is not kept.
TEST_F(Suspend, arenas_without_a_suspendable_tag_are_prepared_too) {
  arena::ArenaOptions options;
  options.tag = 70;
  const ArenaId arena = make_arena(world, options);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  ASSERT_TRUE(suspension().prepare(70).ok());
  EXPECT_EQ(suspension().info(70).host_bytes, 3 * kPage);
  EXPECT_EQ(pinned_pieces(world), 1u) << "the ring";
  suspend(70);
  EXPECT_EQ(state(70), TagState::suspended);
  resume(70);
  EXPECT_EQ(suspension().info(70).host_bytes, 0u);
  world.deallocate(ptr, a);
  release(world, arena);
}

}  // namespace
}  // namespace vpmm::test
