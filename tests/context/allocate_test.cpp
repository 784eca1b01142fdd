// SPDX-License-Identifier: Apache-2.0
// context: a request and a free by one caller: sizes, alignment, and every mistake a caller can
// make.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "context/out_of_memory.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

TEST(Allocate, zero_bytes_are_null_and_touch_nothing) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const std::uint64_t calls = world.calls().total_count();
  EXPECT_TRUE(is_null(world.allocate(0, stream)));
  EXPECT_EQ(world.statistics().allocations, 0u);
  EXPECT_EQ(world.calls().total_count(), calls);
}

TEST(Allocate, freeing_null_does_nothing) {
  PoolWorld world(page_world());
  EXPECT_TRUE(world.pool().deallocate(DevicePtr{}, world.stream()).ok());
  EXPECT_TRUE(world.pool().deallocate(DevicePtr{}, std::nullopt).ok());
  world.pool().deallocate_deferred(DevicePtr{});
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
}

TEST(Allocate, null_is_freed_at_once) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const std::uint64_t calls = world.calls().total_count();
  EXPECT_TRUE(world.pool().deallocate_if_ready(DevicePtr{}, stream));
  EXPECT_TRUE(world.pool().deallocate_many(std::vector<DevicePtr>(3), std::nullopt).ok());
  EXPECT_EQ(world.calls().total_count(), calls);
  EXPECT_EQ(world.statistics().deallocations, 0u);
}

TEST(Allocate, rounds_up_to_pages_and_says_what_is_usable) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(2 * kPage + 1, stream);
  EXPECT_EQ(world.picture(), "[3]");
  for (const DevicePtr inside : {ptr, ptr + 2 * kPage}) {
    const auto info = world.pool().query(inside);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info.value().begin, ptr);
    EXPECT_EQ(info.value().requested, 2 * kPage + 1);
    EXPECT_EQ(info.value().usable, 3 * kPage);
  }
  world.use(ptr, 3 * kPage, stream);
}

TEST(Allocate, pages_are_page_aligned_and_small_requests_at_least_256_bytes) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  EXPECT_TRUE(is_aligned(world.allocate(kPage, stream), kPage));
  EXPECT_TRUE(is_aligned(world.allocate(1, stream), 256));
  EXPECT_TRUE(is_aligned(world.allocate(1000, stream), 256));
}

TEST(Allocate, larger_alignment_is_honoured) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  for (const Bytes alignment : {Bytes{4 * kKiB}, 2 * kPage, 16 * kPage, 512 * kPage}) {
    const DevicePtr ptr = world.allocate(3 * kPage, stream, alignment);
    EXPECT_TRUE(is_aligned(ptr, alignment)) << alignment;
    world.use(ptr, 3 * kPage, stream);
  }
}

TEST(Allocate, a_small_request_with_large_alignment_gets_a_page) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(100, world.stream(), 64 * kKiB);
  EXPECT_TRUE(is_aligned(ptr, 64 * kKiB));
  EXPECT_EQ(world.picture(), "[1]");
}

TEST(Allocate, an_aligned_request_is_cut_out_of_a_free_range_without_a_driver_call) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(kPage, stream);
  const DevicePtr large = world.allocate(63 * kPage, stream);
  world.deallocate(large, stream);
  const std::uint64_t calls = world.calls().memory_call_count();
  const DevicePtr aligned = world.allocate(kPage, stream, 16 * kPage);
  EXPECT_TRUE(is_aligned(aligned, 16 * kPage));
  EXPECT_EQ(world.calls().memory_call_count(), calls);
  world.deallocate(first, stream);
}

TEST(Allocate, many_frees_ask_the_driver_once_for_the_stream) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const std::vector<Bytes> sizes(8, 1000);
  std::vector<DevicePtr> out(8);
  ASSERT_TRUE(world.pool().allocate_many(sizes, stream, out).ok());
  const std::uint64_t asked = world.calls().count(driver::Call::stream_get_id);
  ASSERT_TRUE(world.pool().deallocate_many(out, stream).ok());
  EXPECT_EQ(world.calls().count(driver::Call::stream_get_id), asked + 1);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST(Allocate, takes_the_smallest_range_that_is_large_enough_and_not_the_lowest) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr low = world.allocate(16 * kPage, stream);
  world.allocate(kPage, stream);
  const DevicePtr high = world.allocate(6 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(low, stream);
  world.deallocate(high, stream);
  world.wait();
  EXPECT_EQ(world.allocate(6 * kPage, stream), high);
}

TEST(AllocateMistakes, alignment_that_is_no_power_of_two_is_named) {
  PoolWorld world(page_world());
  const auto result = world.pool().allocate({kPage, 48 * kKiB, world.stream()});
  expect_error(result, ErrorCode::invalid_argument, {"49152", "power of two"});
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
}

TEST(AllocateMistakes, absurd_sizes_are_out_of_memory_and_change_nothing) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  for (const Bytes bytes :
       {std::numeric_limits<Bytes>::max(), std::numeric_limits<Bytes>::max() - kPage,
        Bytes{1} << 63, Bytes{1} << 60, (Bytes{1} << 47) + 1, Bytes{1} << 47})
    expect_error(world.pool().allocate({bytes, 0, stream}), ErrorCode::out_of_memory,
                 {std::to_string(bytes), "that is more than the GPU has"});
  for (const Bytes bytes : {std::numeric_limits<Bytes>::max(), Bytes{1} << 48})
    expect_error(world.pool().limits().preallocate(bytes), ErrorCode::out_of_memory,
                 {std::to_string(bytes)});
  EXPECT_EQ(world.picture(), "[1]");
  EXPECT_EQ(world.statistics().failed_allocations, 6u);
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
}

TEST(AllocateMistakes, absurd_alignments_are_refused_and_change_nothing) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  const std::uint64_t calls = world.calls().total_count();
  expect_error(world.pool().allocate({kPage, Bytes{1} << 60, stream}), ErrorCode::invalid_argument);
  EXPECT_EQ(world.calls().total_count(), calls) << "no driver call";
  expect_error(world.pool().allocate({kPage, pool::kAddressSpace, stream}),
               ErrorCode::out_of_memory);
  EXPECT_EQ(world.picture(), "[1]");
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
}

// Others fail like requests of more than the GPU has: after deferred frees, which might have
// helped.
TEST(AllocateMistakes, more_than_any_address_space_is_refused_at_once) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (const bool is_refused : {true, false}) {
    world.pool().deallocate_deferred(world.allocate(4 * kPage, stream));
    expect_error(world.pool().allocate({pool::kAddressSpace + (is_refused ? 1 : 0), 0, stream}),
                 ErrorCode::out_of_memory);
    EXPECT_EQ(world.statistics().live_allocations, is_refused ? 1u : 0u);
  }
}

TEST(AllocateMistakes, no_callback_is_asked_for_more_than_any_address_space) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  int asked = 0;
  world.pool().limits().out_of_memory_callbacks().add(
      [&](const context::OutOfMemory&) { return ++asked, false; });
  expect_error(world.pool().allocate({Bytes{1} << 60, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, 0);
  expect_error(world.pool().allocate({Bytes{1} << 46, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, 1);
}

TEST(AllocateMistakes, freeing_twice_is_an_error_that_names_the_pointer) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {3 * kPage, Bytes{100}}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    world.deallocate(ptr, stream);
    expect_error(world.pool().deallocate(ptr, stream), ErrorCode::invalid_pointer,
                 {hex(ptr), "freed already"});
  }
  EXPECT_EQ(world.statistics().caller_mistakes, 2u);
  EXPECT_EQ(world.statistics().deallocations, 2u);
}

TEST(AllocateMistakes, a_foreign_pointer_is_an_error_that_names_it) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  const DevicePtr foreign{0x1234500};
  expect_error(world.pool().deallocate(foreign, stream), ErrorCode::invalid_pointer,
               {hex(foreign)});
  expect_error(world.pool().record_use(foreign, stream), ErrorCode::invalid_pointer,
               {hex(foreign)});
  expect_error(world.pool().query(foreign), ErrorCode::invalid_pointer, {hex(foreign)});
}

TEST(AllocateMistakes, a_pointer_into_an_allocation_is_an_error_that_names_the_allocation) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {3 * kPage, Bytes{1000}}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    const DevicePtr inside = ptr + bytes / 2;
    expect_error(world.pool().deallocate(inside, stream), ErrorCode::invalid_pointer,
                 {hex(inside), hex(ptr), "inside"});
    world.deallocate(ptr, stream);
  }
}

TEST(AllocateMistakes, a_device_that_is_not_there_is_named) {
  driver::sim::SimDriver sim;
  expect_error(context::Context::create(sim, 7, page_world().config), ErrorCode::invalid_argument,
               {"device 7"});
  expect_error(context::Context::create(sim, -1, page_world().config), ErrorCode::invalid_argument,
               {"device -1"});
  expect_error(context::Context::create(sim, 1, page_world().config), ErrorCode::invalid_argument,
               {"device 1", "there are 1"});
}

TEST(AllocateMistakes, a_page_size_below_the_granularity_is_an_error_that_names_the_setting) {
  driver::sim::SimDriver sim;
  expect_error(context::Context::create(sim, 0, page_world(64 * kKiB).config),
               ErrorCode::bad_configuration, {"VPMM_PAGE_SIZE", "64KiB", "2MiB"});
}

TEST(Allocate, the_callers_current_context_is_put_back) {
  WorldOptions options = page_world();
  options.sim.device_count = 2;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  driver::ContextHandle other{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(1, other), driver::CuResult::success);
  for (const driver::ContextHandle current : {other, driver::ContextHandle{}}) {
    ASSERT_EQ(world.sim().ctx_set_current(current), driver::CuResult::success);
    world.deallocate(world.allocate(5 * kPage, stream), stream);
    world.deallocate(world.allocate(5, stream), std::nullopt);
    driver::ContextHandle after{};
    ASSERT_EQ(world.sim().ctx_get_current(after), driver::CuResult::success);
    EXPECT_EQ(after, current);
  }
}

TEST(Allocate, deferred_frees_call_no_driver_and_are_done_by_the_next_request) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr large = world.allocate(4 * kPage, stream);
  const DevicePtr small = world.allocate(100, stream);
  const std::uint64_t calls = world.calls().total_count();
  world.pool().deallocate_deferred(large);
  world.pool().deallocate_deferred(small);
  EXPECT_EQ(world.calls().total_count(), calls);
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  world.allocate(kPage, stream);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  EXPECT_EQ(world.statistics().deallocations, 2u);
}

TEST(Allocate, a_deferred_free_of_a_wrong_pointer_counts_as_a_mistake) {
  PoolWorld world(page_world());
  world.allocate(kPage, world.stream());
  world.pool().deallocate_deferred(DevicePtr{0x42});
  world.wait();
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
}

TEST(Allocate, the_same_calls_give_the_same_addresses) {
  const auto run = [](WorldOptions options) {
    options.sim.seed = 3;
    PoolWorld world(options);
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    std::vector<DevicePtr> live;
    std::string trail;
    for (std::uint64_t i = 0; i < 200; ++i) {
      const StreamHandle stream = i % 3 == 0 ? b : a;
      live.push_back(world.allocate((i * 7 % 13 + 1) * kPage, stream));
      trail += std::to_string((live.back() - live.front()) / kPage) + " ";
      if (i % 4 == 3) {
        const std::size_t victim = i * 5 % live.size();
        if (victim == 0) continue;  // the first address is the measure
        world.deallocate(live[victim], stream);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      }
    }
    return trail + world.picture();
  };
  EXPECT_EQ(run(page_world()), run(page_world()));
  EXPECT_EQ(run(adaptive_world()), run(adaptive_world()));
}

TEST(AllocateMany, of_which_one_cannot_be_served_leaves_none) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = 16 * kPage;
  PoolWorld world(options);
  std::vector<DevicePtr> all(3, DevicePtr{1});
  expect_error(world.pool().allocate_many(std::vector<Bytes>{9 * kPage, 1000, 17 * kPage},
                                          world.stream(), all),
               ErrorCode::out_of_memory);
  EXPECT_EQ(all, std::vector<DevicePtr>(3));
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

// The others are freed all the same.
TEST(AllocateMistakes, of_many_frees_the_first_is_told) {
  for (const bool has_stream : {true, false}) {
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    const pool::Stream on = has_stream ? pool::Stream(stream) : std::nullopt;
    const DevicePtr small = world.allocate(1000, stream), large = world.allocate(9 * kPage, stream);
    const std::vector<DevicePtr> all{small, DevicePtr{0x1234}, DevicePtr{0x5678}, large};
    expect_error(world.pool().deallocate_many(all, on), ErrorCode::invalid_pointer,
                 {"0x1234 is not a live allocation"});
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    EXPECT_EQ(world.statistics().caller_mistakes, 2u);
  }
}

TEST(AllocateMany, gives_back_all_if_a_callback_throws) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 16 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const int thrown = 7;
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) -> bool { throw thrown; });
  std::vector<DevicePtr> out(3, DevicePtr{1});
  EXPECT_THROW(static_cast<void>(world.pool().allocate_many(
                   std::vector<Bytes>{1000, 4 * kPage, 40 * kPage}, stream, out)),
               int);
  EXPECT_EQ(out, std::vector<DevicePtr>(3));
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  world.pool().limits().out_of_memory_callbacks().set({});
}

}  // namespace
}  // namespace vpmm::test
