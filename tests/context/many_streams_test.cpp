// SPDX-License-Identifier: Apache-2.0
// context: more streams than a pool remembers: looks at idle ones, and proof of what they left.
#include <gtest/gtest.h>

#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr std::size_t kRemembered = 63;  // and what all streams together freed
constexpr Bytes kLarge = 9 * kPage;      // more than a cache keeps

// Some of these streams are idle: they make no call but the ones that a test names.
class StreamCrowd : public ::testing::Test {
 protected:
  explicit StreamCrowd(std::size_t count = 100, const WorldOptions& options = adaptive_world())
      : world(options) {
    for (std::size_t i = 0; i < count; ++i) streams.push_back(world.stream());
  }
  void pair(Bytes bytes, StreamHandle stream) {
    world.deallocate(world.allocate(bytes, stream), stream);
  }
  // Each stream uses as much for a while, and frees it.
  void leave_pending(std::uint64_t duration_ns) {
    std::vector<DevicePtr> live;
    for (const StreamHandle stream : streams) {
      live.push_back(world.allocate(kLarge, stream));
      world.use(live.back(), kLarge, stream, duration_ns);
    }
    for (std::size_t i = 0; i < streams.size(); ++i) world.deallocate(live[i], streams[i]);
  }
  std::uint64_t context_events() { return world.calls().count(Call::ctx_record_event); }

  PoolWorld world;
  std::vector<StreamHandle> streams;
};

// Each free of theirs has an event.
class StreamsWithEvents : public StreamCrowd {
 protected:
  explicit StreamsWithEvents(std::size_t count = 100) : StreamCrowd(count, options()) {}
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.prefer = settings::Prefer::footprint;
    return options;
  }
};

class FewStreamsWithEvents : public StreamsWithEvents {
 protected:
  FewStreamsWithEvents() : StreamsWithEvents(20) {}
};

TEST_F(StreamCrowd, keeps_little_in_caches) {
  for (const StreamHandle stream : streams) {
    const DevicePtr pair[] = {world.allocate(4 * kPage, stream), world.allocate(4 * kPage, stream)};
    for (const DevicePtr each : pair) world.deallocate(each, stream);
  }
  EXPECT_LE(world.statistics().cached_bytes, world.statistics().mapped_bytes / 100);
}

TEST_F(StreamCrowd, that_is_idle_has_what_it_freed_proven_by_one_event_at_a_time) {
  const std::uint64_t before = context_events();
  leave_pending(kLongNs);
  for (int i = 0; i < 100; ++i) pair(kLarge, streams[0]);
  EXPECT_EQ(context_events(), before + 1) << "the GPU is busy";
  world.sim().advance_host_ns(2 * kLongNs);
  for (int i = 0; i < 100; ++i) pair(kLarge, streams[0]);
  EXPECT_LE(world.statistics().pending_bytes, 2 * kLarge) << "of the stream that calls";
}

TEST_F(FewStreamsWithEvents, are_asked_one_after_another_however_much_is_pending) {
  leave_pending(kLongNs);
  const std::uint64_t before = world.calls().count(Call::event_query);
  world.allocate(kLarge, streams[0]);
  EXPECT_LE(world.calls().count(Call::event_query), before + 2);
}

// A look for captures comes before an event of the context.
TEST_F(StreamsWithEvents, need_no_event_of_the_context) {
  const auto asked = [&] {
    const std::uint64_t before = world.calls().count(Call::stream_is_capturing);
    for (int i = 0; i < 10; ++i) pair(kLarge, streams[0]);
    return world.calls().count(Call::stream_is_capturing) - before;
  };
  leave_pending(kLongNs);
  const std::uint64_t while_pending = asked();
  world.wait();
  EXPECT_EQ(while_pending, asked());
  EXPECT_EQ(context_events(), 0u);
}

TEST_F(StreamCrowd, of_which_each_called_since_the_last_look_is_remembered) {
  for (const StreamHandle stream : streams) pair(1000, stream);
  EXPECT_EQ(world.statistics().timelines, streams.size());
}

// The streams of a second GPU end with its context.
TEST(CachesOfManyStreams, are_bounded_until_no_more_than_half_as_many_are_left) {
  for (const std::size_t left : {32u, 33u}) {
    WorldOptions options = adaptive_world();
    options.sim.device_count = 2;
    PoolWorld world(options);
    const auto enter = [&](driver::DeviceOrdinal device) {
      driver::ContextHandle context{};
      ASSERT_EQ(world.sim().device_primary_ctx_retain(device, context), CuResult::success);
      ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    };
    std::vector<StreamHandle> near, all;
    enter(1);
    for (int i = 0; i < 40; ++i) all.push_back(world.stream());
    enter(0);
    for (std::size_t i = 0; i < left; ++i) near.push_back(world.stream());
    all.insert(all.end(), near.begin(), near.end());
    for (const StreamHandle stream : all) world.deallocate(world.allocate(1000, stream), stream);
    world.wait();
    ASSERT_EQ(world.statistics().timelines, all.size());
    ASSERT_EQ(world.sim().device_primary_ctx_reset(1), CuResult::success);
    std::vector<DevicePtr> live;
    for (int i = 0; i < 8; ++i) live.push_back(world.allocate(4 * kPage, near[0]));
    EXPECT_EQ(world.statistics().timelines, left);
    for (const DevicePtr ptr : live) world.deallocate(ptr, near[0]);
    const Bytes kept = world.statistics().cached_bytes;
    if (left == 32)
      EXPECT_GE(kept, 8 * 4 * kPage);
    else
      EXPECT_LT(kept, 4 * kPage);
  }
}

// More than the pool remembers at first, and each has called again before the others are through.
TEST_F(StreamCrowd, that_calls_in_turn_is_remembered_after_the_first_came_back) {
  const auto visits = [&] { return world.calls().count(Call::ctx_set_current); };
  const auto let_all_call = [&] {
    for (const StreamHandle stream : streams) pair(1000, stream);
    world.sim().advance_host_ns(kLongNs);
    for (int i = 0; i < 40; ++i) pair(kLarge, streams[0]);
  };
  let_all_call();
  ASSERT_EQ(world.statistics().timelines, kRemembered);
  let_all_call();
  EXPECT_EQ(world.statistics().timelines, streams.size());
  for (int i = 0; i < 3; ++i) {
    let_all_call();
    const std::uint64_t before = visits();
    for (const StreamHandle stream : streams) pair(1000, stream);
    EXPECT_EQ(visits(), before) << "each has its cache";
  }
}

TEST_F(StreamCrowd, is_forgotten_but_for_as_many_as_a_pool_remembers) {
  for (const StreamHandle stream : streams) {
    pair(1000, stream);
    EXPECT_TRUE(world.pool().bind(stream).ok()) << "for a moment";
  }
  world.sim().advance_host_ns(kLongNs);
  for (int i = 0; i < 10; ++i) pair(kLarge, streams[0]);
  EXPECT_EQ(world.statistics().timelines, kRemembered);
}

}  // namespace
}  // namespace vpmm::test
