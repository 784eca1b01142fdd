// SPDX-License-Identifier: Apache-2.0
// context: frees while a call copies the contents of their arena, and suspends while host memory
// is prepared.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "context/suspend_races_case.hpp"
#include "fault/no_memory.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using fault::HostFaults;
using fault::NoMemory;

// Observers are told of them after the call.
TEST_F(SuspendRaces, frees_during_a_suspend_and_a_resume_take_no_more_memory_than_others) {
  constexpr std::size_t kBlocks = 64;
  enum class At { rest, suspend, resume };
  std::size_t at_rest = 0;
  for (const At at : {At::rest, At::suspend, At::resume}) {
    std::vector<DevicePtr> all;
    for (std::size_t i = 0; i < kBlocks; ++i) all.push_back(tagged(kPage));
    std::size_t taken = 0;
    const auto free_all = [&] {
      const NoMemory none(NoMemory::Reserve::left);
      for (const DevicePtr ptr : all) free(ptr);
      taken = HostFaults::counted();
    };
    if (at == At::rest) free_all();
    if (at == At::suspend) at_next(Call::memcpy_device_to_host_async, free_all);
    suspend(kKept, {std::nullopt, false, true, std::nullopt});
    if (at == At::resume) at_next(Call::memcpy_host_to_device_async, free_all);
    resume();
    if (at == At::rest) at_rest = taken;
    EXPECT_LE(taken, at_rest) << static_cast<int>(at);
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    world.hooks.on.clear();
  }
}

// The other thread's copy is as large, and has contents.
TEST_F(SuspendRaces, host_memory_that_another_call_provides_first_is_the_copy) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "the preparation");
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  const DevicePtr ptr = written(3 * kPage, 5);
  at_next(Call::mem_host_register, [&] {
    EXPECT_TRUE(suspension().prepare(kKept).ok());
    suspend();
    resume();
  });
  const auto done = suspension().prepare(kKept);
  EXPECT_TRUE(done.ok()) << message_of(done);
  world.hooks.on.clear();
  EXPECT_EQ(suspension().info(kKept).host_bytes, 3 * kPage);
  const auto host = suspension().host_copy({ptr, 3 * kPage});
  ASSERT_TRUE(host.ok()) << message_of(host);
  EXPECT_EQ(host.value()[7], std::byte{12});
  EXPECT_EQ(world.calls.count(Call::mem_host_register),
            world.calls.count(Call::mem_host_unregister) + 2)
      << "one copy and the ring are pinned";
  expect_written(ptr, 3 * kPage, 5);
  free(ptr);
}

TEST_F(SuspendRaces, host_memory_for_a_copy_that_another_call_drops_is_given_back) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "the preparation");
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  const DevicePtr ptr = written(3 * kPage, 5);
  at_next(Call::mem_host_register, [&] {
    EXPECT_TRUE(suspension().make_suspendable(kKept, {true, false}).ok());
    suspend();
    resume();
  });
  const auto done = suspension().prepare(kKept);
  EXPECT_TRUE(done.ok()) << message_of(done);
  world.hooks.on.clear();
  EXPECT_EQ(suspension().info(kKept).host_bytes, 0u);
  EXPECT_EQ(world.calls.count(Call::mem_host_register),
            world.calls.count(Call::mem_host_unregister) + 1)
      << "the ring is pinned";
  expect_written(ptr, 3 * kPage, 5);
  free(ptr);
}

}  // namespace
}  // namespace vpmm::test
