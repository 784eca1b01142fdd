// SPDX-License-Identifier: Apache-2.0
// tests/context: suspends and resumes that are refused or fail in the middle: the error, and that
// everything is as before.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "context/suspend_case.hpp"
#include "context/suspend_races_case.hpp"
#include "driver/sim/sim_driver.hpp"
#include "support/event_log.hpp"

namespace vpmm::test {
namespace {

using context::ResumeHow;
using context::SuspendHow;
using context::TagState;
using driver::Call;
using driver::CuResult;

SuspendHow behind(StreamHandle stream) {
  SuspendHow how;
  how.after = stream;
  return how;
}

// Figures of users' memory.
std::vector<std::uint64_t> figures_of_users(PoolWorld& world) {
  const observe::Statistics now = world.statistics();
  return {now.live_bytes,      now.live_allocations, now.allocated_bytes,
          now.suspended_bytes, now.host_copy_bytes,  now.allocations - now.deallocations};
}

// The capture begins after the first look for captures.
TEST_F(Suspend, that_meets_a_capture_before_its_wait_is_called_off) {
  const DevicePtr ptr = tagged(2 * kPage);
  const StreamHandle b = world.stream();
  int told = 0;
  suspension().add_hooks({kWeights,
                          [&](int, std::uint32_t) {
                            ++told;
                            return world.pool().streams().capture_begin().ok();
                          },
                          [&](int, std::uint32_t) { --told; }});
  // Behind a stream, too, if work of others on free memory is not over.
  for (const bool is_behind : {false, true}) {
    const DevicePtr freed = tagged(2 * kPage);
    ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
    world.use(freed, 2 * kPage, b, kLongNs);
    ASSERT_TRUE(world.pool().record_use(freed, b).ok());
    world.deallocate(freed, a);
    expect_error(suspension().suspend(kWeights, is_behind ? behind(a) : SuspendHow{}),
                 ErrorCode::capture_active, {"a stream is being captured"});
    EXPECT_EQ(told, 0);
    EXPECT_EQ(state(), TagState::live);
    EXPECT_FALSE(is_suspended(ptr));
    EXPECT_EQ(world.pool().reports().validate(), "");
    ASSERT_TRUE(world.pool().streams().capture_end().ok());
    world.wait();
  }
  suspend(kWeights, behind(a));
  EXPECT_EQ(told, 1) << "all work on free memory is over, so a capture is in nobody's way";
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  resume();
  EXPECT_EQ(told, 0);
  world.deallocate(ptr, a);
}

TEST_F(Suspend, during_a_capture_is_refused_and_nobody_hears_of_it) {
  const DevicePtr ptr = tagged(2 * kPage);
  const DevicePtr asleep = tagged(2 * kPage, kCache);
  suspend(kCache);
  int told = 0;
  for (const std::uint32_t tag : {kWeights, kCache})
    suspension().add_hooks({tag, [&](int, std::uint32_t) { return ++told, true; },
                            [&](int, std::uint32_t) { ++told; }});
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  const std::vector<std::uint64_t> before = figures_of_users(world);
  for (const Result<void>& refused :
       {suspension().suspend(kWeights, {}), suspension().suspend(kWeights, behind(a)),
        suspension().suspend(0, {}), suspension().resume(kCache, {}), suspension().resume(0, {})})
    expect_error(refused, ErrorCode::capture_active, {"a stream is being captured"});
  EXPECT_EQ(told, 0);
  EXPECT_EQ(figures_of_users(world), before);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  resume(0);
  EXPECT_EQ(told, 1) << "of the one that came back";
  world.deallocate(ptr, a);
  world.deallocate(asleep, a);
}

TEST_F(Suspend, behind_a_stream_that_is_none_is_refused) {
  const DevicePtr ptr = tagged(2 * kPage);
  expect_error(suspension().suspend(kWeights, behind(StreamHandle{0x4242})),
               ErrorCode::invalid_argument, {"0x4242 is no stream"});
  EXPECT_EQ(state(), TagState::live);
  world.faults().set_plan({{Call::stream_synchronize}, 1, CuResult::invalid_value});
  expect_error(suspension().suspend(kWeights, behind(a)), ErrorCode::driver_failed,
               {"stream_synchronize"});
  EXPECT_EQ(state(), TagState::live);
  world.faults().clear_plan();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, that_cannot_look_for_work_of_peers_says_so) {
  WorldOptions options = adaptive_world();
  options.sim.device_count = 2;
  PoolWorld two(options);
  context::Suspension& of_two = two.pool().suspension();
  const StreamHandle stream = two.stream();
  ASSERT_TRUE(of_two.make_suspendable(kWeights, {true, false}).ok());
  ASSERT_TRUE(two.pool().sharing().set_peer_access(1).ok());
  const auto made = two.pool().allocate({2 * kPage, 0, stream, {}, kWeights});
  ASSERT_TRUE(made.ok());
  two.faults().set_plan({{Call::device_primary_ctx_get_state}, 1, CuResult::invalid_value});
  expect_error(of_two.suspend(kWeights, {}), ErrorCode::driver_failed,
               {"device_primary_ctx_get_state"});
  two.faults().clear_plan();
  EXPECT_EQ(of_two.info(kWeights).state, TagState::live);
  two.deallocate(made.value(), stream);
}

TEST_F(Suspend, memory_that_others_hold_is_named_by_its_tag) {
  const DevicePtr first = tagged(2 * kPage);
  const DevicePtr second = tagged(2 * kPage, kCache);
  const auto shared = world.pool().sharing().share({second, 100});
  ASSERT_TRUE(shared.ok());
  suspend();
  resume();
  expect_error(suspension().suspend(0, {}), ErrorCode::not_shared,
               {"tag 8 cannot be suspended: the allocation of 4194304 bytes at " + hex(second),
                "handles for them: 1)"});
  EXPECT_FALSE(is_suspended(first));
  world.pool().sharing().end_lease(shared.value().share, context::Holder::handle);
  for (const DevicePtr ptr : {first, second}) world.deallocate(ptr, a);
}

TEST_F(Suspend, of_a_part_that_is_being_changed_is_refused_as_a_whole) {
  arena::ArenaOptions options;
  options.tag = kWeights;
  const ArenaId first = make_arena(world, options);
  const ArenaId second = make_arena(world, options);
  for (const ArenaId each : {first, second}) allocate_in(world, each, kPage, a);
  const std::string busy = "another thread is suspending or resuming arena " +
                           std::to_string(static_cast<std::uint64_t>(first)) + " of tag 7";
  const auto refuse = [&](int, std::uint32_t) {
    for (const Result<void>& each :
         {suspension().suspend(kWeights, {}), suspension().resume(kWeights, {}),
          suspension().suspend(first, {}), suspension().resume(first, {}),
          suspension().prepare(kWeights)})
      expect_error(each, ErrorCode::suspended, {busy});
    EXPECT_EQ(state(), TagState::changing);
    return true;
  };
  const std::uint64_t hooks = suspension().add_hooks({kWeights, refuse, {}});
  ASSERT_TRUE(suspension().suspend(first, {}).ok());
  ASSERT_TRUE(suspension().remove_hooks(hooks));
  EXPECT_TRUE(suspension().suspend(second, {}).ok());
  resume();
}

TEST_F(Suspend, hooks_hear_of_their_device_and_tag_and_a_refusal_names_the_tag) {
  const DevicePtr ptr = tagged(kPage);
  std::vector<std::pair<int, std::uint32_t>> heard;
  bool refuses = false;
  suspension().add_hooks({kWeights, {}, {}});  // nothing to call
  suspension().add_hooks({kWeights,
                          [&](int device, std::uint32_t tag) {
                            heard.emplace_back(device, tag);
                            return !refuses;
                          },
                          [&](int device, std::uint32_t tag) { heard.emplace_back(device, tag); }});
  suspend();
  suspend();  // again: nothing to do
  EXPECT_EQ(heard, (std::vector<std::pair<int, std::uint32_t>>{{0, kWeights}}));
  resume();
  resume();
  EXPECT_EQ(heard, (std::vector<std::pair<int, std::uint32_t>>{{0, kWeights}, {0, kWeights}}));
  refuses = true;
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::invalid_argument,
               {"a hook of tag 7 refuses the suspend"});
  EXPECT_EQ(heard.size(), 3u) << "the one that refuses hears of no end";
  EXPECT_EQ(state(), TagState::live);
  world.deallocate(ptr, a);
}

// Each of these fails after hooks were told.
TEST_F(Suspend, that_the_driver_refuses_leaves_everything_as_it_was) {
  const EventLog log(world.pool());
  const DevicePtr ptr = tagged(3 * kPage);
  const DevicePtr small = tagged(1000);
  write(ptr, 3 * kPage, 3);
  int told = 0;
  suspension().add_hooks({kWeights, [&](int, std::uint32_t) { return ++told, true; },
                          [&](int, std::uint32_t) { --told; }});
  const std::vector<std::uint64_t> before = figures_of_users(world);
  // The second question for the context's id comes after the hooks.
  for (const auto& [call, nth] : {std::pair(Call::ctx_get_id, 2U),
                                  {Call::ctx_synchronize, 1U},
                                  {Call::memcpy_device_to_host_async, 1U},
                                  {Call::stream_create, 1U},
                                  {Call::mem_unmap, 1U},
                                  {Call::mem_map, 1U}})
    for (const bool to_driver : {false, true}) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + (to_driver ? ", to the driver" : ""));
      if (call == Call::mem_map && to_driver) continue;  // which maps nothing
      SuspendHow how;
      how.to_driver = to_driver;
      world.faults().set_plan({{call}, nth, CuResult::invalid_value});
      expect_error(suspension().suspend(kWeights, how), ErrorCode::driver_failed,
                   {driver::to_string(call)});
      EXPECT_EQ(world.faults().fired(), 1u);
      world.faults().clear_plan();
      EXPECT_EQ(world.pool().reports().validate(), "");
      EXPECT_EQ(figures_of_users(world), before);
      EXPECT_EQ(told, 0);
      EXPECT_EQ(state(), TagState::live);
      EXPECT_TRUE(log.of(EventKind::suspend).empty());
      expect_written(ptr, 3 * kPage, 3);
    }
  world.deallocate(ptr, a);
  world.deallocate(small, a);
}

TEST_F(Suspend, a_resume_that_the_driver_refuses_leaves_everything_asleep) {
  const DevicePtr ptr = tagged(3 * kPage);
  const DevicePtr cache = tagged(2 * kPage, kCache);
  write(ptr, 3 * kPage, 3);
  int told = 0;
  suspension().add_hooks({kWeights, {}, [&](int, std::uint32_t) { ++told; }});
  const EventLog log(world.pool(), report::bit_of(EventKind::resume));
  suspend(0, kToDriver);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  const std::vector<std::uint64_t> before = figures_of_users(world);
  const auto expect_asleep = [&](const Result<void>& refused, Call call) {
    expect_error(refused, ErrorCode::driver_failed, {driver::to_string(call)});
    EXPECT_EQ(world.pool().reports().validate(), "");
    EXPECT_EQ(figures_of_users(world), before);
    EXPECT_TRUE(is_suspended(ptr));
    EXPECT_EQ(state(), TagState::suspended);
    EXPECT_EQ(told, 0);
    EXPECT_TRUE(log.events().empty());
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0u) << "what it took for a moment is given back";
  };
  for (const auto& [call, nth] : {std::pair(Call::mem_create, 1U),
                                  {Call::mem_unmap, 1U},
                                  {Call::mem_unmap, 2U},
                                  {Call::memcpy_host_to_device_async, 1U},
                                  {Call::stream_create, 1U}}) {
    SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
    world.faults().set_plan({{call}, nth, CuResult::invalid_value});
    const auto refused = suspension().resume(0, {});
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
    expect_asleep(refused, call);
  }
  resume(0);
  EXPECT_EQ(told, 1);
  expect_written(ptr, 3 * kPage, 3);
  EXPECT_EQ(log.events().size(), 2u);
  world.deallocate(ptr, a);
  world.deallocate(cache, a);
}

// Large memory comes first, so that it is there when the small one finds none.
TEST_F(Suspend, a_resume_that_is_short_of_the_last_memory_gives_the_rest_back) {
  const DevicePtr large = world.pool().allocate({8 * kPage, 0, a, {}, kWeights, 0, true}).value();
  const DevicePtr small = tagged(2 * kPage);
  suspend(kWeights, kToDriver);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.pool().limits().set_capacity(9 * kPage);
  const std::vector<std::uint64_t> before = figures_of_users(world);
  for (int i = 0; i < 2; ++i) {
    expect_error(suspension().resume(kWeights, {}), ErrorCode::out_of_memory,
                 {"asked for  20 MiB", ", tag 7"});
    EXPECT_EQ(figures_of_users(world), before);
    EXPECT_EQ(world.pool().reports().validate(), "");
    EXPECT_EQ(world.statistics().free_bytes, world.statistics().mapped_bytes);
  }
  const std::uint64_t created = world.calls().count(Call::mem_create);
  world.deallocate(world.allocate(8 * kPage, a), a);
  EXPECT_EQ(world.calls().count(Call::mem_create), created) << "it takes what was given back";
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  world.pool().limits().set_capacity(std::nullopt);
  resume();
  for (const DevicePtr ptr : {large, small}) world.deallocate(ptr, a);
}

// From the first move on the driver maps nothing more, so that the memory is nowhere for a while.
TEST_F(SuspendRaces, a_resume_whose_undo_fails_loses_no_memory) {
  const DevicePtr ptr = written(3 * kPage, 5);
  const DevicePtr chunk = written(2 * kPage, 9, true);
  suspend(kKept, kToDriver);
  ASSERT_TRUE(world.pool->limits().trim(0).ok());
  bool has_moved = false;
  world.hooks.on[Call::mem_unmap] = [&] {
    has_moved = true;
    return CuResult::success;
  };
  world.hooks.on[Call::mem_map] = [&] {
    return has_moved ? CuResult::invalid_value : CuResult::success;
  };
  expect_error(suspension().resume(kKept, {}), ErrorCode::driver_failed, {"mem_map"});
  world.hooks.on.clear();
  expect_valid();
  EXPECT_EQ(state(), TagState::suspended);
  EXPECT_EQ(world.statistics().suspended_bytes, 5 * kPage);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  ASSERT_TRUE(world.pool->limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  EXPECT_EQ(world.sim.census().physical_bytes, 0u);
  resume();
  expect_written(ptr, 3 * kPage, 5);
  expect_written(chunk, 2 * kPage, 9);
  for (const DevicePtr each : {ptr, chunk}) free(each);
}

TEST_F(Suspend, a_shortage_of_several_tags_names_none) {
  for (const std::uint32_t tag : {kWeights, kCache}) tagged(6 * kPage, tag);
  suspend(0, kToDriver);
  world.pool().limits().set_capacity(4 * kPage);
  const auto refused = suspension().resume(0, {});
  expect_error(refused, ErrorCode::out_of_memory, {"asked for  24 MiB"});
  EXPECT_EQ(message_of(refused).find("tag 7"), std::string::npos) << message_of(refused);
  EXPECT_EQ(message_of(refused).find("tag 8"), std::string::npos) << message_of(refused);
  expect_error(suspension().resume(kCache, {}), ErrorCode::out_of_memory,
               {"asked for  12 MiB", ", tag 8"});
  world.pool().limits().set_capacity(std::nullopt);
  resume(0);
}

// Their old mappings would keep their memory from the driver.
TEST_F(Suspend, to_the_driver_unmaps_old_places_of_chunks_that_moved) {
  for (const bool to_driver : {false, true}) {
    PoolWorld pages(page_world());
    const StreamHandle stream = pages.stream();
    ASSERT_TRUE(pages.pool().suspension().make_suspendable(kWeights, {false, false}).ok());
    pages.pool().limits().set_capacity(24 * kPage);
    const DevicePtr ptr = pages.pool().allocate({kPage, 0, stream, {}, kWeights}).value();
    std::vector<DevicePtr> others;
    for (int i = 0; i < 23; ++i) others.push_back(pages.allocate(kPage, stream));
    for (std::size_t i = 0; i < others.size(); i += 2) {
      pages.use(others[i], kPage, stream, kLongNs);
      pages.deallocate(others[i], stream);
    }
    const DevicePtr moved = pages.allocate(12 * kPage, stream);
    EXPECT_GT(pages.statistics().zombie_bytes, 0u);
    SuspendHow how;
    how.to_driver = to_driver;
    ASSERT_TRUE(pages.pool().suspension().suspend(kWeights, how).ok());
    EXPECT_EQ(pages.statistics().zombie_bytes == 0, to_driver);
    ASSERT_TRUE(pages.pool().suspension().resume(kWeights, {}).ok());
    for (const DevicePtr each : {ptr, moved}) pages.deallocate(each, stream);
  }
}

TEST_F(Suspend, events_have_the_bytes_and_the_tag_of_their_arena) {
  const EventLog log(world.pool());
  const DevicePtr ptr = tagged(16 * kPage);
  const DevicePtr cache = tagged(2 * kPage, kCache);
  suspend();
  suspend(kCache);
  resume(0);
  const std::vector<std::pair<std::uint32_t, Bytes>> expected{
      {kWeights, 16 * kPage}, {kCache, 2 * kPage}, {kWeights, 16 * kPage}, {kCache, 2 * kPage}};
  std::vector<std::pair<std::uint32_t, Bytes>> told;
  for (const ReportedEvent& event : log.events())
    if (event.kind == EventKind::suspend || event.kind == EventKind::resume)
      told.emplace_back(event.tag, event.bytes);
  EXPECT_EQ(told, expected);
  world.deallocate(ptr, a);
  world.deallocate(cache, a);
}

TEST_F(Suspend, that_has_nothing_to_do_meets_no_capture) {
  const DevicePtr ptr = tagged(kPage);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  EXPECT_TRUE(suspension().resume(kWeights, {}).ok()) << "it is live";
  EXPECT_TRUE(suspension().suspend(kCache, {}).ok()) << "it has no memory";
  EXPECT_TRUE(suspension().resume(kCache, {}).ok());
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  suspend();
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  EXPECT_TRUE(suspension().suspend(kWeights, {}).ok()) << "it sleeps";
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend, what_is_not_live_is_not_suspended) {
  const DevicePtr ptr = tagged(kPage);
  expect_error(suspension().is_suspended(ptr + 64 * kPage), ErrorCode::invalid_pointer,
               {hex(ptr + 64 * kPage) + " is not inside a live allocation"});
  expect_error(suspension().host_copy({ptr + 64 * kPage, 1}), ErrorCode::invalid_pointer,
               {hex(ptr + 64 * kPage) + " is not inside a live allocation"});
  world.deallocate(ptr, a);
}

}  // namespace
}  // namespace vpmm::test
