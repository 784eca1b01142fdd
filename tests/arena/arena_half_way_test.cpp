// SPDX-License-Identifier: Apache-2.0
// arena: calls that find an arena otherwise than it was before they waited, and what a call that is
// half-way leaves alone.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fault/no_memory.hpp"
#include "support/event_log.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr context::SuspendHow kToHost{std::nullopt, true, true, std::nullopt};

class HalfWay : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = page_by_page_world();
    options.config.limits.capacity = 8 * kPage;
    return options;
  }
  // Once, on another thread, during the next call of this kind.
  void at_next(Call call, std::function<void()> act) {
    world.hooks.on[call] = [this, act = std::move(act), is_over = false]() mutable {
      if (!std::exchange(is_over, true)) world.on_another_thread(act);
      return CuResult::success;
    };
  }
  DevicePtr take(Bytes bytes, pool::Stream stream) {
    const auto made = world.pool->allocate({bytes, 0, stream, arena});
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }

  HookedWorld world{options()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena = world.pool->arenas().create({}).value();
};

// The work on all memory there is goes on, so the request sleeps.
TEST_F(HalfWay, a_request_that_waited_for_a_block_meets_the_arena_as_it_is_then) {
  struct Change {
    const char* name;
    std::function<void()> act;
    ErrorCode code;
    const char* words;
  };
  const Change changes[] = {
      {"released", [&] { EXPECT_TRUE(world.pool->arenas().release(arena).ok()); },
       ErrorCode::invalid_argument, "released"},
      {"suspended", [&] { EXPECT_TRUE(world.pool->suspension().suspend(arena, kToHost).ok()); },
       ErrorCode::suspended, "is suspended"},
  };
  for (const auto& [name, act, code, words] : changes) {
    SCOPED_TRACE(name);
    arena = world.pool->arenas().create({true, true, 0}).value();
    const DevicePtr whole = take(8 * kPage, a);  // one chunk, which stays while a block lives
    world.deallocate(whole, a);
    const DevicePtr live = take(kPage, a);
    const DevicePtr freed = take(7 * kPage, a);
    ASSERT_TRUE(world.pool->record_use(freed, b).ok());
    ASSERT_EQ(world.sim.ctx_synchronize(), CuResult::success);
    world.use(freed, 7 * kPage, b, kLongNs);
    world.deallocate(freed, a);
    const std::uint64_t waits = world.statistics().host_waits;
    bool has_acted = false;
    std::function<void()> on_sleep = [&] {
      if (world.statistics().host_waits == waits) {
        world.hooks.on_sleep = on_sleep;
        return;
      }
      world.on_another_thread(act);
      has_acted = true;
    };
    world.hooks.on_sleep = on_sleep;
    expect_error(world.pool->allocate({6 * kPage, 0, a, arena}), code, {words});
    world.hooks.on_sleep = nullptr;
    EXPECT_TRUE(has_acted);
    EXPECT_EQ(world.pool->reports().validate(), "");
    world.deallocate(live, a);
    static_cast<void>(world.pool->arenas().release(arena));
    EXPECT_EQ(world.pool->reports().validate(), "");
  }
}

TEST_F(HalfWay, memory_of_a_caller_stays_in_an_arena_that_was_pinned_during_the_wait) {
  const ArenaId external = world.pool->arenas().create(kExternal).value();
  DevicePtr begin{};
  ASSERT_EQ(world.sim.mem_alloc(kPage, begin), CuResult::success);
  ASSERT_TRUE(world.pool->arenas().add(external, {begin, kPage}).ok());
  at_next(Call::ctx_synchronize, [&] { EXPECT_TRUE(world.pool->arenas().pin(external).ok()); });
  const auto taken = world.pool->arenas().take(external);
  ASSERT_TRUE(taken.ok()) << message_of(taken);
  EXPECT_TRUE(taken.value().empty()) << "graphs use it";
  EXPECT_GE(world.hooks.counts[Call::ctx_synchronize], 1u);
  EXPECT_TRUE(world.pool->arenas().release(external).ok());
  EXPECT_EQ(world.sim.mem_free(begin), CuResult::success);
}

TEST_F(HalfWay, memory_that_is_copied_goes_neither_with_a_trim_nor_to_others) {
  EventLog log(*world.pool);
  const DevicePtr whole = take(4 * kPage, a);
  world.deallocate(whole, a);
  const DevicePtr live = take(kPage + 1000, a);
  ASSERT_EQ(live, whole);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  bool has_tried = false;
  at_next(Call::memcpy_device_to_host_async, [&] {
    const auto trimmed = world.pool->arenas().trim(arena);
    ASSERT_TRUE(trimmed.ok()) << message_of(trimmed);
    EXPECT_EQ(trimmed.value(), 0u) << "two chunks are idle";
    EXPECT_TRUE(world.pool->limits().trim(0).ok());
    expect_error(world.pool->allocate({6 * kPage, 0, b}), ErrorCode::out_of_memory);
    EXPECT_TRUE(log.of(EventKind::arena_shrink).empty());
    EXPECT_EQ(world.statistics().mapped_bytes, 4 * kPage);
    has_tried = true;
  });
  const auto suspended = world.pool->suspension().suspend(arena, kToHost);
  ASSERT_TRUE(suspended.ok()) << message_of(suspended);
  EXPECT_TRUE(has_tried);
  EXPECT_EQ(world.statistics().suspended_bytes, 4 * kPage);
  const auto resumed = world.pool->suspension().resume(arena, {});
  ASSERT_TRUE(resumed.ok()) << message_of(resumed);
  EXPECT_EQ(world.pool->arenas().trim(arena).value(), 2 * kPage);
  world.deallocate(live, a);
}

// --- without host memory

// Host memory is left for one call, and for no division of a stretch.
class HostMemoryOfOneCall {
 public:
  HostMemoryOfOneCall() {
    std::size_t kept = 0;
    while (promised_[kept].emplace().is_kept()) ++kept;
    promised_[kept - 1].reset();
  }
  HostMemoryOfOneCall(const HostMemoryOfOneCall&) = delete;
  HostMemoryOfOneCall& operator=(const HostMemoryOfOneCall&) = delete;

 private:
  const fault::NoMemory none_{fault::NoMemory::Reserve::left};
  std::array<std::optional<HostPromise>, 64> promised_;
};

class WithoutHostMemory : public ::testing::Test {
 protected:
  WithoutHostMemory() {
    driver::ContextHandle primary{};
    EXPECT_EQ(sim.init(), CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(0, primary), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(primary), CuResult::success);
    EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, a), CuResult::success);
    auto created = context::Context::create(exempt, 0, page_world().config);
    EXPECT_TRUE(created.ok()) << message_of(created);
    pool = std::move(created).value();
  }
  DevicePtr take(ArenaId arena, Bytes bytes) {
    const auto made = pool->allocate({bytes, 0, a, arena});
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }
  void free(DevicePtr ptr) {
    EXPECT_TRUE(pool->deallocate(ptr, a).ok());
    EXPECT_EQ(pool->reports().validate(), "");
  }

  driver::sim::SimDriver sim;
  fault::ExemptDriver exempt{sim};
  std::unique_ptr<context::Context> pool;
  StreamHandle a{};
};

TEST_F(WithoutHostMemory, an_allocation_with_a_stretch_of_its_own_has_all_of_it) {
  const ArenaId arena = pool->arenas().create({false, false, 0}).value();
  const DevicePtr whole = take(arena, 7 * kPage);
  free(take(arena, kPage));  // so that there is host memory for the deferred frees of two
  free(whole);
  for (const bool is_short : {true, false}) {
    const auto made = [&] {
      std::optional<HostMemoryOfOneCall> none;
      if (is_short) none.emplace();
      return pool->allocate({4 * kPage, 0, a, arena});
    }();
    ASSERT_TRUE(made.ok()) << message_of(made);
    EXPECT_EQ(pool->query(made.value()).value().usable, (is_short ? 7 : 4) * kPage);
    free(made.value());
  }
}

TEST_F(WithoutHostMemory, idle_chunks_stay_beside_a_live_block) {
  const ArenaId arena = pool->arenas().create({}).value();
  free(take(arena, 4 * kPage));
  const DevicePtr live = take(arena, kPage);
  ASSERT_TRUE(pool->streams().synchronize().ok());
  {
    const HostMemoryOfOneCall none;
    const auto trimmed = pool->arenas().trim(arena);
    ASSERT_TRUE(trimmed.ok()) << message_of(trimmed);
    EXPECT_EQ(trimmed.value(), 0u);
  }
  EXPECT_EQ(pool->reports().validate(), "");
  EXPECT_EQ(pool->arenas().trim(arena).value(), 3 * kPage);
  free(live);
}

// --- numbers and tags

using ArenaNumbersDeathTest = ::testing::Test;

TEST_F(ArenaNumbersDeathTest, of_a_process_begin_above_none_and_ascend) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new program, which has made no arena
  EXPECT_EXIT(
      {
        PoolWorld world(page_by_page_world());
        std::uint64_t before = static_cast<std::uint64_t>(ArenaId{});
        bool ascends = true;
        for (int i = 0; i < 4; ++i) {
          const auto made = static_cast<std::uint64_t>(make_arena(world));
          ascends = ascends && made == before + 1;
          before = made;
        }
        std::exit(ascends ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ArenaWithoutTag, is_of_no_tag) {
  report::set_tag_name(1, "the first");
  PoolWorld world(page_by_page_world());
  const StreamHandle a = world.stream();
  const ArenaId arena = make_arena(world);
  allocate_in(world, arena, kPage, a);
  EXPECT_EQ(world.pool().suspension().info(1).amounts.held, 0u);
  ASSERT_TRUE(world.pool().suspension().suspend(arena, kToHost).ok());
  const auto refused = world.pool().allocate({kPage, 0, a, arena});
  expect_error(refused, ErrorCode::suspended, {"is suspended"});
  EXPECT_EQ(refused.error().message.find("of the tag"), std::string::npos)
      << refused.error().message;
  ASSERT_TRUE(world.pool().suspension().resume(arena, {}).ok());
}

}  // namespace
}  // namespace vpmm::test
