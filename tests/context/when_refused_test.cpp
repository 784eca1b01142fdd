// SPDX-License-Identifier: Apache-2.0
// context: proofs and waits that the driver refuses, and the work that a wait is for.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

constexpr Bytes kMuch = 33 * kPage;  // more than may be pending for any stream

TEST(RefusedProof, of_the_whole_context_leaves_the_cap_to_a_wait_for_all_work) {
  for (const CuResult refusal :
       {CuResult::not_supported, CuResult::stream_capture_unsupported, CuResult::unknown}) {
    PoolWorld world(page_world());
    world.faults().set_plan(
        {{Call::ctx_record_event}, 1, refusal, FaultPlan::Repeat::from_then_on});
    const DevicePtr much = world.allocate(kMuch, std::nullopt);
    world.use(much, kMuch, world.stream(), kLongNs);
    world.deallocate(much, std::nullopt);
    EXPECT_GT(world.faults().fired(), 0u);
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
    EXPECT_EQ(world.statistics().host_waits, 1u);
    EXPECT_EQ(world.calls().count(Call::ctx_synchronize), 1u);
    EXPECT_EQ(world.calls().count(Call::event_synchronize), 0u);
  }
}

// The memory is free all the same.
TEST(RefusedWait, for_the_cap_is_not_repeated_by_the_free) {
  for (const CuResult refusal : {CuResult::unknown, CuResult::illegal_address}) {
    HookedWorld world(page_world());
    const DevicePtr little = world.allocate(kPage, std::nullopt);
    const DevicePtr much = world.allocate(kMuch, std::nullopt);
    world.use(much, kMuch, world.stream(), kLongNs);
    int waits = 0;
    world.hooks.on[Call::event_synchronize] = [&] {
      return ++waits == 1 ? refusal : CuResult::success;
    };
    world.deallocate(much, std::nullopt);
    EXPECT_EQ(waits, 1);
    EXPECT_EQ(world.statistics().pending_bytes, kMuch);
    EXPECT_EQ(world.statistics().live_allocations, 1u);
    if (refusal == CuResult::illegal_address) {
      expect_error(world.pool->allocate({kPage, 0, std::nullopt}), ErrorCode::poisoned,
                   {"event_synchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS"});
      continue;
    }
    world.deallocate(little, std::nullopt);
    EXPECT_EQ(waits, 2) << "the next free catches up";
    EXPECT_LE(world.statistics().pending_bytes, kPage);
  }
}

// The pages of the stream's own frees go back to the driver once they are complete.
TEST(WaitForMemory, that_the_stream_itself_freed_is_for_no_other_work) {
  WorldOptions options = page_by_page_world();
  options.config.streams.any_stream = settings::AnyStreamOrder::park;
  options.config.limits.capacity = 8 * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(world.allocate(kPage, stream));
  driver::sim::Kernel of_others;
  of_others.name = "others";
  of_others.duration_ns = kLongNs;
  ASSERT_EQ(world.sim.launch(of_others, world.stream()), CuResult::success);
  for (const DevicePtr page : pages) {
    world.use(page, kPage, stream, 1'000'000);
    world.deallocate(page, stream);
  }
  ASSERT_EQ(world.calls.count(Call::event_record), 0u);
  pool::Request request{4 * kPage, 0, stream};
  request.one_chunk = true;
  const std::uint64_t begin = world.sim.now_ns();
  const auto made = world.pool->allocate(request);
  EXPECT_TRUE(made.ok()) << message_of(made);
  EXPECT_LT(world.sim.now_ns() - begin, kLongNs / 2);
  EXPECT_EQ(world.calls.count(Call::event_record), 1u);
  EXPECT_EQ(world.calls.count(Call::ctx_synchronize), 0u);
  EXPECT_EQ(world.statistics().host_waits, 1u);
}

// A request without a stream, whose memory beyond the capacity is freed at once.
TEST(RefusedFree, of_what_is_beyond_the_capacity_shows_a_broken_context) {
  for (const CuResult refusal : {CuResult::invalid_value, CuResult::illegal_address}) {
    WorldOptions options = page_world();
    options.config.small = settings::SmallRequests::stream_ordered;
    options.config.limits.capacity = 8 * kPage;
    HookedWorld world(options);
    const DevicePtr all = world.allocate(8 * kPage, world.stream());
    int frees = 0;
    world.hooks.on[Call::mem_free_async] = [&] {
      return ++frees == 1 ? refusal : CuResult::success;
    };
    expect_error(world.pool->allocate({1000, 0, std::nullopt}), ErrorCode::out_of_memory);
    EXPECT_EQ(frees, 1);
    EXPECT_EQ(world.statistics().live_allocations, 1u);
    const auto freed = world.pool->deallocate(all, std::nullopt);
    if (refusal == CuResult::illegal_address)
      expect_error(freed, ErrorCode::poisoned, {"mem_free_async failed"});
    else
      EXPECT_TRUE(freed.ok()) << message_of(freed);
  }
}

// The driver has a limit of mappings, and old addresses of pages that moved have them.
TEST(RefusedMapping, is_tried_again_without_the_mappings_of_old_addresses) {
  HookedWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr many = world.allocate(100 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(many, stream);
  world.allocate(101 * kPage, stream);
  world.sim.advance_host_ns(kLongNs);
  ASSERT_EQ(world.statistics().zombie_bytes, 100 * kPage);
  ASSERT_EQ(world.statistics().free_bytes, 0u);
  int refusals = 0;
  world.hooks.on[Call::mem_map] = [&] {
    if (world.sim.census().mappings < 110) return CuResult::success;
    ++refusals;
    return CuResult::out_of_memory;
  };
  world.allocate(kPage, stream);
  EXPECT_GT(refusals, 0);
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
