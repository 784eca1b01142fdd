// SPDX-License-Identifier: Apache-2.0
// tests/context: suspend and resume under every setting of chunks and pages, and in a context that
// breaks at any step.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "host_copy/host_memory.hpp"
#include "support/hooked_world.hpp"
#include "support/left_memory.hpp"

namespace vpmm::test {
namespace {

using context::SuspendHow;
using driver::Call;
using driver::CuResult;

constexpr std::uint32_t kTagOne = 31;
constexpr std::uint32_t kTagTwo = 32;
constexpr std::uint32_t kTagThree = 33;

struct PoolKind {
  const char* name = "";
  WorldOptions options;
};

std::vector<PoolKind> every_pool_kind() {
  std::vector<PoolKind> all;
  all.push_back({"adaptive", adaptive_world()});
  all.push_back({"pages", page_world()});
  all.push_back({"page_by_page", page_by_page_world()});
  all.push_back({"small_pages", page_world(4 * kMiB)});
  all.push_back({"large_pages", page_world(32 * kMiB)});
  all.push_back({"odd_pages", page_world(6 * kMiB)});
  PoolKind odd{"odd_pages_adaptive", adaptive_world()};
  odd.options.config.page_size = 6 * kMiB;
  all.push_back(odd);
  PoolKind isolated{"isolated", adaptive_world()};
  isolated.options.config.ipc_isolate = true;
  all.push_back(isolated);
  PoolKind ordered{"stream_ordered", adaptive_world()};
  ordered.options.config.small = settings::SmallRequests::stream_ordered;
  all.push_back(ordered);
  PoolKind few{"few_mappings", page_world()};
  few.options.config.limits.max_mappings = 48;
  all.push_back(few);
  return all;
}

class SuspendWorlds : public ::testing::TestWithParam<PoolKind> {};

TEST_P(SuspendWorlds, contents_addresses_and_figures_are_the_same_after_cycles) {
  HookedWorld world(GetParam().options);
  context::Suspension& suspension = world.pool->suspension();
  ASSERT_TRUE(suspension.make_suspendable(kTagOne, {true, false}).ok());
  ASSERT_TRUE(suspension.make_suspendable(kTagTwo, {true, true}).ok());
  const StreamHandle a = world.stream();
  struct Block {
    DevicePtr ptr{};
    Bytes bytes = 0;
    std::uint32_t tag = 0;
  };
  std::vector<Block> blocks;
  const auto allocate = [&](Bytes bytes, std::uint32_t tag, bool one_chunk) {
    const auto made = world.pool->allocate({bytes, 0, a, {}, tag, 0, one_chunk});
    ASSERT_TRUE(made.ok()) << message_of(made);
    blocks.push_back({made.value(), bytes, tag});
    ASSERT_EQ(world.sim.stream_synchronize(a), CuResult::success);
    std::vector<std::uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), static_cast<std::uint8_t>(blocks.size()));
    ASSERT_EQ(world.sim.memcpy_host_to_device(made.value(), data.data(), bytes), CuResult::success);
  };
  for (int i = 0; i < 3; ++i) {
    allocate(1000 + static_cast<Bytes>(i), kTagOne, false);
    allocate(3 * kMiB, kTagTwo, false);
    allocate(7 * kMiB + 12345, kTagOne, false);
    allocate(5 * kMiB, 0, false);
    allocate(300 * kKiB, kTagTwo, false);
    allocate(2 * kMiB, kTagOne, i == 1);
  }
  const auto check = [&] {
    ASSERT_EQ(world.pool->reports().validate(), "");
    const observe::Statistics now = world.statistics();
    Bytes chunks = 0;
    for (const AddressRange& chunk : world.pool->reports().layout().chunks) chunks += chunk.size;
    EXPECT_EQ(now.mapped_bytes - now.stream_ordered_bytes, chunks);
    EXPECT_EQ(world.sim.census().physical_bytes, chunks + now.stream_ordered_bytes);
    EXPECT_LE(now.mappings, world.pool->config().limits.max_mappings);
  };
  check();
  const observe::Statistics awake = world.statistics();
  for (int i = 0; i < 6; ++i) {
    SuspendHow how;
    how.to_driver = i % 2 == 0;
    const auto slept = suspension.suspend(i < 3 ? 0 : kTagOne, how);
    ASSERT_TRUE(slept.ok()) << message_of(slept);
    check();
    // The second tag stays awake in the later cycles.
    const Bytes second = i < 3 ? 0 : 3 * (3 * kMiB + 300 * kKiB);
    EXPECT_EQ(world.statistics().live_bytes, 15 * kMiB + second);
    const auto woken = suspension.resume(0, {});
    ASSERT_TRUE(woken.ok()) << message_of(woken);
    check();
    EXPECT_EQ(world.statistics().live_bytes, awake.live_bytes);
    EXPECT_EQ(world.statistics().live_allocations, awake.live_allocations);
    EXPECT_EQ(world.statistics().suspended_bytes, 0u);
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      std::vector<std::uint8_t> data(blocks[k].bytes);
      ASSERT_EQ(world.sim.memcpy_device_to_host(data.data(), blocks[k].ptr, blocks[k].bytes),
                CuResult::success);
      std::vector<std::uint8_t> expected(blocks[k].bytes);
      std::iota(expected.begin(), expected.end(), static_cast<std::uint8_t>(k + 1));
      EXPECT_EQ(data, expected) << k;
    }
  }
  const observe::Statistics last = world.statistics();
  EXPECT_LE(last.mapped_bytes,
            awake.mapped_bytes + 16 * GetParam().options.config.page_size.value_or(2 * kMiB));
  for (const Block& block : blocks) world.deallocate(block.ptr, a);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
  ASSERT_TRUE(world.pool->limits().trim(0).ok());
}

INSTANTIATE_TEST_SUITE_P(Settings, SuspendWorlds, ::testing::ValuesIn(every_pool_kind()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(SuspendLimits, a_resume_maps_no_more_than_the_limit_of_mappings) {
  WorldOptions options = page_world();
  options.config.limits.max_mappings = 24;
  HookedWorld world(options);
  ASSERT_TRUE(world.pool->suspension().make_suspendable(kTagOne, {false, false}).ok());
  const StreamHandle a = world.stream();
  const auto ptr = world.pool->allocate({20 * kPage, 0, a, {}, kTagOne});
  ASSERT_TRUE(ptr.ok()) << message_of(ptr);
  for (const bool to_driver : {true, false, true}) {
    SuspendHow how;
    how.to_driver = to_driver;
    const auto slept = world.pool->suspension().suspend(kTagOne, how);
    ASSERT_TRUE(slept.ok()) << message_of(slept);
    const auto woke = world.pool->suspension().resume(kTagOne, {});
    ASSERT_TRUE(woke.ok()) << message_of(woke);
    EXPECT_LE(world.statistics().peak_mappings, 24u);
    EXPECT_EQ(world.pool->reports().validate(), "");
  }
  world.deallocate(ptr.value(), a);
}

// The chunks would be mapped twice for a moment.
TEST(SuspendLimits, near_the_limit_of_mappings_memory_goes_to_the_driver) {
  for (const std::uint64_t limit : {39u, 40u}) {
    WorldOptions options = page_world();
    options.config.limits.max_mappings = limit;
    HookedWorld world(options);
    ASSERT_TRUE(world.pool->suspension().make_suspendable(kTagOne, {false, false}).ok());
    const StreamHandle a = world.stream();
    std::vector<DevicePtr> pointers;
    for (int i = 0; i < 20; ++i) {
      const auto ptr = world.pool->allocate({kPage, 0, a, {}, kTagOne});
      ASSERT_TRUE(ptr.ok()) << message_of(ptr);
      pointers.push_back(ptr.value());
    }
    ASSERT_EQ(world.statistics().mappings, 20u);
    const auto slept = world.pool->suspension().suspend(kTagOne, {});
    ASSERT_TRUE(slept.ok()) << message_of(slept);
    EXPECT_EQ(world.statistics().mapped_bytes, limit == 40u ? 20 * kPage : 0u);
    EXPECT_LE(world.statistics().peak_mappings, limit);
    const auto woke = world.pool->suspension().resume(kTagOne, {});
    ASSERT_TRUE(woke.ok()) << message_of(woke);
    EXPECT_EQ(world.pool->reports().validate(), "");
    for (const DevicePtr ptr : pointers) world.deallocate(ptr, a);
  }
}

// A kept copy is to be replaced by a larger one, beside a tag whose kept copy is discarded.
TEST(SuspendShortage, without_host_memory_kept_and_prepared_copies_stay_as_they_are) {
  constexpr Bytes kSize = 3 * kMiB;
  enum class Shortage { limit, pinning };
  for (const Shortage shortage : {Shortage::limit, Shortage::pinning}) {
    HookedWorld world(adaptive_world());
    context::Suspension& suspension = world.pool->suspension();
    const StreamHandle a = world.stream();
    std::vector<DevicePtr> pointers;
    const auto allocate = [&](std::uint32_t tag) {
      const auto made = world.pool->allocate({kSize, 0, a, {}, tag});
      ASSERT_TRUE(made.ok()) << message_of(made);
      pointers.push_back(made.value());
      ASSERT_EQ(world.sim.stream_synchronize(a), CuResult::success);
      const std::vector<std::uint8_t> data(kSize, static_cast<std::uint8_t>(pointers.size()));
      ASSERT_EQ(world.sim.memcpy_host_to_device(pointers.back(), data.data(), kSize),
                CuResult::success);
    };
    const auto expect_readable = [&](std::size_t number) {
      const auto host = suspension.host_copy({pointers[number], kSize});
      ASSERT_TRUE(host.ok()) << message_of(host);
      const std::vector<std::byte> expected(kSize, std::byte(number + 1));
      EXPECT_EQ(std::vector<std::byte>(host.value(), host.value() + kSize), expected) << number;
    };
    for (const std::uint32_t tag : {kTagOne, kTagTwo, kTagThree})
      ASSERT_TRUE(suspension.make_suspendable(tag, {true, tag != kTagThree}).ok());
    allocate(kTagOne);
    allocate(kTagTwo);
    ASSERT_TRUE(suspension.suspend(0, {}).ok());
    ASSERT_TRUE(suspension.resume(0, {}).ok());
    allocate(kTagTwo);    // the copy of its tag is too small now
    allocate(kTagThree);  // its copy is prepared
    ASSERT_TRUE(suspension.prepare(kTagThree).ok());
    ASSERT_TRUE(suspension.make_suspendable(kTagOne, {false, false}).ok());
    const Bytes copies = world.statistics().host_copy_bytes;
    EXPECT_EQ(copies, 3 * kSize);
    if (shortage == Shortage::limit) host_copy::set_available_host_bytes(kMiB);
    if (shortage == Shortage::pinning)
      world.hooks.on[Call::mem_host_register] = [] { return CuResult::out_of_memory; };
    const auto done = suspension.suspend(0, {});
    host_copy::set_available_host_bytes(std::nullopt);
    world.hooks.on.clear();
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, shortage == Shortage::limit ? ErrorCode::host_out_of_memory
                                                             : ErrorCode::out_of_memory)
        << message_of(done);
    EXPECT_EQ(world.pool->reports().validate(), "");
    EXPECT_EQ(world.statistics().host_copy_bytes, copies);
    expect_readable(0);
    expect_readable(1);
    for (std::size_t number = 0; number < pointers.size(); ++number) {
      const auto sleeps = suspension.is_suspended(pointers[number]);
      ASSERT_TRUE(sleeps.ok()) << message_of(sleeps);
      EXPECT_FALSE(sleeps.value());
      std::vector<std::uint8_t> data(kSize);
      ASSERT_EQ(world.sim.memcpy_device_to_host(data.data(), pointers[number], kSize),
                CuResult::success);
      const std::vector<std::uint8_t> expected(kSize, static_cast<std::uint8_t>(number + 1));
      EXPECT_EQ(data, expected) << number;
    }
    // The next one that succeeds replaces and drops them.
    ASSERT_TRUE(suspension.suspend(0, {}).ok());
    EXPECT_EQ(world.statistics().host_copy_bytes, 3 * kSize);
    EXPECT_FALSE(suspension.host_copy({pointers[0], 1}).ok());
    expect_readable(2);
    ASSERT_TRUE(suspension.resume(0, {}).ok());
    for (const DevicePtr ptr : pointers) world.deallocate(ptr, a);
  }
}

TEST(SuspendShortage, a_free_while_asleep_gives_back_its_part_of_a_copy_that_is_not_pinned) {
  for (const bool keeps : {false, true}) {
    HookedWorld world(adaptive_world());
    context::Suspension& suspension = world.pool->suspension();
    ASSERT_TRUE(suspension.make_suspendable(kTagOne, {true, keeps}).ok());
    const StreamHandle a = world.stream();
    const auto first = world.pool->allocate({3 * kMiB, 0, a, {}, kTagOne});
    const auto second = world.pool->allocate({5 * kMiB, 0, a, {}, kTagOne});
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(suspension.suspend(kTagOne, {}).ok());
    EXPECT_EQ(world.statistics().host_copy_bytes, 8 * kMiB);
    world.deallocate(first.value(), a);
    EXPECT_EQ(world.statistics().host_copy_bytes, (keeps ? 8 : 5) * kMiB);
    EXPECT_EQ(suspension.info(kTagOne).host_bytes, (keeps ? 8 : 5) * kMiB);
    ASSERT_TRUE(suspension.resume(kTagOne, {}).ok());
    EXPECT_EQ(world.statistics().host_copy_bytes, keeps ? 8 * kMiB : 0u);
    world.deallocate(second.value(), a);
  }
}

TEST(SuspendBroken, a_context_that_breaks_at_any_step_gives_poisoned_from_then_on) {
  struct Step {
    Call call;
    bool is_met_in_pool, is_met_to_driver;
  };
  for (const auto& [call, is_met_in_pool, is_met_to_driver] :
       {Step{Call::stream_synchronize, true, true},
        {Call::ctx_synchronize, true, true},
        {Call::event_record, false, false},
        {Call::event_query, false, false},
        {Call::stream_create, true, true},
        {Call::memcpy_device_to_host_async, true, true},
        {Call::memcpy_host_to_device_async, true, true},
        {Call::mem_unmap, true, true},
        {Call::mem_map, true, true},
        {Call::mem_set_access, true, true},
        {Call::mem_create, false, true},
        {Call::mem_host_register, true, true},
        {Call::mem_address_reserve, false, false},
        {Call::mem_release, false, true}})
    for (const bool to_driver : {false, true}) {
      SCOPED_TRACE(driver::to_string(call));
      const bool breaks = to_driver ? is_met_to_driver : is_met_in_pool;
      HookedWorld world(page_by_page_world());
      context::Suspension& suspension = world.pool->suspension();
      ASSERT_TRUE(suspension.make_suspendable(kTagOne, {true, false}).ok());
      const StreamHandle a = world.stream();
      const auto made = world.pool->allocate({9 * kMiB, 0, a, {}, kTagOne});
      ASSERT_TRUE(made.ok());
      std::atomic<bool> has_met = false;  // several threads copy
      world.hooks.on[call] = [&] {
        has_met = true;
        return CuResult::illegal_address;
      };
      SuspendHow how;
      how.to_driver = to_driver;
      std::optional<LeftMemory> left;  // copies, as no driver may be asked to let them go
      if (breaks) left.emplace();
      Result<void> done = suspension.suspend(kTagOne, how);
      if (done) done = suspension.resume(kTagOne, {});
      left.reset();
      EXPECT_EQ(has_met, breaks) << to_driver;
      EXPECT_EQ(done.ok(), !breaks) << message_of(done);
      if (!done) {
        EXPECT_EQ(done.error().code, ErrorCode::poisoned) << message_of(done);
        const auto again = suspension.resume(kTagOne, {});
        EXPECT_FALSE(again.ok());
        EXPECT_FALSE(suspension.suspend(kTagOne, {}).ok());
      }
      EXPECT_EQ(world.pool->reports().validate(), "");
      EXPECT_EQ(suspension.info(kTagOne).amounts.live, 9 * kMiB);
    }
}

}  // namespace
}  // namespace vpmm::test
