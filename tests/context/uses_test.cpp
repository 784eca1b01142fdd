// SPDX-License-Identifier: Apache-2.0
// context: memory that several streams use: two-part stamps and record_use.
#include <gtest/gtest.h>

#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

class Uses : public ::testing::Test {
 protected:
  PoolWorld world{page_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
  StreamHandle c = world.stream();
  StreamHandle d = world.stream();

  void use(DevicePtr ptr, StreamHandle stream) { world.use(ptr, 4 * kPage, stream, kLongNs); }
  // `b` may use what `a` has queued its work on, as a program does with an event of its own.
  void order(StreamHandle first, StreamHandle then) {
    driver::EventHandle event{};
    ASSERT_EQ(world.sim().event_create(event), driver::CuResult::success);
    ASSERT_EQ(world.sim().event_record(event, first), driver::CuResult::success);
    ASSERT_EQ(world.sim().stream_wait_event(then, event), driver::CuResult::success);
    ASSERT_EQ(world.sim().event_destroy(event), driver::CuResult::success);
  }
  std::string stamp_of_first_region() {
    return world.pool().reports().snapshot().regions.front().stamp;
  }
};

TEST_F(Uses, a_free_on_another_stream_than_the_allocating_one_waits_for_both) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  world.deallocate(ptr, b);  // nothing orders b behind a: the pool does not rely on it
  EXPECT_NE(stamp_of_first_region().find(" and "), std::string::npos) << stamp_of_first_region();
}

TEST_F(Uses, two_part_memory_is_own_memory_for_neither_stream) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  world.deallocate(ptr, b);
  const DevicePtr for_b = world.allocate(4 * kPage, b);
  EXPECT_NE(for_b, ptr) << "no event stands for the part on a yet";
  use(for_b, b);
  const DevicePtr for_a = world.allocate(4 * kPage, a);
  use(for_a, a);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST_F(Uses, two_part_memory_is_anybodys_once_both_parts_are_complete) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  world.deallocate(ptr, b);
  world.wait();
  const std::uint64_t waits = world.calls().count(Call::stream_wait_event);
  EXPECT_EQ(world.allocate(4 * kPage, c), ptr);
  EXPECT_EQ(world.calls().count(Call::stream_wait_event), waits);
  use(ptr, c);
}

TEST_F(Uses, a_recorded_use_is_waited_for) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  order(a, b);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  use(ptr, b);
  world.deallocate(ptr, a);
  // Whatever a gets now, it does not overtake b: the hazard checker watches.
  for (int i = 0; i < 3; ++i) {
    const DevicePtr next = world.allocate(4 * kPage, a);
    use(next, a);
    world.deallocate(next, a);
  }
}

TEST_F(Uses, a_stream_waits_for_another_without_an_event_of_the_program) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  ASSERT_TRUE(world.pool().streams().make_wait(b, a).ok());
  use(ptr, b);  // the hazard checker watches
  const std::uint64_t waits = world.calls().count(Call::stream_wait_event);
  ASSERT_TRUE(world.pool().streams().make_wait(a, a).ok());
  EXPECT_EQ(world.calls().count(Call::stream_wait_event), waits)
      << "a stream is in order with itself";
}

TEST_F(Uses, a_wait_for_no_stream_is_an_error_and_leaves_no_event) {
  const std::uint64_t created = world.calls().count(Call::event_create);
  const std::uint64_t destroyed = world.calls().count(Call::event_destroy);
  EXPECT_FALSE(world.pool().streams().make_wait(b, StreamHandle{0x4200}).ok());
  EXPECT_FALSE(world.pool().streams().make_wait(StreamHandle{0x4200}, b).ok());
  EXPECT_EQ(world.calls().count(Call::event_create) - created, 2u);
  EXPECT_EQ(world.calls().count(Call::event_destroy) - destroyed, 2u);
}

TEST_F(Uses, recording_the_allocating_stream_or_one_stream_twice_adds_nothing) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(ptr, a).ok());
  use(ptr, a);
  world.deallocate(ptr, a);
  EXPECT_EQ(stamp_of_first_region().find(" and "), std::string::npos) << stamp_of_first_region();
  EXPECT_EQ(world.allocate(4 * kPage, a), ptr);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  order(a, b);
  use(ptr, b);
  world.deallocate(ptr, a);
  EXPECT_EQ(stamp_of_first_region().find("any stream"), std::string::npos)
      << "two streams are two parts";
}

TEST_F(Uses, three_streams_become_all_streams_now) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  use(ptr, a);
  StreamHandle last = a;
  for (const StreamHandle other : {b, c, d}) {
    order(last, other);
    ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
    use(ptr, other);
    last = other;
  }
  world.deallocate(ptr, a);
  EXPECT_NE(stamp_of_first_region().find("any stream"), std::string::npos)
      << stamp_of_first_region();
  const DevicePtr other = world.allocate(4 * kPage, b);
  EXPECT_NE(other, ptr) << "nobody may wait for a context-wide event on the GPU";
  use(other, b);
  world.wait();
  EXPECT_EQ(world.allocate(4 * kPage, c), ptr);
  use(ptr, c);
}

TEST_F(Uses, uses_of_a_stream_that_is_gone_still_count) {
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  order(a, b);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  use(ptr, b);
  ASSERT_EQ(world.sim().stream_destroy(b), driver::CuResult::success);
  world.deallocate(ptr, a);
  for (int i = 0; i < 30; ++i) {
    const DevicePtr next = world.allocate(4 * kPage, i % 2 == 0 ? a : c);
    use(next, i % 2 == 0 ? a : c);
    world.deallocate(next, i % 2 == 0 ? a : c);
  }
}

TEST_F(Uses, small_memory_waits_for_recorded_uses_too) {
  const DevicePtr ptr = world.allocate(1000, a);
  world.use(ptr, 1000, a);
  order(a, b);
  ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
  world.use(ptr, 1000, b, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.statistics().pending_bytes, 1024u);
  const DevicePtr next = world.allocate(1000, a);
  EXPECT_NE(next, ptr);
  world.use(next, 1000, a);
  world.wait();
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

TEST_F(Uses, small_memory_freed_on_another_stream_waits_for_the_allocating_one) {
  const DevicePtr ptr = world.allocate(1000, a);
  world.use(ptr, 1000, a, kLongNs);
  world.deallocate(ptr, b);
  for (int i = 0; i < 3; ++i) {
    const DevicePtr next = world.allocate(1000, b);
    world.use(next, 1000, b);
    world.deallocate(next, b);
  }
}

TEST_F(Uses, any_stream_memory_freed_with_a_named_stream_counts_on_that_stream_only) {
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  use(ptr, b);
  world.deallocate(ptr, b);
  EXPECT_EQ(stamp_of_first_region().find(" and "), std::string::npos);
  EXPECT_EQ(world.allocate(4 * kPage, b), ptr);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  use(ptr, b);
}

TEST_F(Uses, frees_belong_to_the_allocating_stream_when_the_pool_was_opened_so) {
  WorldOptions options = page_world();
  options.config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  PoolWorld lenient(options);
  const StreamHandle stream = lenient.stream();
  const DevicePtr ptr = lenient.allocate(4 * kPage, stream);
  lenient.use(ptr, 4 * kPage, stream, kLongNs);
  lenient.deallocate(ptr, std::nullopt);
  EXPECT_EQ(lenient.allocate(4 * kPage, stream), ptr) << "its own memory, no wait";
  EXPECT_EQ(lenient.statistics().gpu_waits + lenient.statistics().host_waits, 0u);
  lenient.use(ptr, 4 * kPage, stream);
}

TEST_F(Uses, of_an_address_inside_an_allocation_are_an_error_that_names_its_start) {
  for (const auto& [bytes, inside] :
       {std::pair{Bytes{1000}, Bytes{1}}, {Bytes{300'000}, 16 * kKiB}, {4 * kPage, kPage}}) {
    const DevicePtr ptr = world.allocate(bytes, a);
    const std::uint64_t mistakes = world.statistics().caller_mistakes;
    expect_error(world.pool().record_use(ptr + inside, b), ErrorCode::invalid_pointer,
                 {hex(ptr + inside), hex(ptr)});
    EXPECT_EQ(world.statistics().caller_mistakes, mistakes + 1);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, a);
    EXPECT_EQ(world.allocate(bytes, a), ptr) << "nothing was recorded";
    world.deallocate(ptr, a);
    expect_error(world.pool().record_use(ptr, b), ErrorCode::invalid_pointer, {hex(ptr)});
  }
}

TEST(UsesStreamOrdered, of_an_address_inside_an_allocation_are_an_error_that_names_its_start) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  const DevicePtr ptr = world.allocate(1000, a);
  expect_error(world.pool().record_use(ptr + 8, b), ErrorCode::invalid_pointer, {hex(ptr)});
  EXPECT_TRUE(world.pool().record_use(ptr, b).ok());
  world.deallocate(ptr, a);
}

TEST_F(Uses, in_an_arena_recording_the_allocating_stream_adds_nothing) {
  const ArenaId arena = make_arena(world);
  const DevicePtr ptr = allocate_in(world, arena, 4 * kPage, a);
  const DevicePtr neighbour = allocate_in(world, arena, 4 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(ptr, a).ok());
  use(ptr, a);
  world.deallocate(ptr, a);
  EXPECT_EQ(allocate_in(world, arena, 4 * kPage, a), ptr) << "at once";
  world.deallocate(neighbour, a);
}

}  // namespace
}  // namespace vpmm::test
