// SPDX-License-Identifier: Apache-2.0
// context: allocations that are one physical chunk of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/pool_world_captures.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

class OneChunk : public ::testing::TestWithParam<bool> {
 protected:
  static WorldOptions options() { return GetParam() ? page_world() : adaptive_world(); }
  static Result<DevicePtr> try_allocate(PoolWorld& world, Bytes bytes, pool::Stream stream,
                                        Bytes alignment = 0) {
    pool::Request request{bytes, alignment, stream};
    request.one_chunk = true;
    auto result = world.pool().allocate(request);
    EXPECT_EQ(world.pool().reports().validate(), "");
    return result;
  }
  static DevicePtr allocate(PoolWorld& world, Bytes bytes, pool::Stream stream,
                            Bytes alignment = 0) {
    const auto result = try_allocate(world, bytes, stream, alignment);
    EXPECT_TRUE(result.ok()) << message_of(result);
    return result ? result.value() : DevicePtr{};
  }
  static void expect_one_chunk(PoolWorld& world, DevicePtr ptr, Bytes bytes) {
    const auto chunks = world.pool().reports().layout().chunks;
    std::size_t found = 0;
    for (const AddressRange& chunk : chunks) {
      if (chunk.end() <= ptr || chunk.begin >= ptr + bytes) continue;
      ++found;
      EXPECT_EQ(chunk, (AddressRange{ptr, bytes}));
    }
    EXPECT_EQ(found, 1u);
  }
  // Pages that were used one by one and are idle.
  static std::vector<DevicePtr> leave_idle(PoolWorld& world, int pages, StreamHandle stream) {
    std::vector<DevicePtr> ptrs;
    for (int i = 0; i < pages; ++i) ptrs.push_back(world.allocate(kPage, stream));
    for (const DevicePtr ptr : ptrs) world.deallocate(ptr, stream);
    world.wait();
    EXPECT_EQ(world.statistics().free_bytes, static_cast<Bytes>(pages) * kPage);
    return ptrs;
  }
};

TEST_P(OneChunk, is_mapped_from_begin_to_end_and_belongs_to_nothing_else) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  const DevicePtr three = allocate(world, 3 * kPage - 1, stream);
  const DevicePtr little = allocate(world, 100, stream);
  const DevicePtr beside = world.allocate(100, stream);
  expect_one_chunk(world, three, 3 * kPage);
  expect_one_chunk(world, little, kPage);
  EXPECT_FALSE((AddressRange{little, kPage}.contains(beside)));
  world.use(three, 3 * kPage - 1, stream);
}

TEST_P(OneChunk, may_be_larger_than_other_chunks_may) {
  WorldOptions limited = options();
  if (!limited.config.page_chunks) limited.config.chunk_max = 4 * kPage;
  PoolWorld world(limited);
  expect_one_chunk(world, allocate(world, 32 * kPage, world.stream()), 32 * kPage);
}

TEST_P(OneChunk, is_not_put_together_from_idle_chunks) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  leave_idle(world, 8, stream);
  const std::uint64_t moved = world.statistics().chunks_moved;
  expect_one_chunk(world, allocate(world, 8 * kPage, stream), 8 * kPage);
  EXPECT_EQ(world.statistics().chunks_moved, moved);
}

TEST_P(OneChunk, an_idle_chunk_of_just_that_size_serves_again) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  const DevicePtr first = allocate(world, 3 * kPage, stream);
  world.use(first, 3 * kPage, stream, kLongNs);
  world.deallocate(first, stream);
  const std::uint64_t created = world.statistics().chunks_created;
  const DevicePtr second = allocate(world, 3 * kPage, stream);
  EXPECT_EQ(second, first) << "its own stream needs no proof";
  EXPECT_EQ(world.statistics().chunks_created, created);
  world.use(second, 3 * kPage, stream);
}

TEST_P(OneChunk, another_stream_does_not_get_it_before_it_is_complete) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  const DevicePtr first = allocate(world, 3 * kPage, stream);
  world.use(first, 3 * kPage, stream, kLongNs);
  world.deallocate(first, stream);
  const DevicePtr second = allocate(world, 3 * kPage, other);
  expect_one_chunk(world, second, 3 * kPage);
  world.use(second, 3 * kPage, other);
}

TEST_P(OneChunk, one_that_was_freed_without_a_stream_serves_again_once_the_gpu_is_done) {
  PoolWorld world(options());
  const DevicePtr first = allocate(world, 32 * kPage, std::nullopt);
  world.deallocate(first, std::nullopt);
  world.sim().run_until_idle();
  EXPECT_EQ(allocate(world, 32 * kPage, std::nullopt), first);
}

TEST_P(OneChunk, is_new_memory_where_what_is_idle_cannot_be_given_back) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  leave_idle(world, 8, stream);
  world.faults().set_plan(
      {{Call::mem_unmap}, 1, CuResult::invalid_value, driver::FaultPlan::Repeat::once});
  expect_one_chunk(world, allocate(world, 32 * kPage, stream), 32 * kPage);
  world.faults().clear_plan();
}

TEST_P(OneChunk, sizes_that_never_repeat_do_not_pile_up) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  Bytes largest = 0;
  for (int i = 0; i < 40; ++i) {
    const Bytes bytes = static_cast<Bytes>(32 + i * 7 % 40) * kPage;
    largest = std::max(largest, bytes);
    const DevicePtr ptr = allocate(world, bytes, stream);
    world.use(ptr, bytes, stream);
    world.deallocate(ptr, stream);
    world.sim().run_until_idle();
  }
  EXPECT_LE(world.statistics().peak_mapped_bytes, 3 * largest);
}

TEST_P(OneChunk, where_the_gpu_is_full_idle_chunks_are_given_back_to_make_it) {
  WorldOptions full = options();
  full.sim.capacity = 16 * kPage;
  PoolWorld world(full);
  const StreamHandle stream = world.stream();
  leave_idle(world, 14, stream);
  expect_one_chunk(world, allocate(world, 12 * kPage, stream), 12 * kPage);
}

TEST_P(OneChunk, at_the_capacity_idle_chunks_are_given_back_to_make_it) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(16 * kPage);
  leave_idle(world, 16, stream);
  expect_one_chunk(world, allocate(world, 16 * kPage, stream), 16 * kPage);
}

TEST_P(OneChunk, where_memory_is_short_it_waits_for_what_the_gpu_still_uses) {
  WorldOptions full = options();
  full.sim.capacity = 16 * kPage;
  PoolWorld world(full);
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  for (int i = 0; i < 12; ++i) {
    const DevicePtr ptr = world.allocate(kPage, other);
    world.use(ptr, kPage, other, kLongNs / 20);
    world.deallocate(ptr, other);
  }
  const DevicePtr large = allocate(world, 12 * kPage, stream);
  expect_one_chunk(world, large, 12 * kPage);
  world.use(large, 12 * kPage, stream);
}

TEST_P(OneChunk, what_does_not_fit_beside_what_lives_fails_and_leaves_the_pool_as_it_was) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(16 * kPage);
  const DevicePtr live = world.allocate(8 * kPage, stream);
  expect_error(try_allocate(world, 9 * kPage, stream), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().live_bytes, 8 * kPage);
  world.use(live, 8 * kPage, stream);
}

TEST_P(OneChunk, is_aligned_as_asked_for) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  const DevicePtr ptr = allocate(world, kPage, stream, 64 * kMiB);
  EXPECT_EQ(to_integer(ptr) % (64 * kMiB), 0u);
  expect_one_chunk(world, ptr, kPage);
  world.deallocate(ptr, stream);
  const DevicePtr shifted = allocate(world, kPage, stream);
  world.deallocate(shifted, stream);
  EXPECT_EQ(to_integer(allocate(world, kPage, stream, 64 * kMiB)) % (64 * kMiB), 0u);
}

TEST_P(OneChunk, serves_a_stream_that_is_being_captured) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  begin_capture(world, stream, driver::CaptureMode::global);
  const DevicePtr parked = world.allocate(4 * kPage, stream);
  world.deallocate(parked, stream);
  const DevicePtr ptr = allocate(world, 4 * kPage, stream);
  expect_one_chunk(world, ptr, 4 * kPage);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.sim().graph_destroy(end_capture(world, stream)), driver::CuResult::success);
}

TEST_P(OneChunk, of_any_stream_is_complete) {
  PoolWorld world(options());
  const StreamHandle stream = world.stream();
  const DevicePtr first = allocate(world, 4 * kPage, stream);
  world.use(first, 4 * kPage, stream, kLongNs);
  world.deallocate(first, stream);
  const DevicePtr ptr = allocate(world, 4 * kPage, std::nullopt);
  expect_one_chunk(world, ptr, 4 * kPage);
  world.use(ptr, 4 * kPage, world.stream());
}

TEST_P(OneChunk, a_driver_call_that_fails_leaves_nothing_behind) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_set_access}) {
    PoolWorld world(options());
    const StreamHandle stream = world.stream();
    world.faults().set_plan(
        {{call}, 1, driver::CuResult::invalid_value, driver::FaultPlan::Repeat::once});
    EXPECT_FALSE(try_allocate(world, 4 * kPage, stream).ok());
    world.faults().clear_plan();
    EXPECT_TRUE(world.pool().reports().layout().chunks.empty());
    expect_one_chunk(world, allocate(world, 4 * kPage, stream), 4 * kPage);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, OneChunk, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "pages" : "adaptive"; });

TEST(OneChunkWithoutPool, needs_the_virtual_memory_pool) {
  WorldOptions options = adaptive_world();
  options.config.pool_enabled = false;
  PoolWorld world(options);
  pool::Request request{kPage, 0, world.stream()};
  request.one_chunk = true;
  expect_error(world.pool().allocate(request), ErrorCode::unsupported, {"one physical chunk"});
}

}  // namespace
}  // namespace vpmm::test
