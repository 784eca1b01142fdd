// SPDX-License-Identifier: Apache-2.0
// context: everything on the driver's stream-ordered pool: no VMM, pool switched off, huge pages;
// and small requests.
#include <gtest/gtest.h>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

// A program that allocates, uses and frees on two streams, in all sizes.
void run_program(PoolWorld& world) {
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  for (const Bytes bytes : {Bytes{100}, 3 * kPage, Bytes{70'000}, kPage + 1}) {
    const DevicePtr on_a = world.allocate(bytes, a);
    const DevicePtr on_b = world.allocate(bytes, b);
    const DevicePtr on_any = world.allocate(bytes, std::nullopt);
    world.use(on_a, bytes, a, 100'000);
    world.use(on_b, bytes, b, 100'000);
    world.use(on_any, bytes, a, 100'000);
    world.deallocate(on_a, a);
    world.deallocate(on_b, std::nullopt);
    world.deallocate(on_any, a);
  }
  world.wait();
}

WorldOptions switched_off() {
  WorldOptions options = page_world();
  options.config.pool_enabled = false;
  options.config.page_size.reset();
  return options;
}

TEST(StreamOrderedOnly, serves_everything_on_a_device_without_virtual_memory_management) {
  WorldOptions options = adaptive_world();
  options.sim.vmm_supported = false;
  PoolWorld world(options);
  run_program(world);
  EXPECT_EQ(world.calls().count(Call::mem_create), 0u);
  EXPECT_EQ(world.calls().count(Call::mem_address_reserve), 0u);
  EXPECT_EQ(world.pool().reports().snapshot().policy, "stream_ordered");
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_GT(world.statistics().stream_ordered_bytes, 0u);
}

TEST(StreamOrderedOnly, has_a_share_of_the_gpu_as_its_capacity) {
  WorldOptions options = adaptive_world();
  options.sim.vmm_supported = false;
  options.config.limits.capacity_percent = 50;
  PoolWorld world(options);
  EXPECT_EQ(world.pool().limits().capacity(), options.sim.capacity / 2);
  world.faults().set_plan({{Call::device_total_mem}, 1, driver::CuResult::invalid_value});
  expect_error(world.pool().limits().set_share_of_gpu(25), ErrorCode::driver_failed);
  EXPECT_EQ(world.pool().limits().capacity(), options.sim.capacity / 2) << "unchanged";
}

TEST(StreamOrderedOnly, serves_everything_when_the_pool_is_switched_off) {
  PoolWorld world(switched_off());
  run_program(world);
  EXPECT_EQ(world.calls().count(Call::mem_create), 0u);
  expect_error(world.pool().limits().preallocate(kPage), ErrorCode::unsupported);
  expect_error(world.pool().allocate({kPage, 4096, world.stream()}), ErrorCode::unsupported,
               {"alignment 4096"});
  EXPECT_TRUE(is_aligned(world.allocate(kPage, world.stream(), 256), 256));
}

TEST(StreamOrderedOnly, serves_everything_below_a_page_of_32_gib) {
  WorldOptions options;
  options.config.page_size = 32 * kGiB;
  PoolWorld world(options);
  run_program(world);
  EXPECT_EQ(world.calls().count(Call::mem_create), 0u);
  EXPECT_EQ(world.statistics().reserved_bytes, 0u);
}

TEST(StreamOrderedOnly, frees_many_at_once) {
  PoolWorld world(switched_off());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> all(3);
  for (const pool::Stream on : {pool::Stream(stream), pool::Stream()}) {
    ASSERT_TRUE(world.pool().allocate_many(std::vector<Bytes>(3, 1000), on, all).ok());
    ASSERT_TRUE(world.pool().deallocate_many(all, on).ok());
  }
  EXPECT_EQ(world.statistics().deallocations, 6u);
}

TEST(StreamOrderedOnly, has_no_suspendable_tags) {
  PoolWorld world(switched_off());
  context::Suspension& suspension = world.pool().suspension();
  expect_error(suspension.make_suspendable(7, {}), ErrorCode::unsupported);
  expect_error(suspension.suspend(7, {}), ErrorCode::unsupported);
  expect_error(suspension.resume(7, {}), ErrorCode::unsupported);
  expect_error(suspension.prepare(7), ErrorCode::unsupported);
}

TEST(StreamOrderedOnly, counts_what_is_idle_in_the_drivers_pool_as_free) {
  PoolWorld world(switched_off());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  driver::MemInfo gpu;
  ASSERT_EQ(world.sim().mem_get_info(gpu), driver::CuResult::success);
  const auto free = [&] { return world.pool().limits().memory_info().value().free; };
  EXPECT_EQ(free(), gpu.free + world.statistics().stream_ordered_bytes - 1000);
  world.deallocate(ptr, stream);
  world.wait();
  EXPECT_EQ(free(), gpu.free + world.statistics().stream_ordered_bytes);
}

TEST(StreamOrderedOnly, refuses_a_pointer_into_an_allocation_and_reports_a_shortage) {
  WorldOptions options = switched_off();
  options.sim.capacity = 64 * kMiB;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  expect_error(world.pool().deallocate(ptr + 256, stream), ErrorCode::invalid_pointer, {"inside"});
  expect_error(world.pool().allocate({65 * kMiB, 0, stream}), ErrorCode::out_of_memory,
               {"asked for  65 MiB", "live       1000 bytes in 1 allocation"});
  world.deallocate(ptr, stream);
}

TEST(StreamOrderedOnly, a_request_that_is_short_waits_for_memory_that_several_streams_used) {
  WorldOptions options = switched_off();
  options.sim.capacity = 64 * kMiB;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  const DevicePtr ptr = world.allocate(40 * kMiB, stream);
  ASSERT_EQ(world.sim().stream_synchronize(stream), driver::CuResult::success);
  ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
  world.use(ptr, 40 * kMiB, other, kLongNs);
  world.deallocate(ptr, stream);
  const DevicePtr next = world.allocate(40 * kMiB, stream);
  world.use(next, 40 * kMiB, stream);
  EXPECT_EQ(world.statistics().host_waits, 1u);
}

TEST(StreamOrderedOnly, a_use_on_the_allocating_stream_leaves_the_free_to_the_driver) {
  PoolWorld world(switched_off());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  ASSERT_TRUE(world.pool().record_use(ptr, stream).ok());
  world.use(ptr, 1000, stream, kLongNs);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.calls().count(Call::mem_free_async), 1u) << "at once";
}

TEST(StreamOrderedOnly, refuses_a_capturing_stream_rather_than_putting_nodes_into_its_graph) {
  PoolWorld world(switched_off());
  const StreamHandle stream = world.stream();
  world.allocate(100, stream);
  ASSERT_EQ(world.sim().stream_begin_capture(stream, driver::CaptureMode::global),
            driver::CuResult::success);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::capture_active);
  driver::GraphHandle graph{};
  ASSERT_EQ(world.sim().stream_end_capture(stream, graph), driver::CuResult::success);
  ASSERT_EQ(world.sim().graph_destroy(graph), driver::CuResult::success);
}

TEST(PagesOnly, serve_small_requests_too_on_a_device_without_memory_pools) {
  WorldOptions options = page_world();
  options.sim.memory_pools_supported = false;
  PoolWorld world(options);
  run_program(world);
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 0u);
}

TEST(NoSupport, at_all_is_a_clear_error) {
  driver::sim::SimOptions options;
  options.vmm_supported = false;
  options.memory_pools_supported = false;
  driver::sim::SimDriver sim(options);
  expect_error(context::Context::create(sim, 0, {}), ErrorCode::unsupported, {"device 0"});
}

// Drivers before CUDA 12.0 have no cuStreamGetId.
TEST(OldDriver, has_no_ids_of_streams_so_a_request_is_an_error_that_names_the_call) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.faults().set_plan({{Call::stream_get_id},
                           1,
                           driver::CuResult::not_supported,
                           driver::FaultPlan::Repeat::from_then_on});
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::unsupported,
               {"stream_get_id"});
}

// Who serves requests below a page.
WorldOptions stream_ordered_world() {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  return options;
}

TEST(SmallRequests, go_to_the_drivers_pool_and_a_page_does_not_when_the_setting_says_so) {
  PoolWorld world(stream_ordered_world());
  const StreamHandle stream = world.stream();
  const std::uint64_t created = world.calls().count(Call::mem_create);
  world.allocate(kPage - 1, stream);
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 1u);
  EXPECT_EQ(world.calls().count(Call::mem_create), created);
  world.allocate(kPage, stream);
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 1u);
  EXPECT_EQ(world.calls().count(Call::mem_create), created + 1);
}

TEST(SmallRequests, are_cut_from_pages_of_the_pool_by_default) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const std::uint64_t created = world.calls().count(Call::mem_create);
  for (const Bytes bytes : {Bytes{1}, Bytes{100'000}, kMiB})
    world.use(world.allocate(bytes, stream), bytes, stream);
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 0u);
  EXPECT_EQ(world.calls().count(Call::mem_create), created + 1);
  EXPECT_EQ(world.statistics().small_bytes, kPage);
  EXPECT_EQ(world.picture(), "[1]");
}

TEST(SmallRequests, from_a_page_less_a_class_on_take_a_page) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(kPage - 1, stream);
  EXPECT_TRUE(is_aligned(ptr, kPage));
  EXPECT_EQ(world.statistics().small_bytes, 0u);
  EXPECT_EQ(world.pool().query(ptr).value().usable, kPage);
}

TEST(SmallRequests, go_to_the_drivers_pool_where_pages_are_too_large_to_be_cut) {
  WorldOptions options = page_world(128 * kMiB);
  PoolWorld world(options);
  world.allocate(1000, world.stream());
  EXPECT_EQ(world.calls().count(Call::mem_alloc_from_pool_async), 1u);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
}

TEST(SmallRequests, count_in_all_figures_and_can_be_queried) {
  for (const WorldOptions& options : {page_world(), stream_ordered_world()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    for (const Bytes bytes : {Bytes{1000}, Bytes{300'000}}) {
      const DevicePtr ptr = world.allocate(bytes, stream);
      EXPECT_EQ(world.statistics().live_bytes, bytes);
      EXPECT_EQ(world.statistics().live_allocations, 1u);
      const auto info = world.pool().query(ptr + bytes - 1);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, ptr);
      EXPECT_EQ(info.value().requested, bytes);
      EXPECT_GE(info.value().usable, bytes);
      EXPECT_LE(info.value().usable, bytes + bytes / 8);
      expect_error(world.pool().query(ptr + info.value().usable), ErrorCode::invalid_pointer);
      world.deallocate(ptr, stream);
      EXPECT_EQ(world.statistics().live_bytes, 0u);
      expect_error(world.pool().query(ptr), ErrorCode::invalid_pointer);
    }
  }
}

// The pool has 4 idle pages, and requests below a page make the driver's pool grow.
Bytes idle_pages_after_small_requests(WorldOptions options) {
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.pages = 4;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  world.allocate(1000, stream);
  const observe::Statistics now = world.statistics();
  EXPECT_GT(now.stream_ordered_bytes, 0u);
  return now.mapped_bytes - now.stream_ordered_bytes;
}

TEST(SmallRequests, of_the_drivers_pool_leave_idle_chunks_alone) {
  EXPECT_EQ(idle_pages_after_small_requests(adaptive_world()), 4 * kPage);
}

TEST(SmallRequests, of_the_drivers_pool_take_idle_pages_rather_than_set_a_record) {
  EXPECT_EQ(idle_pages_after_small_requests(page_world()), 3 * kPage) << "the record is 4 pages";
}

// The record is what the resume has mapped.
TEST(SmallRequests, of_the_drivers_pool_take_as_much_of_idle_pages_after_a_resume_as_it_grows) {
  constexpr std::uint32_t kTag = 7;
  for (const Bytes growth : {Bytes{0}, kPage}) {
    PoolWorld world(stream_ordered_world());
    const StreamHandle stream = world.stream();
    if (growth == 0) world.allocate(1000, stream);  // so that there is room
    ASSERT_TRUE(world.pool().suspension().make_suspendable(kTag, {}).ok());
    ASSERT_TRUE(world.pool().allocate({4 * kPage, 0, stream, {}, kTag}).ok());
    const DevicePtr idle = world.allocate(8 * kPage, stream);
    context::SuspendHow how;
    how.to_driver = true;
    ASSERT_TRUE(world.pool().suspension().suspend(kTag, how).ok());
    world.pool().reports().reset_peaks();
    ASSERT_TRUE(world.pool().suspension().resume(kTag, {}).ok());
    world.deallocate(idle, std::nullopt);
    world.wait();
    const observe::Statistics before = world.statistics();
    world.allocate(1000, std::nullopt);
    const observe::Statistics after = world.statistics();
    EXPECT_EQ(after.stream_ordered_bytes, before.stream_ordered_bytes + growth);
    EXPECT_EQ(after.mapped_bytes, before.mapped_bytes);
  }
}

// The pool has none in hand, and the request that follows is the one that counts.
TEST(SmallRequests, of_the_drivers_pool_are_guarded_in_turn_however_they_were_tried_before) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.checks.guard_every = 2;
  PoolWorld world(options);
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 0)));
    world.allocate(1000, std::nullopt);
  }
  EXPECT_EQ(world.statistics().guarded_allocations, 3u);
}

}  // namespace
}  // namespace vpmm::test
