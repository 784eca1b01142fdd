// SPDX-License-Identifier: Apache-2.0
// context: events: what listeners are told, in which order, and that nothing is told that was
// undone.
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

#include "observe/log_level.hpp"
#include "support/event_log.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

using Kinds = std::vector<EventKind>;

report::EventKinds only(std::initializer_list<EventKind> kinds) {
  report::EventKinds bits = 0;
  for (const EventKind kind : kinds) bits |= report::bit_of(kind);
  return bits;
}

TEST(Events, memory_is_mapped_before_it_is_allocated_and_unmapped_after_it_was_freed) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage - 5, stream);
  world.deallocate(ptr, stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::map, EventKind::allocate, EventKind::free,
                                EventKind::unmap, EventKind::trim}));
  const ReportedEvent& mapped = log.events()[0];
  const ReportedEvent& allocated = log.events()[1];
  EXPECT_EQ(mapped.ptr, ptr);
  EXPECT_EQ(mapped.bytes, 4 * kPage);
  EXPECT_FALSE(mapped.stream.has_value());
  EXPECT_EQ(allocated.ptr, ptr);
  EXPECT_EQ(allocated.bytes, 4 * kPage - 5);
  EXPECT_EQ(allocated.stream, stream);
  EXPECT_EQ(allocated.device, 0);
  EXPECT_EQ(log.events()[4].bytes, 4 * kPage);
  EXPECT_EQ(log.mapped_bytes(), 0u);
}

TEST(Events, a_chunk_that_moves_leaves_its_old_place_before_it_comes_to_the_new_one) {
  PoolWorld world(page_world());
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  world.pool().limits().set_capacity(4 * kPage);
  for (int i = 0; i < 4; ++i) live.push_back(world.allocate(kPage, stream));
  world.deallocate(live[0], stream);
  world.deallocate(live[2], stream);
  log.clear();
  const DevicePtr two = world.allocate(2 * kPage, stream);
  ASSERT_GT(world.statistics().chunks_moved, 0u);
  const Kinds kinds = log.kinds();
  ASSERT_GE(kinds.size(), 3u);
  EXPECT_EQ(kinds.front(), EventKind::unmap);
  EXPECT_EQ(kinds.back(), EventKind::allocate);
  EXPECT_EQ(log.of(EventKind::map).size(), log.of(EventKind::unmap).size());
  EXPECT_EQ(log.mapped_bytes(), 4 * kPage) << "physical memory is counted once";
  world.use(two, 2 * kPage, stream);
}

TEST(Events, calls_that_a_cache_could_serve_are_told_too) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool(),
               only({EventKind::map, EventKind::unmap, EventKind::allocate, EventKind::free}));
  const StreamHandle stream = world.stream();
  auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  std::size_t calls = 0;
  for (int i = 0; i < 3; ++i) {
    for (const Bytes bytes : {Bytes{1000}, 200 * kKiB, kPage}) {
      world.deallocate(world.allocate(bytes, stream), stream);
      const Result<DevicePtr> ptr = bound.value()->allocate(bytes, 0);
      ASSERT_TRUE(ptr.ok());
      ASSERT_TRUE(bound.value()->deallocate(ptr.value()).ok());
      EXPECT_TRUE(is_null(world.pool().allocate_if_ready(bytes, 0)))
          << "it cannot be told without the lock";
      const std::vector<Bytes> sizes{bytes, bytes};
      std::vector<DevicePtr> many(2);
      ASSERT_TRUE(world.pool().allocate_many(sizes, stream, many).ok());
      ASSERT_TRUE(world.pool().deallocate_many(many, stream).ok());
      calls += 4;
      EXPECT_EQ(log.of(EventKind::allocate).size(), calls);
      EXPECT_EQ(log.of(EventKind::free).size(), calls);
    }
  }
}

TEST(Events, warm_calls_are_warm_again_when_nobody_listens_any_more) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  { const EventLog listens_for_a_while(world.pool()); }
  for (int i = 0; i < 2; ++i) world.deallocate(world.allocate(1000, stream), stream);
  const auto calls_through_the_lock = [&] { return world.calls().count(Call::ctx_get_id); };
  const auto call = [&] {
    const auto ptr = world.pool().allocate({1000, 0, stream});
    ASSERT_TRUE(ptr.ok());
    ASSERT_TRUE(world.pool().deallocate(ptr.value(), stream).ok());
  };
  const std::uint64_t before = calls_through_the_lock();
  for (int i = 0; i < 5; ++i) call();
  EXPECT_EQ(calls_through_the_lock(), before);
  const std::uint64_t id = world.pool().reports().add_event_callback(only({EventKind::free}),
                                                                     [](const ReportedEvent&) {});
  call();
  EXPECT_GT(calls_through_the_lock(), before);
  ASSERT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

TEST(Events, a_listener_hears_only_what_it_asked_for) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool(), only({EventKind::map}));
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  EXPECT_EQ(log.kinds(), Kinds{EventKind::map});
}

TEST(Events, a_request_that_fails_for_want_of_memory_is_told_once) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool(), only({EventKind::out_of_memory, EventKind::allocate}));
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(4 * kPage);
  expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  ASSERT_EQ(log.kinds(), Kinds{EventKind::out_of_memory});
  EXPECT_EQ(log.events()[0].bytes, 8 * kPage);
  EXPECT_EQ(log.events()[0].stream, stream);
  EXPECT_TRUE(is_null(log.events()[0].ptr));
}

TEST(Events, a_use_by_another_stream_is_told_with_that_stream) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const StreamHandle other = world.stream();
  const DevicePtr ptr = world.allocate(3000, stream);
  EventLog log(world.pool(), only({EventKind::record_use}));
  ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
  EXPECT_FALSE(world.pool().record_use(ptr + 256, other).ok());
  ASSERT_EQ(log.events().size(), 1u);
  EXPECT_EQ(log.events()[0].ptr, ptr);
  EXPECT_EQ(log.events()[0].bytes, 3000u);
  EXPECT_EQ(log.events()[0].stream, other);
}

TEST(Events, a_free_without_a_stream_names_none_also_where_a_finalizer_made_it) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(3000, stream);
  const DevicePtr second = world.allocate(4 * kPage, stream);
  world.deallocate(first, std::nullopt);
  world.pool().deallocate_deferred(second);
  EXPECT_EQ(log.of(EventKind::free).size(), 1u) << "the finalizer's waits for the next call";
  world.wait();
  const std::vector<ReportedEvent> freed = log.of(EventKind::free);
  ASSERT_EQ(freed.size(), 2u);
  EXPECT_FALSE(freed[0].stream.has_value());
  EXPECT_FALSE(freed[1].stream.has_value());
  EXPECT_EQ(freed[1].bytes, 4 * kPage);
  EXPECT_TRUE(log.live().empty());
}

TEST(Events, a_double_free_is_not_told) {
  PoolWorld world(adaptive_world());
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  world.deallocate(ptr, stream);
  EXPECT_FALSE(world.pool().deallocate(ptr, stream).ok());
  EXPECT_EQ(log.of(EventKind::free).size(), 1u);
}

TEST(Events, memory_of_the_drivers_own_pool_is_told_too) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  std::vector<ReportedEvent> told;
  const std::uint64_t id = world.pool().reports().add_event_callback(
      only({EventKind::allocate, EventKind::free}),
      [&](const ReportedEvent& event) { told.push_back(event); });
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  world.deallocate(ptr, stream);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].ptr, ptr);
  EXPECT_EQ(told[1].ptr, ptr);
  EXPECT_EQ(told[1].bytes, 1000u);
  EXPECT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

TEST(Events, a_free_that_the_driver_refuses_is_taken_back) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  std::vector<EventKind> told;
  const std::uint64_t id = world.pool().reports().add_event_callback(
      only({EventKind::allocate, EventKind::free}),
      [&](const ReportedEvent& event) { told.push_back(event.kind); });
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(1000, stream);
  world.faults().set_plan(
      {{Call::mem_free_async}, 1, CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(world.pool().deallocate(ptr, stream).ok());
  EXPECT_EQ(told, (Kinds{EventKind::allocate, EventKind::free, EventKind::allocate}));
  world.faults().clear_plan();
  world.deallocate(ptr, stream);
  EXPECT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

TEST(Events, memory_for_any_stream_stays_so_where_the_driver_refuses_its_free) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const auto ptr = world.pool().allocate({1000, 0, std::nullopt});
  ASSERT_TRUE(ptr.ok()) << message_of(ptr);
  std::vector<std::optional<StreamHandle>> told;
  const std::uint64_t id = world.pool().reports().add_event_callback(
      only({EventKind::allocate}),
      [&](const ReportedEvent& event) { told.push_back(event.stream); });
  world.faults().set_plan(
      {{Call::mem_free_async}, 1, CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(world.pool().deallocate(ptr.value(), stream).ok());
  EXPECT_EQ(told, (std::vector<std::optional<StreamHandle>>{std::nullopt}));
  world.faults().clear_plan();
  world.deallocate(ptr.value(), stream);
  EXPECT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

TEST(Events, nobody_is_told_after_it_was_taken_away_and_the_others_still_are) {
  PoolWorld world(adaptive_world());
  int first = 0;
  int second = 0;
  const std::uint64_t one =
      world.pool().reports().add_event_callback(kEveryKind, [&](const ReportedEvent&) { ++first; });
  const std::uint64_t two = world.pool().reports().add_event_callback(
      kEveryKind, [&](const ReportedEvent&) { ++second; });
  EXPECT_NE(one, two);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  EXPECT_GT(first, 0);
  EXPECT_EQ(first, second);
  ASSERT_TRUE(world.pool().reports().remove_event_callback(one).ok());
  const int before = first;
  world.deallocate(ptr, stream);
  EXPECT_EQ(first, before);
  EXPECT_GT(second, before);
  ASSERT_TRUE(world.pool().reports().remove_event_callback(two).ok());
  expect_error(world.pool().reports().remove_event_callback(two), ErrorCode::invalid_argument,
               {std::to_string(two)});
}

TEST(Events, what_a_listener_throws_is_lost_and_the_call_does_its_work) {
  PoolWorld world(adaptive_world());
  const std::uint64_t id = world.pool().reports().add_event_callback(
      kEveryKind, [](const ReportedEvent&) { throw std::runtime_error("no"); });
  EventLog log(world.pool());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  EXPECT_EQ(log.kinds(), (Kinds{EventKind::map, EventKind::allocate, EventKind::free}));
  EXPECT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

// Sizes around pages, three streams, now and then a trim; a driver call fails every so often.
class RandomEvents : public ::testing::TestWithParam<bool> {};

TEST_P(RandomEvents, what_was_told_adds_up_to_what_the_pool_has_whatever_fails) {
  WorldOptions options = GetParam() ? page_world() : adaptive_world();
  options.sim.capacity = 64 * kPage;
  options.config.log = observe::LogLevel::quiet;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    PoolWorld world(options);
    EventLog log(world.pool());
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t below) { return random() % below; };
    const std::vector<StreamHandle> streams{world.stream(), world.stream(), world.stream()};
    std::vector<DevicePtr> live;
    for (int step = 0; step < 150; ++step) {
      const StreamHandle stream = streams[pick(3)];
      if (pick(4) == 0)
        world.faults().set_plan({{Call::mem_create, Call::mem_map, Call::mem_set_access,
                                  Call::mem_unmap, Call::mem_release},
                                 1 + pick(4),
                                 CuResult::out_of_memory,
                                 driver::FaultPlan::Repeat::once});
      if (pick(20) == 0) {
        static_cast<void>(world.pool().limits().trim(0));
      } else if (pick(2) == 0 || live.empty()) {
        const Bytes bytes = pick(3) == 0 ? 1 + pick(300'000) : kPage * (1 + pick(12)) - pick(2);
        const auto made = world.pool().allocate({bytes, 0, stream});
        if (made) live.push_back(made.value());
        if (made) world.use(made.value(), bytes, stream, 1 + pick(100'000));
      } else {
        std::swap(live[pick(static_cast<std::uint32_t>(live.size()))], live.back());
        ASSERT_TRUE(world.pool().deallocate(live.back(), std::nullopt).ok());
        live.pop_back();
      }
      world.faults().clear_plan();
      ASSERT_EQ(world.pool().reports().validate(), "");
      ASSERT_EQ(log.live().size(), live.size());
      const observe::Statistics now = world.statistics();
      if (now.quarantined_bytes == 0) {
        ASSERT_EQ(log.mapped_bytes(), now.mapped_bytes);
      }
      if (::testing::Test::HasFailure()) return;
    }
    for (const DevicePtr ptr : live) world.deallocate(ptr, std::nullopt);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(log.mapped_bytes(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RandomEvents, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "pages" : "adaptive"; });

}  // namespace
}  // namespace vpmm::test
