// SPDX-License-Identifier: Apache-2.0
// context: the pool knows live memory of every kind by its address, and none that was freed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/scope_exit.hpp"
#include "fault/no_memory.hpp"
#include "support/held.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// Kinds of memory, by the part of the pool that knows it.
struct MemoryKind {
  const char* name;
  Bytes bytes;
  enum class Of { pool, arena, external, driver, guard, graph } of = Of::pool;
};
void PrintTo(const MemoryKind& kind, std::ostream* out) { *out << kind.name; }
using Of = MemoryKind::Of;

class LiveMemory : public ::testing::TestWithParam<MemoryKind> {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    if (GetParam().of == Of::driver) options.sim.vmm_supported = false;
    if (GetParam().of == Of::guard) options.config.checks.guard_every = 1;
    return options;
  }
  void SetUp() override {
    if (GetParam().of == Of::arena) arena = make_arena(world);
    if (GetParam().of == Of::external) {
      arena = make_arena(world, kExternal);
      outside = user_memory(world, 8 * kPage);
      add_memory(world, arena, outside);
    }
    if (GetParam().of == Of::graph) begin_capture(world, a, driver::CaptureMode::relaxed);
    ptr = arena == ArenaId{} ? world.allocate(bytes, a) : allocate_in(world, arena, bytes, a);
  }
  void TearDown() override {
    if (GetParam().of == Of::graph) destroy(world, end_capture(world, a));
    if (outside.empty()) return;
    world.wait();
    release(world, arena);
    free_user_memory(world, outside);
  }
  std::uint64_t mistakes() { return world.statistics().caller_mistakes; }

  const Bytes bytes = GetParam().bytes;
  PoolWorld world{options()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  ArenaId arena{};
  AddressRange outside;
  DevicePtr ptr{};
};

INSTANTIATE_TEST_SUITE_P(, LiveMemory,
                         ::testing::Values(MemoryKind{"block", 1000}, MemoryKind{"span", 300'000},
                                           MemoryKind{"cached_pages", 2 * kPage},
                                           MemoryKind{"large", 6 * kPage},
                                           MemoryKind{"arena", 3 * kPage, Of::arena},
                                           MemoryKind{"external", 3 * kPage, Of::external},
                                           MemoryKind{"driver", 1000, Of::driver},
                                           MemoryKind{"guard", 1000, Of::guard},
                                           MemoryKind{"graph", 3 * kPage, Of::graph}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(LiveMemory, is_known_from_its_first_byte_to_its_last_until_it_is_freed) {
  for (const Bytes offset : {Bytes{0}, Bytes{1}, bytes - 1}) {
    const auto info = world.pool().query(ptr + offset);
    ASSERT_TRUE(info.ok()) << message_of(info);
    EXPECT_EQ(info.value().begin, ptr);
    EXPECT_EQ(info.value().requested, bytes);
    EXPECT_GE(info.value().usable, bytes);
    EXPECT_LE(info.value().usable, bytes + bytes / 8);
    EXPECT_EQ(info.value().arena, arena);
  }
  world.deallocate(ptr, a);
  for (const Bytes offset : {Bytes{0}, Bytes{1}, bytes - 1})
    expect_error(world.pool().query(ptr + offset), ErrorCode::invalid_pointer, {hex(ptr + offset)});
}

TEST_P(LiveMemory, is_freed_and_used_by_its_first_address_only) {
  const std::uint64_t before = mistakes();
  const std::vector<std::string> inside{hex(ptr + 1),
                                        "inside the allocation that starts at " + hex(ptr)};
  expect_error(world.pool().deallocate(ptr + 1, a), ErrorCode::invalid_pointer, inside);
  expect_error(world.pool().record_use(ptr + 1, b), ErrorCode::invalid_pointer, inside);
  EXPECT_EQ(mistakes(), before + 2);
  EXPECT_TRUE(world.pool().record_use(ptr, b).ok());
  world.deallocate(ptr, a);
  EXPECT_EQ(mistakes(), before + 2);
}

TEST_P(LiveMemory, is_not_there_any_more_for_a_second_free_or_a_use) {
  world.deallocate(ptr, a);
  const std::uint64_t before = mistakes();
  expect_error(world.pool().deallocate(ptr, a), ErrorCode::invalid_pointer,
               {hex(ptr), "is not a live allocation"});
  expect_error(world.pool().deallocate(ptr, std::nullopt), ErrorCode::invalid_pointer);
  expect_error(world.pool().record_use(ptr, b), ErrorCode::invalid_pointer,
               {hex(ptr), "is not a live allocation"});
  EXPECT_EQ(mistakes(), before + 3);
  EXPECT_EQ(world.statistics().live_allocations, GetParam().of == Of::graph ? 1u : 0u);
}

TEST(LiveMemoryOfOthers, that_its_user_freed_is_nobodys_here) {
  for (const MemoryKind& kind : {MemoryKind{"block", 1000}, MemoryKind{"large", 6 * kPage},
                                 MemoryKind{"arena", 3 * kPage, Of::arena}}) {
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    const ArenaId arena = kind.of == Of::arena ? make_arena(world) : ArenaId{};
    const DevicePtr ptr = world.pool().allocate({kind.bytes, 0, stream, arena}).value();
    const auto shared = world.pool().sharing().share({ptr, kind.bytes});
    ASSERT_TRUE(shared.ok()) << message_of(shared);
    EXPECT_TRUE(world.pool().query(ptr).ok());
    world.deallocate(ptr, stream);
    EXPECT_GT(world.statistics().leased_bytes, 0u);
    expect_error(world.pool().query(ptr), ErrorCode::invalid_pointer);
    expect_error(world.pool().record_use(ptr, stream), ErrorCode::invalid_pointer);
    expect_error(world.pool().deallocate(ptr, stream), ErrorCode::invalid_pointer);
    world.pool().sharing().end_lease(shared.value().share, context::Holder::handle);
    EXPECT_EQ(world.statistics().leased_bytes, 0u);
  }
}

// --- on another thread

constexpr std::chrono::seconds kLong{20};  // nothing keeps the other thread waiting

// A warm free of another thread ends it between the look and the entry of the use.
TEST(LiveMemoryOfTwoThreads, that_is_freed_while_its_use_is_noted_is_an_error_of_the_program) {
  for (const Bytes bytes : {Bytes{1000}, Bytes{300'000}, 2 * kPage}) {
    PoolWorld world(adaptive_world());
    const StreamHandle a = world.stream(), b = world.stream();
    world.deallocate(world.allocate(bytes, a), a);
    const DevicePtr ptr = world.allocate(bytes, a);
    ASSERT_TRUE(world.pool().record_use(world.allocate(1000, b), b).ok());  // b is known
    bool is_freed = false;
    Held held(
        "what is used elsewhere was found",
        [&] { is_freed = world.pool().deallocate_if_ready(ptr, a); }, kLong);
    const auto used = world.pool().record_use(ptr, b);
    ASSERT_TRUE(held.end());
    ASSERT_TRUE(held.is_over());
    ASSERT_TRUE(is_freed) << bytes;
    expect_error(used, ErrorCode::invalid_pointer, {hex(ptr), "is not a live allocation"});
    EXPECT_EQ(world.statistics().caller_mistakes, 1u);
  }
}

// VPMM_FILL. The free names an address that the program freed before.
TEST(LiveMemoryOfTwoThreads, that_is_freed_before_it_was_filled_is_not_filled) {
  WorldOptions options = adaptive_world();
  options.config.checks.fill_new = true;
  PoolWorld world(options);
  constexpr Bytes kAsked = 20 * kKiB;
  constexpr Bytes kAlignment = 16 * kKiB;  // which no warm call serves
  const StreamHandle stream = world.stream();
  const std::string path =
      ::testing::TempDir() + "vpmm_filled_" + std::to_string(getpid()) + ".vpmmrec";
  const ScopeExit gone([&] { std::remove(path.c_str()); });
  const DevicePtr stale = world.pool().allocate({kAsked, kAlignment, stream}).value();
  ASSERT_TRUE(world.pool().deallocate(stale, stream).ok());
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  const std::uint64_t fills = world.calls().count(Call::memset_d8_async);
  ASSERT_EQ(fills, 1u);
  bool is_freed = false;
  Held held(
      "whose an address is was read, what is there was not",
      [&] { is_freed = world.pool().deallocate(stale, stream).ok(); }, kLong);
  const auto made = world.pool().allocate({kAsked, kAlignment, stream});
  ASSERT_TRUE(held.end());
  ASSERT_TRUE(held.is_over());
  ASSERT_TRUE(made.ok() && made.value() == stale && is_freed);
  EXPECT_EQ(world.calls().count(Call::memset_d8_async), fills);
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
}

// --- deferred frees

TEST(DeferredFrees, of_much_memory_are_proven_by_the_call_that_carries_them_out) {
  using Calls = std::function<bool(PoolWorld&)>;
  const Calls kinds[] = {
      [](PoolWorld& world) { return world.pool().limits().memory_info().ok(); },
      [](PoolWorld& world) { return world.pool().limits().trim(~Bytes{0}).ok(); },
      [](PoolWorld& world) {
        return world.pool().allocate({1000, 0, world.stream()}).ok();
      }};
  for (const Calls& call : kinds) {
    for (const Bytes bytes : {32 * kPage, Bytes{1000}}) {
      PoolWorld world(page_by_page_world());
      const StreamHandle stream = world.stream();
      const DevicePtr ptr = world.allocate(bytes, stream);
      const std::uint64_t before = world.calls().count(Call::ctx_record_event);
      world.pool().deallocate_deferred(ptr);
      EXPECT_TRUE(call(world));
      EXPECT_EQ(world.statistics().deallocations, 1u);
      const bool is_trim = &call == &kinds[1];
      EXPECT_EQ(world.calls().count(Call::ctx_record_event) - before,
                bytes == 1000 && !is_trim ? 0u : 1u);
    }
  }
}

TEST(DeferredFrees, wait_for_a_bounded_number_of_requests_that_only_try) {
  PoolWorld world(adaptive_world());
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 320; ++i) blocks.push_back(world.allocate(1000, std::nullopt));
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (i % 16 != 0) world.deallocate(blocks[i], std::nullopt);  // all slabs stay
  ASSERT_EQ(world.sim().ctx_synchronize(), CuResult::success);
  const StreamHandle stream = world.stream();
  const auto served = [&] {
    for (int i = 0;; ++i)
      if (i == 100 || is_null(world.pool().allocate_if_ready(1000, 0))) return i;
  };
  for (int round = 0; round < 2; ++round) {
    const DevicePtr ptr = world.allocate(6 * kPage, stream);
    const std::uint64_t before = world.statistics().deallocations;
    world.pool().deallocate_deferred(ptr);
    for (int i = 0; i < 100; ++i)
      EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 4 * kKiB))) << "no cache serves it";
    EXPECT_EQ(served(), 64) << round;
    EXPECT_EQ(world.statistics().deallocations, before);
    EXPECT_TRUE(world.pool().limits().memory_info().ok());
    EXPECT_EQ(world.statistics().deallocations, before + 1);
  }
  EXPECT_EQ(served(), 100) << "nothing is deferred";
}

// A finalizer's free needs no host memory: the request provided for it.
TEST(DeferredFrees, of_all_that_lives_need_no_host_memory) {
  WorldOptions stream_ordered = page_world();
  stream_ordered.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions guarded = adaptive_world();
  guarded.config.checks.guard_every = 2;
  for (const WorldOptions& options : {adaptive_world(), stream_ordered, guarded}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const ArenaId arena = make_arena(world);
    std::vector<DevicePtr> all;
    for (int i = 0; i < 10; ++i)
      for (const Bytes bytes : {Bytes{1000}, 3 * kPage}) {
        all.push_back(world.allocate(bytes, stream));
        all.push_back(allocate_in(world, arena, bytes, stream));
      }
    {
      const fault::NoMemory none(fault::NoMemory::Reserve::promised);
      for (const DevicePtr ptr : all) world.pool().deallocate_deferred(ptr);
    }
    EXPECT_TRUE(world.pool().limits().memory_info().ok());
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

}  // namespace
}  // namespace vpmm::test
