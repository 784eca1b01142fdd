// SPDX-License-Identifier: Apache-2.0
// tests/context: what comes between the steps of a suspend and a resume: frees, requests, releases,
// hooks, callbacks, and a driver that refuses.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context/suspend_races_case.hpp"
#include "support/event_log.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::test {
namespace {

using context::ResumeHow;
using context::SuspendHow;
using context::TagScope;
using context::TagState;
using driver::Call;
using driver::CuResult;
using pool::ArenaId;

constexpr SuspendHow kAway{std::nullopt, false, true, std::nullopt};

// The block of the second arena has no place on the host while the first is copied.
TEST_F(SuspendRaces, a_free_during_the_copy_touches_no_other_host_memory) {
  const DevicePtr first = written(3 * kPage, 3);
  const DevicePtr second = written(8 * kPage, 4, true);
  constexpr Bytes kLow = 8 * kMiB;  // below the size of the block
  void* const low = ::mmap(reinterpret_cast<void*>(kLow), 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (low != MAP_FAILED) *static_cast<volatile int*>(low) = 42;
  at_next(Call::memcpy_device_to_host_async, [&] {
    expect_error(request(1000, kKept), ErrorCode::suspended, {"another thread"});
    expect_error(suspension().suspend(kKept, {}), ErrorCode::suspended, {"another thread"});
    expect_error(suspension().resume(kKept, {}), ErrorCode::suspended, {"another thread"});
    expect_error(suspension().host_copy({first, 100}), ErrorCode::invalid_pointer);
    expect_error(suspension().host_copy({second, 100}), ErrorCode::invalid_pointer);
    EXPECT_EQ(state(), TagState::changing);
    free(second);
    expect_valid();
  });
  suspend();
  if (low != MAP_FAILED) {
    EXPECT_EQ(*static_cast<volatile int*>(low), 42) << "of somebody else";
    ::munmap(low, 4096);
  }
  EXPECT_EQ(state(), TagState::suspended);
  resume();
  expect_written(first, 3 * kPage, 3);
  free(first);
}

TEST_F(SuspendRaces, frees_at_each_step_of_a_suspend_and_a_resume) {
  for (const bool to_driver : {false, true})
    for (const Call step :
         {Call::stream_synchronize, Call::memcpy_device_to_host_async, Call::mem_unmap,
          Call::mem_release, Call::mem_map, Call::mem_set_access, Call::memcpy_host_to_device_async,
          Call::ctx_synchronize, Call::stream_create}) {
      SCOPED_TRACE(std::string(driver::to_string(step)) + (to_driver ? ", to the driver" : ""));
      const DevicePtr kept = written(2 * kPage, 1);
      const DevicePtr freed = written(3 * kPage, 2);
      const DevicePtr later = written(1000, 3);
      SuspendHow how;
      how.to_driver = to_driver;
      at_next(step, [&] { free(freed); });
      suspend(kKept, how);
      const bool has_freed = !world.pool->query(freed).ok();
      at_next(step, [&] { free(has_freed ? later : freed); });
      resume();
      world.hooks.on.clear();
      expect_written(kept, 2 * kPage, 1);
      for (const DevicePtr ptr : {kept, freed, later})
        if (world.pool->query(ptr).ok()) free(ptr);
      expect_valid();
      EXPECT_EQ(world.statistics().live_bytes, 0u);
      EXPECT_EQ(world.statistics().suspended_bytes, 0u);
      EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
    }
}

TEST_F(SuspendRaces, releases_at_each_step_of_a_suspend_and_a_resume) {
  for (const bool has_live : {false, true})
    for (const Call step :
         {Call::memcpy_device_to_host_async, Call::mem_unmap, Call::mem_map,
          Call::memcpy_host_to_device_async, Call::ctx_synchronize, Call::event_record}) {
      SCOPED_TRACE(std::string(driver::to_string(step)) + (has_live ? ", live" : ""));
      const auto arena = world.pool->arenas().create({});
      ASSERT_TRUE(arena.ok());
      const auto allocate = [&](Bytes bytes) {
        const auto made = world.pool->allocate({bytes, 0, a, arena.value()});
        EXPECT_TRUE(made.ok()) << message_of(made);
        return made ? made.value() : DevicePtr{};
      };
      const DevicePtr first = allocate(3 * kPage);
      const DevicePtr second = allocate(5 * kPage);
      if (!has_live) free(first);
      bool is_released = false;
      const auto release = [&] {
        is_released = true;
        EXPECT_TRUE(world.pool->arenas().release(arena.value()).ok());
        expect_valid();
        free(second);
        expect_valid();
      };
      at_next(step, release);
      const auto done = suspension().suspend(arena.value(), kAway);
      EXPECT_TRUE(done.ok()) << message_of(done);
      expect_valid();
      const auto again = suspension().resume(arena.value(), {});
      EXPECT_TRUE(again.ok() || again.error().code == ErrorCode::invalid_argument)
          << message_of(again);
      expect_valid();
      world.hooks.on.clear();
      if (!is_released) release();
      if (has_live) free(first);
      expect_valid();
      EXPECT_EQ(world.statistics().live_bytes, 0u);
      EXPECT_EQ(world.statistics().suspended_bytes, 0u);
      EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
    }
}

TEST_F(SuspendRaces, an_arena_that_ends_while_suspended_takes_its_kept_copy_with_it) {
  const auto arena = world.pool->arenas().create({});
  ASSERT_TRUE(arena.ok());
  const auto made = world.pool->allocate({3 * kPage, 0, a, arena.value()});
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(suspension().suspend(arena.value(), {true, true, true, std::nullopt}).ok());
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  ASSERT_TRUE(world.pool->arenas().release(arena.value()).ok());
  EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kPage);
  free(made.value());
  EXPECT_EQ(world.statistics().host_copy_bytes, 0u);
  EXPECT_EQ(world.statistics().suspended_bytes, 0u);
}

// A free block that serves small requests only when memory is short.
TEST_F(SuspendRaces, a_request_that_waits_takes_nothing_from_an_arena_suspended_meanwhile) {
  const DevicePtr large = tagged(8 * kPage, kDropped);
  const DevicePtr live = tagged(kPage, kDropped);
  const StreamHandle b = world.stream();
  const DevicePtr busy = world.allocate(4 * kPage, b);
  free(large);
  ASSERT_EQ(world.sim.stream_synchronize(a), CuResult::success);
  world.use(busy, 4 * kPage, b, kLongNs);
  ASSERT_TRUE(world.pool->deallocate(busy, b).ok());
  world.pool->limits().set_capacity(world.statistics().mapped_bytes);
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] {
      SuspendHow how = kAway;
      how.after = a;
      suspend(kDropped, how);
      world.pool->limits().set_capacity(Bytes{0});
    });
  };
  const auto made = request(20 * kPage, kDropped);
  ASSERT_FALSE(made.ok());
  world.pool->limits().set_capacity(std::nullopt);
  expect_valid();
  resume(kDropped);
  free(live);
}

TEST_F(SuspendRaces, the_first_request_for_one_chunk_in_a_suspended_tag_fails) {
  const DevicePtr ptr = tagged(kPage);
  suspend();
  expect_error(request(kPage, kKept, true), ErrorCode::suspended);
  resume();
  free(tagged(kPage, kKept, true));
  free(ptr);
}

TEST_F(SuspendRaces, without_address_space_the_memory_goes_to_the_driver) {
  const DevicePtr ptr = written(4 * kPage, 7);
  // No hole is large enough.
  std::vector<DevicePtr> others;
  const Bytes reserved = world.statistics().reserved_bytes;
  world.hooks.on[Call::mem_address_reserve] = [] { return CuResult::out_of_memory; };
  for (;;) {
    const auto made = world.pool->allocate({kGiB, 0, a});
    if (!made) break;
    others.push_back(made.value());
    ASSERT_LE(others.size(), reserved / kGiB);
  }
  suspend();
  resume();
  expect_written(ptr, 4 * kPage, 7);
  world.hooks.on.clear();
  for (const DevicePtr other : others) free(other);
  free(ptr);
}

TEST_F(SuspendRaces, hooks_may_call_everything_but_suspend_and_resume) {
  const DevicePtr ptr = tagged(kPage);
  const DevicePtr freed = tagged(3 * kPage);
  DevicePtr other{};
  std::uint64_t second = 0;
  context::SuspendHooks hooks;
  hooks.tag = kKept;
  hooks.before_unmap = [&](int, std::uint32_t) {
    expect_error(request(1000, kKept), ErrorCode::suspended);
    expect_error(world.pool->sharing().share({ptr, 100}), ErrorCode::suspended);
    free(freed);
    other = world.allocate(2 * kPage, a);
    EXPECT_TRUE(world.pool->limits().trim(0).ok());
    EXPECT_TRUE(world.pool->streams().synchronize().ok());
    EXPECT_TRUE(suspension().enter(kDropped, TagScope::thread).ok());
    EXPECT_TRUE(suspension().leave(kDropped, TagScope::thread).ok());
    EXPECT_EQ(state(), TagState::changing);
    expect_valid();
    if (second == 0) second = suspension().add_hooks({kKept, {}, {}});
    return true;
  };
  hooks.after_map = [&](int, std::uint32_t) {
    free(tagged(1000));
    free(std::exchange(other, DevicePtr{}));
    EXPECT_TRUE(suspension().remove_hooks(std::exchange(second, 0)));
    expect_valid();
  };
  const std::uint64_t first = suspension().add_hooks(hooks);
  suspend();
  resume();
  EXPECT_TRUE(suspension().remove_hooks(first));
  free(ptr);
}

TEST_F(SuspendRaces, a_hook_that_suspends_itself_gets_an_error) {
  const DevicePtr ptr = tagged(kPage);
  context::SuspendHooks hooks;
  hooks.tag = kKept;
  hooks.before_unmap = [&](int, std::uint32_t) {
    expect_error(suspension().suspend(kKept, {}), ErrorCode::suspended);
    expect_error(suspension().resume(kKept, {}), ErrorCode::suspended);
    return true;
  };
  suspension().add_hooks(hooks);
  suspend();
  resume();
  free(ptr);
}

TEST_F(SuspendRaces, an_out_of_memory_callback_suspends_for_a_request_and_for_a_resume) {
  const DevicePtr weights = written(6 * kPage, 5);
  suspend(kKept, kAway);
  const DevicePtr cache = tagged(6 * kPage, kDropped);
  world.pool->limits().set_capacity(8 * kPage);
  int asked = 0;
  world.pool->limits().out_of_memory_callbacks().add([&](const context::OutOfMemory&) {
    ++asked;
    return state(kDropped) == TagState::live && suspension().suspend(kDropped, kAway).ok();
  });
  resume(kKept);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(state(kDropped), TagState::discarded);
  expect_written(weights, 6 * kPage, 5);
  suspend(kKept, kAway);
  resume(kDropped);
  const auto plain = world.pool->allocate({6 * kPage, 0, a});
  EXPECT_TRUE(plain.ok()) << message_of(plain);
  EXPECT_EQ(state(kDropped), TagState::discarded);
  if (plain) free(plain.value());
  world.pool->limits().set_capacity(std::nullopt);
  resume(kKept);
  resume(kDropped);
  free(weights);
  free(cache);
}

TEST_F(SuspendRaces, a_callback_of_a_resume_may_try_to_resume_the_same) {
  const DevicePtr ptr = tagged(6 * kPage);
  suspend(kKept, kAway);
  world.pool->limits().set_capacity(4 * kPage);
  int asked = 0;
  world.pool->limits().out_of_memory_callbacks().add([&](const context::OutOfMemory&) {
    if (++asked > 1) return false;
    expect_error(suspension().resume(kKept, {}), ErrorCode::out_of_memory);
    world.pool->limits().set_capacity(std::nullopt);
    EXPECT_TRUE(suspension().resume(kKept, {}).ok());
    return true;
  });
  resume();
  free(ptr);
}

TEST_F(SuspendRaces, at_exactly_the_capacity) {
  const DevicePtr ptr = written(6 * kPage, 9);
  const DevicePtr small = written(1000, 2);
  const DevicePtr chunk = written(3 * kPage, 8, true);
  world.pool->limits().set_capacity(10 * kPage);
  for (const bool to_driver : {false, true}) {
    SuspendHow how;
    how.to_driver = to_driver;
    suspend(kKept, how);
    const auto info = world.pool->limits().memory_info();
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info.value().free, 10 * kPage);
    const DevicePtr next = world.allocate(info.value().free, a);
    expect_error(suspension().resume(kKept, {}), ErrorCode::out_of_memory);
    free(next);
    resume();
    EXPECT_EQ(world.pool->limits().memory_info().value().free, 0u);
    expect_written(ptr, 6 * kPage, 9);
    expect_written(small, 1000, 2);
    expect_written(chunk, 3 * kPage, 8);
  }
  for (const DevicePtr each : {ptr, small, chunk}) free(each);
}

TEST_F(SuspendRaces, a_capture_that_frees_suspended_memory_pins_and_it_resumes) {
  const DevicePtr live = written(2 * kPage, 6);
  const DevicePtr freed = tagged(3 * kPage);
  suspend(kKept, kAway);
  const StreamHandle b = world.stream();
  ASSERT_EQ(world.sim.stream_begin_capture(b, driver::CaptureMode::relaxed), CuResult::success);
  const auto done = world.pool->deallocate(freed, b);
  EXPECT_TRUE(done.ok()) << message_of(done);
  expect_error(world.pool->allocate({1000, 0, b, {}, kKept}), ErrorCode::suspended);
  expect_error(suspension().resume(kKept, {}), ErrorCode::capture_active);
  driver::GraphHandle graph{};
  ASSERT_EQ(world.sim.stream_end_capture(b, graph), CuResult::success);
  ASSERT_EQ(world.sim.graph_destroy(graph), CuResult::success);
  free(world.allocate(1000, a));
  world.deallocate(world.allocate(1000, b), b);  // the pool learns the capture's end
  resume();
  expect_written(live, 2 * kPage, 6);
  suspend(kKept, {});
  resume();
  expect_written(live, 2 * kPage, 6);
  free(live);
  expect_valid();
}

TEST_F(SuspendRaces, behind_a_stream_that_captures_it_is_refused_and_the_capture_goes_on) {
  const DevicePtr ptr = tagged(kPage);
  const StreamHandle b = world.stream();
  ASSERT_EQ(world.sim.stream_begin_capture(b, driver::CaptureMode::relaxed), CuResult::success);
  SuspendHow how;
  how.after = b;
  expect_error(suspension().suspend(kKept, how), ErrorCode::capture_active);
  driver::GraphHandle graph{};
  EXPECT_EQ(world.sim.stream_end_capture(b, graph), CuResult::success);
  ASSERT_EQ(world.sim.graph_destroy(graph), CuResult::success);
  ASSERT_EQ(world.sim.stream_synchronize(a), CuResult::success);
  suspend(kKept, how);
  resume();
  free(ptr);
}

TEST_F(SuspendRaces, memory_kept_for_others_after_its_free_refuses_a_suspend) {
  const DevicePtr ptr = tagged(2 * kPage);
  const DevicePtr other = written(1000, 3);
  const auto shared = world.pool->sharing().share({ptr, 1000});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  free(ptr);
  expect_error(suspension().suspend(kKept, {}), ErrorCode::not_shared);
  EXPECT_EQ(state(), TagState::live);
  world.pool->sharing().end_lease(shared.value().share, context::Holder::handle);
  suspend();
  resume();
  expect_written(other, 1000, 3);
  free(other);
}

TEST_F(SuspendRaces, a_kept_copy_ends_with_memory_that_others_held_longest) {
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  const DevicePtr other = written(kPage, 3);
  const DevicePtr ptr = written(2 * kPage, 1);
  suspend();
  resume();
  ASSERT_TRUE(suspension().host_copy({ptr, 1}).ok());
  const auto shared = world.pool->sharing().share({ptr, 1000});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  free(ptr);
  world.pool->sharing().end_lease(shared.value().share, context::Holder::handle);
  const DevicePtr next = tagged(2 * kPage);
  EXPECT_EQ(next, ptr);
  expect_error(suspension().host_copy({next, 1}), ErrorCode::invalid_pointer);
  EXPECT_TRUE(suspension().host_copy({other, 1}).ok());
  free(next);
  free(other);
}

TEST_F(SuspendRaces, a_lease_of_a_share_without_holders_is_refused_while_suspended) {
  const DevicePtr ptr = tagged(2 * kPage);
  const auto shared = world.pool->sharing().share({ptr, 1000});
  ASSERT_TRUE(shared.ok()) << message_of(shared);
  world.pool->sharing().end_lease(shared.value().share, context::Holder::handle);
  suspend();
  expect_error(world.pool->sharing().lease(shared.value().share, 0, 1000), ErrorCode::suspended);
  resume();
  EXPECT_TRUE(world.pool->sharing().lease(shared.value().share, 0, 1000).ok());
  expect_error(suspension().suspend(kKept, {}), ErrorCode::not_shared,
               {hex(ptr), "openings in other processes: 1", "handles for them: 0"});
  world.pool->sharing().end_lease(shared.value().share, context::Holder::importer);
  free(ptr);
}

TEST_F(SuspendRaces, a_share_between_the_steps_is_refused) {
  const DevicePtr ptr = written(2 * kPage, 1);
  for (const Call step : {Call::memcpy_device_to_host_async, Call::ctx_synchronize}) {
    at_next(step, [&] {
      expect_error(world.pool->sharing().share({ptr, 1000}), ErrorCode::suspended);
    });
    suspend();
    at_next(Call::memcpy_host_to_device_async, [&] {
      expect_error(world.pool->sharing().share({ptr, 1000}), ErrorCode::suspended);
    });
    resume();
  }
  expect_written(ptr, 2 * kPage, 1);
  free(ptr);
}

TEST_F(SuspendRaces, what_sleeps_or_ends_while_its_host_memory_is_prepared_does_without) {
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  for (const bool ends : {false, true}) {
    const DevicePtr ptr = written(3 * kPage, 1);
    at_next(Call::mem_host_register, [&] {
      if (ends)
        free(ptr);
      else
        suspend(kKept);
    });
    const auto done = suspension().prepare(kKept);
    EXPECT_TRUE(done.ok()) << message_of(done);
    world.hooks.on.clear();
    expect_valid();
    if (ends) break;
    resume(kKept);
    expect_written(ptr, 3 * kPage, 1);
    free(ptr);
    ASSERT_TRUE(suspension().make_suspendable(kKept, {true, false}).ok());
    suspend(kKept);
    resume(kKept);  // the kept copy is gone
    ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  }
  EXPECT_EQ(state(), TagState::live);
}

TEST_F(SuspendRaces, what_sleeps_while_more_host_memory_is_prepared_keeps_its_contents) {
  ASSERT_TRUE(suspension().make_suspendable(kKept, {true, true}).ok());
  const DevicePtr stays = written(3 * kPage, 1);
  const DevicePtr ends = tagged(4 * kPage);
  at_next(Call::mem_host_register, [&] {
    free(ends);
    suspend(kKept);
  });
  const auto done = suspension().prepare(kKept);
  EXPECT_TRUE(done.ok()) << message_of(done);
  world.hooks.on.clear();
  EXPECT_EQ(state(), TagState::suspended);
  EXPECT_EQ(suspension().info(kKept).host_bytes, 3 * kPage);
  resume(kKept);
  expect_written(stays, 3 * kPage, 1);
  free(stays);
}

TEST_F(SuspendRaces, events_come_in_order) {
  const EventLog log(*world.pool);
  const DevicePtr first = written(3 * kPage, 1);
  const DevicePtr second = written(1000, 2);
  const DevicePtr third = tagged(5 * kPage, kDropped);
  for (const bool to_driver : {false, true}) {
    SuspendHow how;
    how.to_driver = to_driver;
    suspend(0, how);
    EXPECT_EQ(log.mapped_bytes(), world.statistics().mapped_bytes);
    resume(0);
    EXPECT_EQ(log.mapped_bytes(), world.statistics().mapped_bytes);
  }
  suspend(0, kAway);
  free(third);
  free(second);
  resume(0);
  expect_written(first, 3 * kPage, 1);
  free(first);
  EXPECT_TRUE(log.live().empty());
  EXPECT_EQ(log.of(EventKind::suspend).size(), 6u);
  EXPECT_EQ(log.of(EventKind::resume).size(), 6u) << "also of what ended while it was suspended";
}

TEST_F(SuspendRaces, a_recording_reads_back) {
  const std::string path = ::testing::TempDir() + "vpmm_suspended_" + std::to_string(getpid());
  const DevicePtr before = written(3 * kPage, 1);
  ASSERT_TRUE(world.pool->reports().start_recording(path).ok());
  const DevicePtr freed = tagged(4 * kPage);
  for (const bool to_driver : {false, true}) {
    SuspendHow how;
    how.to_driver = to_driver;
    suspend(kKept, how);
    if (to_driver) free(freed);
    resume();
  }
  suspend(kKept, kAway);
  ASSERT_TRUE(world.pool->reports().stop_recording().ok());
  RecordedFile file = read_recorded(path);
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(order_fault(file), "");
  EXPECT_EQ(file.count(observe::RecordedKind::suspend), 3u);
  EXPECT_EQ(file.count(observe::RecordedKind::resume), 2u);
  // A recording that begins while memory is suspended.
  ASSERT_TRUE(world.pool->reports().start_recording(path).ok());
  resume();
  free(before);
  ASSERT_TRUE(world.pool->reports().stop_recording().ok());
  file = read_recorded(path);
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(order_fault(file), "");
  EXPECT_EQ(file.count(observe::RecordedKind::live), 1u);
  EXPECT_EQ(file.count(observe::RecordedKind::free), 1u);
  std::filesystem::remove(path);
}

TEST_F(SuspendRaces, a_thread_that_ends_inside_a_tag_leaves_it_to_no_other) {
  int inherited = 0;
  for (int i = 0; i < 20; ++i) {
    world.on_another_thread([&] {
      if (suspension().entered().tag != 0) ++inherited;
      if (i != 0) return;
      ASSERT_TRUE(suspension().enter(kKept, TagScope::thread).ok());
    });
  }
  EXPECT_EQ(inherited, 0);
}

TEST_F(SuspendRaces, large_requests_of_any_size_are_served_by_one_stretch) {
  for (const Bytes pages : {Bytes{15}, Bytes{16}, Bytes{17}, Bytes{31}, Bytes{33}})
    for (const Bytes more : {Bytes{0}, Bytes{1}, kPage / 2, kPage - 1}) {
      const DevicePtr ptr = tagged(pages * kPage + more, kDropped);
      EXPECT_LE(suspension().info(kDropped).amounts.held, (pages + 1) * kPage);
      free(ptr);
      ASSERT_EQ(world.sim.stream_synchronize(a), CuResult::success);
      ASSERT_TRUE(world.pool->limits().trim(0).ok());
    }
}

TEST_F(SuspendRaces, a_reset_beside_waits_for_the_call) {
  const DevicePtr ptr = written(2 * kPage, 4);
  std::thread resetting;
  for (const Call step : {Call::memcpy_device_to_host_async, Call::mem_unmap}) {
    std::atomic<bool> is_over = false;
    world.hooks.on[step] = [&] {
      if (!is_over.exchange(true))
        resetting = std::thread([&] {
          EXPECT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
          const auto done = world.pool->streams().reset();
          EXPECT_TRUE(done.ok()) << message_of(done);
        });
      return CuResult::success;
    };
    const auto done = suspension().suspend(kKept, {});
    EXPECT_TRUE(done.ok()) << message_of(done);
    resetting.join();
    world.hooks.on.clear();
    ASSERT_EQ(world.sim.device_primary_ctx_retain(0, world.context), CuResult::success);
    ASSERT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
    a = world.stream();
    resume();
    expect_written(ptr, 2 * kPage, 4);
  }
  free(ptr);
}

TEST_F(SuspendRaces, peers_that_come_while_it_sleeps_have_access_afterwards) {
  driver::sim::SimOptions two;
  two.device_count = 2;
  WorldOptions options = adaptive_world();
  options.sim = two;
  HookedWorld pair(options);
  ASSERT_TRUE(pair.pool->suspension().make_suspendable(kKept, {true, false}).ok());
  const StreamHandle on = pair.stream();
  const auto made = pair.pool->allocate({3 * kPage, 0, on, {}, kKept});
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(pair.pool->suspension().suspend(kKept, {}).ok());
  ASSERT_TRUE(pair.pool->sharing().set_peer_access(1).ok());
  ASSERT_TRUE(pair.pool->suspension().resume(kKept, {}).ok());
  driver::ContextHandle other{};
  ASSERT_EQ(pair.sim.device_primary_ctx_retain(1, other), CuResult::success);
  ASSERT_EQ(pair.sim.ctx_set_current(other), CuResult::success);
  const StreamHandle there = pair.stream();
  pair.use(made.value(), 3 * kPage, there, 1000);
  ASSERT_EQ(pair.sim.stream_synchronize(there), CuResult::success);
  ASSERT_EQ(pair.sim.ctx_set_current(pair.context), CuResult::success);
  ASSERT_TRUE(pair.pool->suspension().suspend(kKept, kAway).ok());
  ASSERT_TRUE(pair.pool->suspension().resume(kKept, {}).ok());
  pair.deallocate(made.value(), on);
}

TEST_F(SuspendRaces, nothing_is_lost_when_address_space_ends_at_each_driver_call) {
  const DevicePtr ptr = written(3 * kPage, 5);
  const DevicePtr small = written(900, 6);
  for (std::uint64_t i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    std::atomic<std::uint64_t> left = i;  // copies have threads
    const auto fail_later = [&] {
      return left-- == 0 ? CuResult::out_of_memory : CuResult::success;
    };
    for (const Call call :
         {Call::mem_map, Call::mem_unmap, Call::mem_set_access, Call::mem_address_reserve,
          Call::mem_create, Call::mem_release, Call::memcpy_device_to_host_async,
          Call::memcpy_host_to_device_async, Call::stream_create, Call::mem_host_register})
      world.hooks.on[call] = fail_later;
    SuspendHow how;
    how.to_driver = i % 2 == 0;
    how.keeps_host_copy = i % 3 == 0;
    static_cast<void>(suspension().suspend(kKept, how));
    expect_valid();
    static_cast<void>(suspension().resume(kKept, {}));
    expect_valid();
    world.hooks.on.clear();
    resume();
    expect_written(ptr, 3 * kPage, 5);
    expect_written(small, 900, 6);
    if (::testing::Test::HasFailure()) break;
  }
  free(ptr);
  free(small);
}

}  // namespace
}  // namespace vpmm::test
