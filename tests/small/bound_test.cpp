// SPDX-License-Identifier: Apache-2.0
// small: streams that are known by their object.
#include <thread>

#include "small/small_world.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::CaptureMode;
using driver::GraphHandle;

std::unique_ptr<context::BoundStream> bind(PoolWorld& world, StreamHandle stream) {
  auto bound = world.pool().bind(stream);
  EXPECT_TRUE(bound.ok()) << message_of(bound);
  return bound ? std::move(bound).value() : nullptr;
}

class BoundStreams : public SmallTest {
 protected:
  DevicePtr allocate(context::BoundStream& bound, Bytes bytes, Bytes alignment = 0) {
    const auto made = bound.allocate(bytes, alignment);
    EXPECT_TRUE(made.ok()) << message_of(made);
    EXPECT_EQ(world.pool().reports().validate(), "");
    return made ? made.value() : DevicePtr{};
  }
  void deallocate(context::BoundStream& bound, DevicePtr ptr) {
    const auto freed = bound.deallocate(ptr);
    EXPECT_TRUE(freed.ok()) << message_of(freed);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  // Each was freed and allocated again, so that the stream has been warm.
  std::vector<DevicePtr> one_of_each_size(context::BoundStream& bound) {
    std::vector<DevicePtr> live;
    for (const Bytes bytes : kSizes) {
      deallocate(bound, allocate(bound, bytes));
      live.push_back(allocate(bound, bytes));
    }
    return live;
  }
};

TEST_P(BoundStreams, are_the_same_stream_as_the_handle) {
  auto bound = bind(world, a);
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = allocate(*bound, bytes);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, a);
    EXPECT_EQ(allocate(*bound, bytes), ptr);
    world.use(ptr, bytes, a);
    deallocate(*bound, ptr);
    EXPECT_EQ(world.allocate(bytes, a), ptr);
    world.use(ptr, bytes, a);
  }
  EXPECT_EQ(world.statistics().timelines, 1u);
}

TEST_P(BoundStreams, give_what_was_asked_for_or_say_why_not) {
  auto bound = bind(world, a);
  EXPECT_TRUE(is_null(allocate(*bound, 0)));
  deallocate(*bound, DevicePtr{});
  for (const Bytes alignment : {Bytes{256}, 4 * kKiB, kPage, 4 * kPage})
    for (const Bytes bytes : kSizes)
      EXPECT_TRUE(is_aligned(allocate(*bound, bytes, alignment), alignment));
  expect_error(bound->allocate(100, 3), ErrorCode::invalid_argument);
  const DevicePtr ptr = allocate(*bound, 5000);
  expect_error(bound->deallocate(ptr + 8), ErrorCode::invalid_pointer, {hex(ptr), hex(ptr + 8)});
  deallocate(*bound, ptr);
  expect_error(bound->deallocate(ptr), ErrorCode::invalid_pointer, {hex(ptr)});
}

TEST_P(BoundStreams, have_nothing_in_hand_before_something_was_freed) {
  auto bound = bind(world, a);
  EXPECT_TRUE(is_null(bound->try_allocate(5000, 0)));
  const DevicePtr ptr = allocate(*bound, 5000);
  EXPECT_TRUE(bound->try_deallocate(ptr));
  EXPECT_FALSE(bound->try_deallocate(ptr)) << "a second time";
  EXPECT_EQ(bound->try_allocate(5000, 0), ptr);
  EXPECT_TRUE(is_null(bound->try_allocate(0, 0)));
  deallocate(*bound, ptr);
}

TEST_P(BoundStreams, free_what_another_stream_allocated) {
  auto bound = bind(world, a);
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, b);
    world.use(ptr, bytes, b, kLongNs);
    deallocate(*bound, ptr);
    const DevicePtr next = allocate(*bound, bytes);
    world.use(next, bytes, a);
  }
}

TEST_P(BoundStreams, keep_their_timeline_however_many_others_come_and_go) {
  auto bound = bind(world, a);
  for (int i = 0; i < 200; ++i) {
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(5000, stream), stream);
    ASSERT_EQ(world.sim().stream_destroy(stream), CuResult::success);
    world.sim().advance_host_ns(100'000);
  }
  const DevicePtr ptr = allocate(*bound, 5000);
  world.use(ptr, 5000, a, kLongNs);
  deallocate(*bound, ptr);
  EXPECT_EQ(allocate(*bound, 5000), ptr);
}

TEST_P(BoundStreams, that_end_while_others_go_on_leave_their_memory_to_the_stream) {
  DevicePtr ptr{};
  {
    auto bound = bind(world, a);
    auto second = bind(world, a);
    ptr = allocate(*bound, 5000);
    world.use(ptr, 5000, a, kLongNs);
    deallocate(*second, ptr);
  }
  EXPECT_EQ(world.allocate(5000, a), ptr);
}

TEST_P(BoundStreams, whose_captures_are_announced_take_part_in_them) {
  auto bound = bind(world, a);
  const DevicePtr before = allocate(*bound, 5000);
  world.use(before, 5000, a, kLongNs);
  deallocate(*bound, before);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  begin_capture(world, a, CaptureMode::relaxed);
  EXPECT_TRUE(is_null(bound->try_allocate(5000, 0)));
  const DevicePtr captured = allocate(*bound, 5000);
  EXPECT_NE(captured, before);
  EXPECT_FALSE(bound->try_deallocate(captured));
  world.use(captured, 5000, a);
  deallocate(*bound, captured);
  const GraphHandle graph = end_capture(world, a);
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
  const DevicePtr after = allocate(*bound, 5000);
  EXPECT_NE(after, captured) << "that stays with the graph";
  world.use(after, 5000, a);
  destroy(world, graph);
}

TEST_P(BoundStreams, cannot_be_made_of_a_capturing_stream) {
  begin_capture(world, a, CaptureMode::relaxed);
  expect_error(world.pool().bind(a), ErrorCode::capture_active);
  destroy(world, end_capture(world, a));
}

TEST_P(BoundStreams, are_dead_after_a_reset_of_ours) {
  for (const bool is_legacy : {false, true}) {
    auto bound = bind(world, is_legacy ? driver::kLegacyStream : world.stream());
    const std::vector<DevicePtr> live = one_of_each_size(*bound);
    ASSERT_TRUE(world.pool().streams().reset().ok());
    enter_again(world);
    const StreamHandle fresh = world.stream();
    for (std::size_t i = 0; i < live.size(); ++i) {
      expect_error(bound->allocate(kSizes[i], 0), ErrorCode::invalid_argument, {"reset"});
      EXPECT_TRUE(is_null(bound->try_allocate(kSizes[i], 0)));
      world.use(live[i], kSizes[i], fresh, kLongNs);  // the memory and its contents are there still
      deallocate(*bound, live[i]);                    // any-stream: waits for `fresh`
      const StreamHandle other = world.stream();
      world.use(world.allocate(kSizes[i], other), kSizes[i], other);
    }
    bound.reset();
    world.wait();
  }
}

// Any call that asks the driver notices; a bound stream alone does not, which is why it may not
// outlive its stream.
TEST_P(BoundStreams, are_dead_after_a_reset_by_others_that_somebody_noticed) {
  for (const bool is_legacy : {false, true}) {
    auto bound = bind(world, is_legacy ? driver::kLegacyStream : world.stream());
    const std::vector<DevicePtr> live = one_of_each_size(*bound);
    world.wait();
    ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
    enter_again(world);
    const StreamHandle fresh = world.stream();
    world.deallocate(world.allocate(kPage, fresh), fresh);
    for (std::size_t i = 0; i < live.size(); ++i) {
      world.use(live[i], kSizes[i], fresh, kLongNs);
      deallocate(*bound, live[i]);
      expect_error(bound->allocate(kSizes[i], 0), ErrorCode::invalid_argument, {"reset"});
    }
    const StreamHandle other = world.stream();
    for (const Bytes bytes : kSizes)
      for (int i = 0; i < 3; ++i) world.use(world.allocate(bytes, other), bytes, other);
    bound.reset();
    world.wait();
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, BoundStreams, ::testing::Bool(), name_of_policy);

TEST(BoundStreamsElsewhere, work_on_the_drivers_pool_and_without_a_pool_of_pages) {
  WorldOptions stream_ordered = adaptive_world();
  stream_ordered.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions without_pool = adaptive_world();
  without_pool.config.pool_enabled = false;
  for (const WorldOptions& options : {stream_ordered, without_pool}) {
    PoolWorld world(options);
    const StreamHandle a = world.stream();
    auto bound = bind(world, a);
    for (const Bytes bytes : kSizes)
      for (int i = 0; i < 3; ++i) {
        const auto made = bound->allocate(bytes, 0);
        ASSERT_TRUE(made.ok()) << message_of(made);
        EXPECT_EQ(world.pool().query(made.value()).value().requested, bytes);
        world.use(made.value(), bytes, a);
        ASSERT_TRUE(bound->deallocate(made.value()).ok());
        expect_error(bound->deallocate(made.value()), ErrorCode::invalid_pointer,
                     {hex(made.value())});
      }
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    EXPECT_GT(world.calls().count(Call::mem_alloc_from_pool_async), 0u);
    EXPECT_EQ(world.statistics().small_bytes, 0u);
  }
}

TEST(BoundStreamsElsewhere, keep_whole_pages_in_hand_also_where_small_requests_are_the_drivers) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  auto bound = bind(world, world.stream());
  const auto made = bound->allocate(3 * kPage, 0);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(bound->try_deallocate(made.value()));
  EXPECT_EQ(bound->try_allocate(3 * kPage, 0), made.value());
  ASSERT_TRUE(bound->deallocate(made.value()).ok());
}

}  // namespace
}  // namespace vpmm::test
