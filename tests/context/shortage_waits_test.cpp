// SPDX-License-Identifier: Apache-2.0
// context: for what the host waits when memory runs out, and when it stops.
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

enum class WaitLimit {
  capacity,
  others
};  // the pool's own, or what other processes leave of the GPU

constexpr Bytes kDevicePages = 40;  // all that there is
constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::uint64_t kFastNs = 5 * kMillisecondNs;
constexpr std::uint64_t kSlowNs = 10'000 * kMillisecondNs;

WorldOptions limited(WaitLimit limit) {
  WorldOptions options = page_world();
  options.sim.capacity = 2 * kDevicePages * kPage;
  if (limit == WaitLimit::capacity)
    options.config.limits.capacity = kDevicePages * kPage;
  else
    options.sim.used_by_others = kDevicePages * kPage;
  return options;
}

class ShortageWaits : public ::testing::TestWithParam<WaitLimit> {
 protected:
  void free_behind_a_kernel(DevicePtr ptr, Bytes pages, StreamHandle stream,
                            std::uint64_t duration_ns) {
    world.use(ptr, pages * kPage, stream, duration_ns);
    world.deallocate(ptr, stream);
  }
  std::uint64_t time_of(Bytes pages) { return world.time_of(pages * kPage, std::nullopt); }

  HookedWorld world{limited(GetParam())};
  const StreamHandle slow = world.stream();
  const StreamHandle fast = world.stream();
};

// Nothing can move, for the number of mappings is at its limit; what is freed is complete only
// after a wait.
class WaitAtTheMappingLimit : public ::testing::TestWithParam<WaitLimit> {
 protected:
  static WorldOptions options() {
    WorldOptions options = limited(GetParam());
    options.config.limits.max_mappings = kDevicePages;
    return options;
  }
  HookedWorld world{options()};
};

TEST_P(WaitAtTheMappingLimit, is_followed_by_chunks_that_are_made_anew) {
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> pages;
  for (Bytes i = 0; i < kDevicePages; ++i) pages.push_back(world.allocate(kPage, stream));
  for (Bytes i = 0; i < kDevicePages; i += 2) {
    world.use(pages[i], kPage, stream, kFastNs / kDevicePages);
    world.deallocate(pages[i], stream);
  }
  world.allocate(kDevicePages / 2 * kPage, std::nullopt);
  EXPECT_EQ(world.statistics().chunks_released, kDevicePages / 2);
  EXPECT_EQ(world.statistics().chunks_moved, 0u);
  EXPECT_GT(world.statistics().host_waits, 0u);
}

INSTANTIATE_TEST_SUITE_P(, WaitAtTheMappingLimit,
                         ::testing::Values(WaitLimit::capacity, WaitLimit::others),
                         [](const auto& limit) {
                           return limit.param == WaitLimit::capacity ? "capacity" : "others";
                         });

// The slow stream's page has the older event; the fast one has all others.
class WhichWait : public ShortageWaits {
 protected:
  WhichWait() {
    const DevicePtr page = world.allocate(kPage, slow);
    others = world.allocate((kDevicePages - 1) * kPage, fast);
    free_behind_a_kernel(page, 1, slow, kSlowNs);
  }
  DevicePtr others{};
};

TEST_P(WhichWait, is_for_whichever_stream_is_done_first) {
  free_behind_a_kernel(others, kDevicePages - 1, fast, kFastNs);
  const std::uint64_t took = time_of(kDevicePages - 1);
  EXPECT_GT(took, kFastNs - kMillisecondNs);
  EXPECT_LT(took, kFastNs + kMillisecondNs);
  EXPECT_EQ(world.sim.stream_query(slow), CuResult::not_ready);
  EXPECT_EQ(world.statistics().host_waits, 1u);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
}

TEST_P(WhichWait, goes_on_for_the_slow_stream_where_only_that_is_enough) {
  free_behind_a_kernel(others, kDevicePages - 1, fast, kFastNs);
  const std::uint64_t took = time_of(kDevicePages);
  EXPECT_GT(took, kSlowNs - kMillisecondNs);
  EXPECT_LT(took, kSlowNs + kMillisecondNs);
  EXPECT_EQ(world.statistics().host_waits, 2u);
}

// Single pages that the pool gives back for it.
TEST(WaitForOneChunk, ends_with_what_is_enough_for_a_chunk_made_anew) {
  WorldOptions options = page_by_page_world();
  options.config.prefer = settings::Prefer::footprint;  // each free of a page has an event
  options.config.limits.capacity = 8 * kPage;
  HookedWorld world(options);
  const StreamHandle streams[] = {world.stream(), world.stream()};
  for (const StreamHandle stream : streams) {
    std::vector<DevicePtr> pages;
    for (int i = 0; i < 4; ++i) pages.push_back(world.allocate(kPage, stream));
    for (const DevicePtr page : pages) {
      world.use(page, kPage, stream, (stream == streams[0] ? kSlowNs : kFastNs) / 4);
      world.deallocate(page, stream);
    }
  }
  pool::Request request{4 * kPage, 0, std::nullopt};
  request.one_chunk = true;
  const std::uint64_t begin = world.sim.now_ns();
  EXPECT_TRUE(world.pool->allocate(request).ok());
  EXPECT_LT(world.sim.now_ns() - begin, kFastNs + kMillisecondNs);
}

TEST_P(WhichWait, ends_with_what_somebody_frees_meanwhile) {
  world.hooks.on_sleep = [&] { world.on_another_thread([&] { world.deallocate(others, fast); }); };
  EXPECT_LT(time_of(kDevicePages - 1), kMillisecondNs);
}

// It goes on for that memory, which would not be there when the slow stream is done.
TEST_P(WhichWait, ends_with_a_free_that_was_deferred_meanwhile) {
  world.hooks.on_sleep = [&] { world.pool->deallocate_deferred(others); };
  time_of(kDevicePages - 1);
  EXPECT_EQ(world.statistics().host_waits, 2u);
}

TEST_P(WhichWait, ends_with_what_a_call_of_somebody_else_sees_complete) {
  free_behind_a_kernel(others, kDevicePages - 1, fast, kFastNs);
  world.hooks.on_sleep = [&] {
    world.on_another_thread([&] {
      world.sim.advance_host_ns(kFastNs);
      EXPECT_TRUE(world.pool->limits().trim(kDevicePages * kPage).ok());
    });
  };
  EXPECT_LT(time_of(kDevicePages - 1), kFastNs + kMillisecondNs);
}

// During a capture no event of the whole context may stand for what was freed without a stream, so
// nothing ever tells.
TEST_P(WhichWait, ends_when_no_event_is_left_that_could_help) {
  ASSERT_TRUE(world.pool->streams().capture_begin().ok());
  world.use(others, (kDevicePages - 1) * kPage, fast, kFastNs);
  world.deallocate(others, std::nullopt);
  expect_error(world.pool->allocate({kDevicePages * kPage, 0, std::nullopt}),
               ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().host_waits, 1u);
  EXPECT_EQ(world.statistics().pending_bytes, (kDevicePages - 1) * kPage);
  ASSERT_TRUE(world.pool->streams().capture_end().ok());
  world.allocate(kDevicePages * kPage, std::nullopt);
}

TEST_P(WhichWait, of_which_a_query_fails_ends_the_request_and_nothing_is_lost) {
  free_behind_a_kernel(others, kDevicePages - 1, fast, kFastNs);
  world.hooks.on_sleep = [&] {
    world.faults.set_plan(FaultPlan{{Call::event_query}, 1, CuResult::unknown});
  };
  expect_error(world.pool->allocate({(kDevicePages - 1) * kPage, 0, std::nullopt}),
               ErrorCode::driver_failed, {"event_query"});
  world.faults.clear_plan();
  world.allocate((kDevicePages - 1) * kPage, std::nullopt);
}

TEST_P(ShortageWaits, a_request_in_an_arena_that_ends_or_sleeps_meanwhile_says_so) {
  world.allocate((kDevicePages - 2) * kPage, std::nullopt);
  for (const bool sleeps : {true, false}) {
    const pool::ArenaId arena = world.pool->arenas().create({}).value();
    const auto allocate = [&](Bytes bytes, StreamHandle on) {
      return world.pool->allocate({bytes, 0, on, arena});
    };
    const DevicePtr busy = allocate(kPage / 2, slow).value();
    const DevicePtr live = allocate(kPage / 2, slow).value();
    world.use(busy, kPage / 2, slow, kFastNs);
    world.deallocate(busy, slow);
    const DevicePtr last = world.allocate(kPage, std::nullopt);
    world.hooks.on_sleep = [&] {
      world.on_another_thread([&] {
        const auto changed = sleeps ? world.pool->suspension().suspend(arena, {})
                                    : world.pool->arenas().release(arena);
        EXPECT_TRUE(changed.ok()) << message_of(changed);
      });
    };
    expect_error(allocate(kPage / 4, fast),
                 sleeps ? ErrorCode::suspended : ErrorCode::invalid_argument,
                 {sleeps ? "is suspended" : "was released"});
    world.deallocate(live, slow);
    world.deallocate(last, std::nullopt);
    EXPECT_EQ(world.pool->arenas().release(arena).ok(), sleeps);
  }
}

// An arena with two blocks in its only page; the slow stream still uses the one that is freed.
class WaitInAnArena : public ShortageWaits {
 protected:
  WaitInAnArena() {
    world.allocate((kDevicePages - 1) * kPage, std::nullopt);
    world.use(busy, kPage / 2, slow, kFastNs);
  }
  Result<DevicePtr> try_to_allocate(StreamHandle on) {
    return world.pool->allocate({kPage / 2, 0, on, arena});
  }

  const pool::ArenaId arena = world.pool->arenas().create({}).value();
  const DevicePtr busy = try_to_allocate(slow).value();
  const DevicePtr live = try_to_allocate(slow).value();
};

// That free does not help yet.
TEST_P(WaitInAnArena, goes_on_after_a_free_that_was_deferred_meanwhile) {
  world.deallocate(busy, slow);
  world.hooks.on_sleep = [&] { world.pool->deallocate_deferred(live); };
  const std::uint64_t began_ns = world.sim.now_ns();
  const Result<DevicePtr> block = try_to_allocate(fast);
  EXPECT_TRUE(block.ok()) << message_of(block);
  EXPECT_GT(world.sim.now_ns() - began_ns, kFastNs - kMillisecondNs);
}

// Nothing larger than the request would be shared with others.
TEST_P(WaitInAnArena, for_whole_pages_asks_the_driver_in_vain_no_more_than_once) {
  const std::uint64_t before = world.calls.count(Call::mem_create);
  expect_error(world.pool->allocate({20 * kPage, 0, slow, arena}), ErrorCode::out_of_memory);
  EXPECT_LE(world.calls.count(Call::mem_create), before + 1);
}

TEST_P(WaitInAnArena, ends_when_no_event_is_left_that_could_help) {
  ASSERT_TRUE(world.pool->streams().capture_begin().ok());
  world.deallocate(busy, std::nullopt);
  expect_error(try_to_allocate(fast), ErrorCode::out_of_memory);
  ASSERT_TRUE(world.pool->streams().capture_end().ok());
  EXPECT_TRUE(try_to_allocate(fast).ok());
}

INSTANTIATE_TEST_SUITE_P(, WaitInAnArena, ::testing::Values(WaitLimit::capacity, WaitLimit::others),
                         [](const auto& limit) {
                           return limit.param == WaitLimit::capacity ? "capacity" : "others";
                         });

TEST_P(ShortageWaits, the_first_of_two_frees_of_a_stream_is_enough) {
  const DevicePtr first = world.allocate(kPage, slow);
  world.allocate(kPage,
                 slow);  // between them, so that they do not become one range with the later number
  const DevicePtr second = world.allocate((kDevicePages - 2) * kPage, slow);
  free_behind_a_kernel(first, 1, slow, kFastNs);
  free_behind_a_kernel(second, kDevicePages - 2, slow, kSlowNs);
  EXPECT_LT(time_of(1), kFastNs + kMillisecondNs);
  EXPECT_EQ(world.statistics().host_waits, 1u);
  EXPECT_EQ(world.sim.stream_query(slow), CuResult::not_ready);
}

// Pages, parts of pages, and as much of both.
TEST_P(ShortageWaits, are_for_memory_of_any_kind) {
  for (const auto& [pages, parts] : {std::pair(1, 0), std::pair(0, 8), std::pair(1, 8)}) {
    HookedWorld other(limited(GetParam()));
    const StreamHandle stream = other.stream();
    std::vector<DevicePtr> freed;
    for (int i = 0; i < pages; ++i) freed.push_back(other.allocate(kPage, stream));
    for (int i = 0; i < parts; ++i) freed.push_back(other.allocate(kPage / 8, stream));
    Bytes others = 0;
    while (others < kDevicePages && other.pool->allocate({kPage, 0, stream}).ok()) ++others;
    EXPECT_LT(others, kDevicePages);
    for (const DevicePtr ptr : freed) {
      other.use(ptr, kPage / 8, stream, kFastNs);
      other.deallocate(ptr, std::nullopt);
    }
    EXPECT_GT(other.time_of(kPage, std::nullopt), kFastNs / 2) << pages << " " << parts;
  }
}

TEST_P(ShortageWaits, nobody_waits_for_what_is_complete) {
  const DevicePtr page = world.allocate(kPage, slow);
  world.allocate((kDevicePages - 1) * kPage, slow);
  free_behind_a_kernel(page, 1, slow, kFastNs);
  world.sim.run_until_idle();
  EXPECT_LT(time_of(1), kMillisecondNs);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST_P(ShortageWaits, nothing_is_proven_and_nobody_waits_where_nothing_is_pending) {
  world.allocate(kDevicePages * kPage, slow);
  const auto asked = [&] {
    return world.calls.count(Call::event_record) + world.calls.count(Call::ctx_record_event) +
           world.calls.count(Call::ctx_synchronize) + world.calls.count(Call::event_query);
  };
  const std::uint64_t before = asked();
  expect_error(world.pool->allocate({kPage, 0, fast}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked(), before);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

// Two streams are done, and the query for one of them fails.
TEST_P(ShortageWaits, what_was_learned_before_a_query_failed_is_used) {
  const DevicePtr first = world.allocate(kDevicePages / 2 * kPage, slow);
  const DevicePtr second = world.allocate(kDevicePages / 2 * kPage, fast);
  free_behind_a_kernel(first, kDevicePages / 2, slow, kFastNs);
  free_behind_a_kernel(second, kDevicePages / 2, fast, kFastNs);
  world.sim.run_until_idle();
  world.faults.set_plan(FaultPlan{{Call::event_query}, 2, CuResult::unknown});
  expect_error(world.pool->allocate({kDevicePages * kPage, 0, std::nullopt}),
               ErrorCode::driver_failed);
  EXPECT_EQ(world.statistics().pending_bytes, kDevicePages / 2 * kPage);
}

TEST_P(ShortageWaits, the_report_names_the_stream_of_what_is_pending) {
  world.allocate(2 * kPage, slow);
  const DevicePtr rest = world.allocate((kDevicePages - 2) * kPage, fast);
  ASSERT_TRUE(world.pool->streams().capture_begin().ok());
  world.deallocate(rest, std::nullopt);
  expect_error(world.pool->allocate({kDevicePages * kPage, 0, std::nullopt}),
               ErrorCode::out_of_memory,
               {"out of device memory: asked for 80 MiB; ", "live       4 MiB in 1 allocation, ",
                "pending    76 MiB of what is free is still used by work that was queued before; "
                "any stream: 76 MiB",
                "end the stream capture that forbids to wait for the work of any stream"});
  ASSERT_TRUE(world.pool->streams().capture_end().ok());
}

// With this setting no event tells of what was freed without a stream, so the host waits for all
// work.
TEST_P(ShortageWaits, a_wait_for_all_work_that_fails_refuses_the_request_and_nothing_is_lost) {
  WorldOptions options = limited(GetParam());
  options.config.streams.any_stream = settings::AnyStreamOrder::park;
  HookedWorld parking(options);
  const StreamHandle stream = parking.stream();
  const DevicePtr all = parking.allocate(kDevicePages * kPage, stream);
  parking.use(all, kDevicePages * kPage, stream, kFastNs);
  parking.deallocate(all, std::nullopt);
  parking.faults.set_plan(FaultPlan{{Call::ctx_synchronize}, 1, CuResult::unknown});
  expect_error(parking.pool->allocate({kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(parking.faults.fired(), 1u);
  parking.faults.clear_plan();
  parking.allocate(kPage, stream);
}

// The plan of another thread has the idle pages cached, and they come back because it fails.
TEST_P(ShortageWaits, plans_in_flight_are_waited_for) {
  std::vector<DevicePtr> all;
  for (Bytes i = 0; i < kDevicePages; ++i) all.push_back(world.allocate(kPage, slow));
  for (std::size_t i = 0; i < all.size(); i += 2) world.deallocate(all[i], slow);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  Result<DevicePtr> second = Error{ErrorCode::out_of_memory, {}};
  std::atomic<bool> has_begun{false};
  std::thread thread;
  world.hooks.on[Call::stream_is_capturing] = [&, first = std::this_thread::get_id()] {
    has_begun = has_begun || std::this_thread::get_id() != first;
    return CuResult::success;
  };
  world.hooks.on[Call::mem_map] = [&, first = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != first) return CuResult::success;
    if (!thread.joinable()) {
      thread = std::thread([&] {
        EXPECT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
        second = world.pool->allocate({kPage, 0, fast});
      });
      while (!has_begun) std::this_thread::yield();
      world.statistics();  // the other has the lock until it waits
    }
    return CuResult::out_of_memory;
  };
  expect_error(world.pool->allocate({kDevicePages / 2 * kPage, 0, slow}), ErrorCode::out_of_memory);
  thread.join();
  EXPECT_TRUE(second.ok()) << message_of(second);
}

std::string name_of_limit(const ::testing::TestParamInfo<WaitLimit>& tested) {
  return tested.param == WaitLimit::capacity ? "capacity" : "others";
}
INSTANTIATE_TEST_SUITE_P(, ShortageWaits, ::testing::Values(WaitLimit::capacity, WaitLimit::others),
                         name_of_limit);
INSTANTIATE_TEST_SUITE_P(, WhichWait, ::testing::Values(WaitLimit::capacity, WaitLimit::others),
                         name_of_limit);

TEST_P(ShortageWaits, the_report_names_small_memory_that_is_pending) {
  std::vector<DevicePtr> small;
  for (int i = 0; i < 4; ++i) small.push_back(world.allocate(256 * kKiB, slow));
  ASSERT_TRUE(world.pool->streams().capture_begin().ok());
  for (const DevicePtr ptr : small) world.deallocate(ptr, std::nullopt);
  expect_error(world.pool->allocate({kDevicePages * kPage, 0, std::nullopt}),
               ErrorCode::out_of_memory, {"any stream: 1 MiB"});
  ASSERT_TRUE(world.pool->streams().capture_end().ok());
}

TEST_P(WaitAtTheMappingLimit, is_named_in_the_report) {
  for (Bytes i = 0; i < kDevicePages; ++i) world.allocate(kPage, std::nullopt);
  expect_error(world.pool->allocate({kPage, 0, std::nullopt}), ErrorCode::out_of_memory,
               {"raise VPMM_MAX_MAPPINGS: at 40 mappings"});
}

}  // namespace
}  // namespace vpmm::test
