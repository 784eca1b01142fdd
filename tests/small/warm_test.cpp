// SPDX-License-Identifier: Apache-2.0
// small: what a warm call costs: no driver call but who the stream is, and events only when
// somebody needs to know.
#include <map>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// Cached whatever the policy: below a page.
constexpr std::array<Bytes, 5> kSmall{256, 5000, 100 * kKiB, 200 * kKiB, kMiB};
// Besides: whole pages, cached where chunks are of many sizes.
constexpr std::array<Bytes, 2> kPages{kPage, 4 * kPage};

class Warm : public SmallTest {
 protected:
  std::vector<Bytes> sizes() const {
    std::vector<Bytes> sizes(kSmall.begin(), kSmall.end());
    if (!GetParam()) sizes.insert(sizes.end(), kPages.begin(), kPages.end());
    return sizes;
  }
  // What `work` asks of the driver, "call" to how often.
  template <typename Work>
  std::map<std::string, int> calls_of(const Work& work) {
    world.calls().start_listing();
    work();
    std::map<std::string, int> counts;
    for (const std::string& call : world.calls().stop_listing()) ++counts[call];
    return counts;
  }
  void pair(Bytes bytes, pool::Stream stream) {
    const auto made = world.pool().allocate({bytes, 0, stream});
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(world.pool().deallocate(made.value(), stream).ok());
  }
  using Calls = std::map<std::string, int>;
};

// At the allocation: the free names the handle that the allocation's stream called with.
TEST_P(Warm, a_pair_with_a_raw_handle_asks_once_who_the_stream_is) {
  for (const Bytes bytes : sizes()) {
    warm(bytes, a);
    const Calls asked{{"stream_is_capturing", 10}, {"stream_get_id", 10}};
    EXPECT_EQ(calls_of([&] {
                for (int i = 0; i < 10; ++i) pair(bytes, a);
              }),
              asked)
        << bytes;
  }
}

TEST_P(Warm, a_pair_with_a_bound_stream_asks_nothing) {
  auto bound = world.pool().bind(a);
  ASSERT_TRUE(bound.ok());
  for (const Bytes bytes : sizes()) {
    warm(bytes, a);
    EXPECT_EQ(calls_of([&] {
                for (int i = 0; i < 10; ++i) {
                  const auto made = bound.value()->allocate(bytes, 0);
                  ASSERT_TRUE(made.ok());
                  ASSERT_TRUE(bound.value()->deallocate(made.value()).ok());
                }
              }),
              Calls{})
        << bytes;
  }
}

TEST_P(Warm, a_batch_asks_who_the_stream_is_once) {
  std::vector<Bytes> bytes(50, 5000);
  std::vector<DevicePtr> made(50);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(world.pool().allocate_many(bytes, a, made).ok());
    ASSERT_TRUE(world.pool().deallocate_many(made, a).ok());
  }
  const Calls asked{{"stream_is_capturing", 2}, {"stream_get_id", 2}};
  EXPECT_EQ(calls_of([&] {
              ASSERT_TRUE(world.pool().allocate_many(bytes, a, made).ok());
              ASSERT_TRUE(world.pool().deallocate_many(made, a).ok());
            }),
            asked);
}

TEST_P(Warm, a_stream_alone_records_no_event_however_much_it_allocates) {
  for (int round = 0; round < 20; ++round) {
    std::vector<DevicePtr> live;
    for (const Bytes bytes : kSmall)
      for (int i = 0; i < 20; ++i) live.push_back(world.allocate(bytes, a));
    for (const DevicePtr ptr : live) world.use(ptr, 256, a);
    for (const DevicePtr ptr : live) world.deallocate(ptr, a);
  }
  EXPECT_EQ(events(), 0u);
}

// All streams live at once, so that none can do with what another has: after a few rounds each has
// what it needs in hand. The GPU works on meanwhile.
TEST_P(Warm, streams_in_a_steady_state_record_no_event_and_wait_for_nobody) {
  for (const std::size_t count : {2u, 4u}) {
    std::vector<std::pair<DevicePtr, StreamHandle>> live;
    std::vector<StreamHandle> streams;
    for (std::size_t i = 0; i < count; ++i) streams.push_back(world.stream());
    const auto round = [&] {
      for (const Bytes bytes : sizes())
        for (int i = 0; i < 5; ++i)
          for (const StreamHandle stream : streams)
            live.emplace_back(world.pool().allocate({bytes, 0, stream}).value(), stream);
      for (const auto& [ptr, stream] : live) world.use(ptr, 256, stream, 1000);
      for (const auto& [ptr, stream] : live) ASSERT_TRUE(world.pool().deallocate(ptr, stream).ok());
      live.clear();
      world.sim().advance_host_ns(1'000'000);
    };
    for (int i = 0; i < 150; ++i) round();
    const std::uint64_t recorded = events();
    const observe::Statistics before = world.statistics();
    const auto asked = static_cast<int>(50 * count * sizes().size() * 5);
    EXPECT_EQ(calls_of([&] {
                for (int i = 0; i < 50; ++i) round();
              }),
              (Calls{{"stream_is_capturing", asked}, {"stream_get_id", asked}}))
        << count << " streams";
    EXPECT_EQ(events(), recorded);
    EXPECT_EQ(world.statistics().gpu_waits, before.gpu_waits);
    world.wait();
  }
}

// A frees what B needs: from B's miss on A's frees are worth events, and B gets the memory without
// growth.
TEST_P(Warm, an_event_is_recorded_when_another_stream_missed) {
  const auto round = [&](StreamHandle stream) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < 20; ++i) live.push_back(world.allocate(kMiB, stream));
    for (const DevicePtr ptr : live) world.use(ptr, 256, stream, 1000);
    for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
    world.sim().advance_host_ns(1'000'000);
  };
  for (int i = 0; i < 10; ++i) round(a);
  EXPECT_EQ(events(), 0u) << "nobody needed to know";
  const DevicePtr missed = world.allocate(20 * kPage, b);
  for (int i = 0; i < 3; ++i) round(a);
  EXPECT_GT(events(), 0u) << "b missed";
  world.deallocate(missed, b);
}

// All streams together make at most eight in a millisecond.
TEST_P(Warm, of_many_streams_each_records_fewer_events) {
  const auto events_in_30_ms = [&](std::size_t count) {
    PoolWorld many(options_of(GetParam()));
    std::vector<StreamHandle> streams;
    for (std::size_t i = 0; i < count; ++i) streams.push_back(many.stream());
    std::vector<DevicePtr> live;
    for (const StreamHandle stream : streams) live.push_back(many.allocate(kMiB, stream));
    EXPECT_TRUE(many.pool().allocate({20 * kPage, 0, many.stream()}).ok()) << "somebody misses";
    const std::uint64_t before = many.calls().count(Call::event_record);
    for (int i = 0; i < 3000; ++i) {  // a GiB in a millisecond of each
      for (std::size_t s = 0; s < count; ++s) many.deallocate(live[s], streams[s]);
      for (std::size_t s = 0; s < count; ++s) live[s] = many.allocate(kMiB, streams[s]);
      many.sim().advance_host_ns(10'000);
    }
    return many.calls().count(Call::event_record) - before;
  };
  const std::uint64_t of_two = events_in_30_ms(2);
  const std::uint64_t of_sixteen = events_in_30_ms(16);
  EXPECT_GT(of_two, 40u) << "two in a millisecond of each";
  EXPECT_LT(of_sixteen, 300u);
  EXPECT_GT(of_sixteen, 100u);
}

TEST_P(Warm, an_event_is_recorded_behind_a_bound_free_too_and_the_memory_stays_in_hand) {
  const auto bound = world.pool().bind(a);
  ASSERT_TRUE(bound.ok());
  std::vector<DevicePtr> live;
  for (int i = 0; i < 20; ++i) live.push_back(bound.value()->allocate(kMiB, 0).value());
  const DevicePtr missed = world.allocate(20 * kPage, b);
  int recorded = 0;
  for (const DevicePtr ptr : live) {
    world.sim().advance_host_ns(1'000'000);
    const std::uint64_t before = events();
    ASSERT_TRUE(bound.value()->try_deallocate(ptr));
    EXPECT_EQ(bound.value()->try_allocate(kMiB, 0), ptr);
    ASSERT_TRUE(bound.value()->try_deallocate(ptr));
    recorded += static_cast<int>(events() - before);
  }
  EXPECT_GT(recorded, 0) << "b missed";
  world.deallocate(missed, b);
}

INSTANTIATE_TEST_SUITE_P(Policies, Warm, ::testing::Bool(), name_of_policy);

// Whole pages of the specification's policy are closed at every free; they are in nobody's cache.
// Nothing else of the pool has been asked for before.
TEST(WarmPages, are_known_from_the_first_one_on) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(2 * kPage, stream);
  const std::uint64_t before = world.calls().count(Call::ctx_get_current);
  world.deallocate(first, stream);
  EXPECT_EQ(world.allocate(2 * kPage, stream), first);
  EXPECT_EQ(world.calls().count(Call::ctx_get_current), before) << "no call took the pool's lock";
}

TEST(WarmPages, with_a_chunk_per_page_go_through_the_pool) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  for (int i = 0; i < 3; ++i) world.deallocate(world.allocate(kPage, a), a);
  EXPECT_EQ(world.picture(), "[-1]");
  EXPECT_EQ(world.calls().count(Call::event_record), 3u);
}

TEST(WarmThreads, a_thread_that_uses_many_streams_still_gets_each_ones_memory) {
  PoolWorld world(adaptive_world());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(world.stream());
  for (const Bytes bytes : kSizes) {
    std::vector<DevicePtr> ptrs;
    for (const StreamHandle stream : streams) {
      ptrs.push_back(world.allocate(bytes, stream));
      world.use(ptrs.back(), bytes, stream, kLongNs);
    }
    for (std::size_t i = 0; i < streams.size(); ++i) world.deallocate(ptrs[i], streams[i]);
    const Bytes mapped = world.statistics().mapped_bytes;
    for (const StreamHandle stream : streams) {
      const DevicePtr ptr = world.allocate(bytes, stream);
      world.use(ptr, bytes, stream);
      world.deallocate(ptr, stream);
    }
    EXPECT_EQ(world.statistics().mapped_bytes, mapped) << bytes;
    world.wait();
  }
}

}  // namespace
}  // namespace vpmm::test
