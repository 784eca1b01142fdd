// SPDX-License-Identifier: Apache-2.0
// tests/context: host copies of memory that is suspended, and host memory for them.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "context/suspend_case.hpp"
#include "host_copy/host_memory.hpp"

namespace vpmm::test {
namespace {

using context::ResumeHow;
using context::SuspendHow;
using context::TagState;
using driver::Call;
using driver::CuResult;

TEST_F(Suspend, a_kept_host_copy_is_used_again_and_stays_pinned) {
  make(kWeights, true, true);
  const DevicePtr ptr = tagged(3 * kPage);
  for (std::uint8_t i = 0; i < 3; ++i) {
    write(ptr, 3 * kPage, i);
    suspend();
    resume();
    expect_written(ptr, 3 * kPage, i);
    EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  }
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 1u) << "of the copy; no ring";
  make(kWeights, true, false);
  suspend();
  resume();
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, a_kept_host_copy_can_be_read_after_a_resume) {
  make(kWeights, true, true);
  const DevicePtr first = tagged(3 * kPage);
  const DevicePtr second = tagged(512);
  write(first, 3 * kPage, 1);
  write(second, 512, 9);
  suspend();
  resume();
  write(first, 100, 77);
  const auto host = suspension().host_copy({first, 100});
  ASSERT_TRUE(host.ok()) << message_of(host);
  EXPECT_EQ(host.value()[99], std::byte{1 + 99}) << "as it was suspended";
  world.deallocate(second, a);
  const DevicePtr third = tagged(512);
  EXPECT_EQ(third, second);
  expect_error(suspension().host_copy({third, 1}), ErrorCode::invalid_pointer);
  suspend();
  ResumeHow how;
  how.copies_back = false;
  resume(kWeights, how);
  expect_error(suspension().host_copy({first, 1}), ErrorCode::invalid_pointer);
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage + 512);
  make(kWeights, true, false);
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage + 512) << "until a resume";
  suspend();
  resume();
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  suspend();
  make(kWeights, true, true);
  resume();
  EXPECT_TRUE(suspension().host_copy({first, 1}).ok()) << "kept since before the resume";
  world.deallocate(first, a);
  world.deallocate(third, a);
}

TEST_F(Suspend, host_memory_that_was_prepared_and_pinned_is_not_made_again) {
  make(kWeights, true, true);
  tagged(3 * kPage);
  std::uint64_t pinned = 0;
  for (const bool is_first : {true, false}) {
    ASSERT_TRUE(suspension().prepare(kWeights).ok());
    if (is_first) pinned = world.calls().count(driver::Call::mem_host_register);
    EXPECT_EQ(world.calls().count(driver::Call::mem_host_register), pinned);
    EXPECT_EQ(suspension().info(kWeights).host_bytes, 3 * kPage);
  }
  EXPECT_GT(pinned, 0u);
  tagged(2 * kPage);
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  EXPECT_GT(world.calls().count(driver::Call::mem_host_register), pinned) << "more is live";
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 5 * kPage);
}

TEST_F(Suspend, tags_say_what_their_memory_is) {
  const auto amounts = [&](std::uint32_t tag) { return suspension().info(tag).amounts; };
  EXPECT_EQ(amounts(kWeights).held, 0u);
  tagged(3 * kPage);
  tagged(kPage, kCache);
  EXPECT_GE(amounts(kWeights).held, 3 * kPage);
  EXPECT_GE(amounts(kCache).held, kPage);
  EXPECT_LT(amounts(kCache).held, 3 * kPage);
  EXPECT_EQ(amounts(kWeights).suspended, 0u);
  EXPECT_EQ(amounts(kWeights).live, 3 * kPage);
  const Bytes held = amounts(kWeights).held;
  suspend();
  EXPECT_EQ(amounts(kWeights).held, held);
  EXPECT_EQ(amounts(kWeights).suspended, held);
  EXPECT_EQ(amounts(kCache).suspended, 0u);
  resume();
  EXPECT_EQ(amounts(kWeights).suspended, 0u);
  EXPECT_GE(amounts(kWeights).held, 3 * kPage);
}

TEST_F(Suspend, host_memory_that_was_prepared_takes_the_next_copy) {
  EXPECT_TRUE(suspension().prepare(kWeights).ok()) << "nothing is live";
  const DevicePtr ptr = tagged(3 * kPage);
  const DevicePtr other = tagged(kPage, kCache);
  write(ptr, 3 * kPage, 4);
  for (int i = 0; i < 2; ++i) {
    const auto done = suspension().prepare(0);
    ASSERT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage) << "of the tag with backup";
  }
  expect_error(suspension().host_copy({ptr, 1}), ErrorCode::invalid_pointer);
  EXPECT_EQ(world.pool().suspension().info(kWeights).state, TagState::live);
  host_copy::set_available_host_bytes(0);
  suspend();
  host_copy::set_available_host_bytes(std::nullopt);
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  EXPECT_TRUE(suspension().prepare(kWeights).ok()) << "it is suspended";
  resume();
  expect_written(ptr, 3 * kPage, 4);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  // More is live than was prepared.
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  const DevicePtr more = tagged(5 * kPage);
  write(more, 5 * kPage, 9);
  suspend();
  resume();
  expect_written(ptr, 3 * kPage, 4);
  expect_written(more, 5 * kPage, 9);
  host_copy::set_available_host_bytes(kPage);
  expect_error(suspension().prepare(kWeights), ErrorCode::host_out_of_memory, {"copies take"});
  host_copy::set_available_host_bytes(std::nullopt);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  expect_error(suspension().prepare(77), ErrorCode::invalid_argument);
  world.deallocate(ptr, a);
  world.deallocate(more, a);
  world.deallocate(other, a);
}

TEST_F(Suspend, host_memory_that_cannot_be_pinned_is_not_prepared) {
  make(kWeights, true, true);
  const DevicePtr ptr = tagged(3 * kPage);
  world.faults().set_plan({{Call::mem_host_register}, 1, driver::CuResult::invalid_value});
  expect_error(suspension().prepare(kWeights), ErrorCode::driver_failed, {"mem_host_register"});
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 0u);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  EXPECT_TRUE(suspension().prepare(kWeights).ok());
  world.deallocate(ptr, a);
}

// More memory would not help.
TEST_F(Suspend, a_resume_that_the_driver_refuses_asks_nobody_for_memory) {
  const DevicePtr ptr = tagged(3 * kPage);
  write(ptr, 3 * kPage, 4);
  suspend(kWeights, kToDriver);
  int asked = 0;
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    ++asked;
    return false;
  });
  world.faults().set_plan({{Call::mem_map}, 1, driver::CuResult::invalid_value});
  expect_error(suspension().resume(kWeights, {}), ErrorCode::driver_failed, {"mem_map"});
  EXPECT_EQ(asked, 0);
  resume();
  expect_written(ptr, 3 * kPage, 4);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, kept_host_memory_is_pinned_when_it_is_prepared) {
  make(kWeights, true, true);
  const DevicePtr ptr = tagged(3 * kPage);
  write(ptr, 3 * kPage, 4);
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  const std::uint64_t pinned = world.calls().count(Call::mem_host_register);
  EXPECT_EQ(pinned, 2u) << "the copy and the ring";
  for (int i = 0; i < 2; ++i) {
    suspend();
    resume();
    expect_written(ptr, 3 * kPage, 4);
  }
  EXPECT_EQ(world.calls().count(Call::mem_host_register), pinned);
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  // A larger one replaces it, and the old contents are gone.
  const DevicePtr more = tagged(kPage);
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  expect_error(suspension().host_copy({ptr, 1}), ErrorCode::invalid_pointer);
  EXPECT_EQ(world.statistics().host_copy_bytes, 4 * kPage);
  world.deallocate(ptr, a);
  world.deallocate(more, a);
}

TEST_F(Suspend, a_suspend_that_discards_drops_an_earlier_copy) {
  const DevicePtr ptr = tagged(3 * kPage);
  SuspendHow keeping;
  keeping.keeps_host_copy = true;
  suspend(kWeights, keeping);
  resume();
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  make(kWeights, true);
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage) << "kept by the call, not by the tag";
  SuspendHow discarding;
  discarding.has_backup = false;
  suspend(kWeights, discarding);
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  EXPECT_EQ(state(), TagState::discarded);
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, an_arena_without_a_tag_that_is_discarded_keeps_no_copy) {
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 3 * kPage, a);
  SuspendHow keeping, discarding;
  keeping.keeps_host_copy = true;
  discarding.has_backup = false;
  for (const auto& [how, bytes] :
       {std::pair(keeping, 3 * kPage), std::pair(discarding, Bytes{0})}) {
    ASSERT_TRUE(suspension().suspend(arena, how).ok());
    EXPECT_EQ(world.statistics().host_copy_bytes, bytes);
    ASSERT_TRUE(suspension().resume(arena, {}).ok());
    EXPECT_EQ(world.statistics().host_copy_bytes, bytes);
  }
  world.deallocate(ptr, a);
}

TEST_F(Suspend, without_host_memory_nothing_has_changed) {
  const DevicePtr ptr = tagged(2 * kPage);
  write(ptr, 2 * kPage, 6);
  host_copy::set_available_host_bytes(2 * kPage);
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::host_out_of_memory,
               {"the host has 4 MiB", "4 MiB"});
  host_copy::set_available_host_bytes(std::nullopt);
  EXPECT_EQ(state(), TagState::live);
  EXPECT_EQ(world.pool().reports().validate(), "");
  expect_written(ptr, 2 * kPage, 6);
  suspend();
  resume();
  expect_written(ptr, 2 * kPage, 6);
  world.deallocate(ptr, a);
}

// Nothing of the tag has been looked at, so no memory that others give back would help.
TEST_F(Suspend, that_cannot_open_the_context_again_asks_nobody_for_memory) {
  tagged(2 * kPage);
  suspend();
  int asked = 0;
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    ++asked;
    return false;
  });
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
  world.faults().set_plan({{Call::device_primary_ctx_retain}, 1, CuResult::out_of_memory});
  expect_error(suspension().resume(kWeights, {}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(state(), TagState::suspended);
  world.faults().clear_plan();
}

TEST_F(Suspend, the_host_copy_can_be_read_and_written) {
  const DevicePtr ptr = tagged(3000);
  write(ptr, 3000, 2);
  expect_error(suspension().host_copy({ptr, 100}), ErrorCode::invalid_pointer);
  suspend();
  const auto host = suspension().host_copy({ptr + 500, 1000});
  ASSERT_TRUE(host.ok()) << message_of(host);
  EXPECT_EQ(host.value()[0], std::byte{static_cast<std::uint8_t>(2 + 500)});
  std::memset(host.value(), 1, 1000);
  const Bytes usable = world.pool().query(ptr).value().usable;
  for (const Bytes from : {0U, 1U, 500U}) {
    EXPECT_TRUE(suspension().host_copy({ptr + from, usable - from}).ok());
    expect_error(suspension().host_copy({ptr + from, usable - from + 1}),
                 ErrorCode::invalid_pointer);
  }
  resume();
  expect_written(ptr, 500, 2);
  std::vector<std::uint8_t> data(1000);
  ASSERT_EQ(world.sim().memcpy_device_to_host(data.data(), ptr + 500, 1000), CuResult::success);
  EXPECT_EQ(data, std::vector<std::uint8_t>(1000, 1));
  world.deallocate(ptr, a);
}

TEST_F(Suspend, memory_that_cannot_sleep_has_no_host_copy) {
  const DevicePtr plain = world.allocate(3 * kPage, a);
  const ArenaId external = make_arena(world, kExternal);
  const AddressRange memory = user_memory(world, 4 * kPage);
  add_memory(world, external, memory);
  const DevicePtr ptr = allocate_in(world, external, 1000, a);
  for (const DevicePtr each : {plain, ptr})
    expect_error(suspension().host_copy({each, 100}), ErrorCode::invalid_pointer,
                 {"100 bytes at " + hex(each), "no copy on the host"});
  for (const DevicePtr each : {plain, ptr}) world.deallocate(each, a);
  expect_error(suspension().host_copy({plain, 100}), ErrorCode::invalid_pointer);
  world.wait();
  release(world, external);
  free_user_memory(world, memory);
}

TEST_F(Suspend, a_reset_keeps_the_copy) {
  const DevicePtr ptr = tagged(2 * kPage);
  write(ptr, 2 * kPage, 5);
  suspend(kWeights, {true, true, true, std::nullopt});
  ASSERT_TRUE(world.pool().streams().reset().ok());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
  resume();
  expect_written(ptr, 2 * kPage, 5);
  const auto freed = world.pool().deallocate(ptr, std::nullopt);
  EXPECT_TRUE(freed.ok()) << message_of(freed);
  ASSERT_EQ(world.sim().device_primary_ctx_release(0), CuResult::success);
}

TEST_F(Suspend, large_memory_is_copied_by_several_threads) {
  const Bytes bytes = 100 * kMiB + 12345;
  const DevicePtr ptr = tagged(bytes);
  write(ptr, bytes, 7);
  suspend(kWeights, kToDriver);
  resume();
  expect_written(ptr, bytes, 7);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, a_tag_without_options_keeps_no_copy_that_a_call_made) {
  constexpr std::uint32_t kPlain = 9;
  ASSERT_TRUE(suspension().make_suspendable(kPlain, {}).ok());
  const DevicePtr ptr = tagged(kPage, kPlain);
  SuspendHow how;
  how.has_backup = true;
  suspend(kPlain, how);
  EXPECT_EQ(suspension().info(kPlain).host_bytes, kPage);
  resume(kPlain);
  EXPECT_EQ(suspension().info(kPlain).host_bytes, 0u);
  suspend(kPlain);
  EXPECT_EQ(state(kPlain), TagState::discarded);
  resume(kPlain);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, a_resume_that_clears_leaves_what_comes_back) {
  const DevicePtr ptr = tagged(kPage);
  write(ptr, kPage, 5);
  suspend();
  ResumeHow how;
  how.clears = true;
  resume(kWeights, how);
  expect_written(ptr, kPage, 5);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, a_block_behind_another_in_memory_has_a_copy_of_its_own) {
  make(kCache, true);
  const DevicePtr first = tagged(3 * kPage, kWeights);
  const DevicePtr second = tagged(3 * kPage, kCache);
  write(first, 3 * kPage, 1);
  write(second, 3 * kPage, 2);
  suspend(kWeights);
  suspend(kCache);
  for (const auto& [ptr, value] : {std::pair(first, 1), std::pair(second, 2)}) {
    const auto host = suspension().host_copy({ptr, 1});
    ASSERT_TRUE(host.ok()) << message_of(host);
    EXPECT_EQ(*host.value(), std::byte(value));
  }
  resume(kWeights);
  resume(kCache);
  world.deallocate(first, a);
  world.deallocate(second, a);
}

TEST_F(Suspend, what_ends_after_a_resume_goes_from_a_kept_copy) {
  const DevicePtr first = tagged(3 * kPage);
  const DevicePtr second = tagged(64 * kPage);
  suspend();
  make(kWeights, true, true);  // too late to pin the copy
  resume();
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 67 * kPage);
  world.deallocate(second, a);
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 3 * kPage);
  const DevicePtr third = tagged(128 * kPage);
  ASSERT_TRUE(suspension().prepare(kWeights).ok());
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 131 * kPage);
  world.deallocate(first, a);
  world.deallocate(third, a);
}

TEST_F(Suspend, of_two_arenas_of_which_one_cannot_be_pinned_changes_nothing) {
  make(kWeights, true, true);
  const DevicePtr shared = tagged(3 * kPage);
  const auto one = world.pool().allocate({2 * kPage, 0, a, {}, kWeights, 0, true});
  ASSERT_TRUE(one.ok());
  write(shared, 3 * kPage, 4);
  for (const std::uint64_t which : {1U, 2U}) {
    world.faults().set_plan({{Call::mem_host_register}, which, CuResult::invalid_value});
    expect_error(suspension().suspend(kWeights, {}), ErrorCode::driver_failed,
                 {"mem_host_register"});
    world.faults().clear_plan();
    EXPECT_EQ(state(), context::TagState::live);
  }
  expect_written(shared, 3 * kPage, 4);
  world.deallocate(one.value(), a);
  world.wait();
  const std::uint64_t pinned = world.calls().count(Call::mem_host_register);
  suspend();
  EXPECT_EQ(world.calls().count(Call::mem_host_register), pinned + 1)
      << "nothing lives in the other";
  resume();
  expect_written(shared, 3 * kPage, 4);
  world.deallocate(shared, a);
}

TEST_F(Suspend, that_fails_leaves_the_copy_of_a_tag_that_would_have_discarded) {
  make(kCache, false, true);
  const DevicePtr weights = tagged(2 * kPage);
  const DevicePtr cache = tagged(3 * kPage, kCache);
  write(weights, 2 * kPage, 1);
  write(cache, 3 * kPage, 7);
  SuspendHow copying;
  copying.has_backup = true;
  suspend(kCache, copying);
  resume(kCache);
  ASSERT_TRUE(suspension().host_copy({cache, 1}).ok());
  world.faults().set_plan({{Call::memcpy_device_to_host_async}, 1, CuResult::invalid_value});
  EXPECT_FALSE(suspension().suspend(0, {}).ok());
  world.faults().clear_plan();
  EXPECT_TRUE(suspension().host_copy({cache, 1}).ok());
  suspend(0);
  expect_error(suspension().host_copy({cache, 1}), ErrorCode::invalid_pointer);
  EXPECT_EQ(suspension().info(kCache).host_bytes, 3 * kPage) << "the tag keeps the memory";
  ResumeHow clearing;
  clearing.clears = true;
  resume(0, clearing);
  std::uint8_t byte = 99;
  ASSERT_EQ(world.sim().memcpy_device_to_host(&byte, cache, 1), CuResult::success);
  EXPECT_EQ(byte, 0) << "not what a copy from before has";
  expect_written(weights, 2 * kPage, 1);
  world.deallocate(weights, a);
  world.deallocate(cache, a);
}

}  // namespace
}  // namespace vpmm::test
