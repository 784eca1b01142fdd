// SPDX-License-Identifier: Apache-2.0
// context: where a request looks for memory before the pool grows, and which streams it asks for
// proof.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr Bytes kTwo = 2 * kPage;  // streams cache up to four pages
constexpr std::uint64_t kVeryLongNs = 1000 * kLongNs;

// --- proof

// A pool below its peak, so that no request is urgent: one stream has freed memory without an
// event, and does not call.
class Unanswered {
 public:
  Unanswered() {
    constexpr int kOften = 10;
    std::vector<StreamHandle> busy;
    for (int i = 0; i < kOften; ++i) {
      busy.push_back(world.stream());
      const DevicePtr passing = world.allocate(40 * kPage, busy.back());
      world.use(passing, 40 * kPage, busy.back(), kLongNs);
      world.deallocate(passing, busy.back());
    }
    world.sim.run_until_idle();
    EXPECT_TRUE(world.pool->streams().synchronize().ok());
    EXPECT_TRUE(world.pool->limits().trim(0).ok());
    EXPECT_EQ(world.statistics().peak_mapped_bytes, kOften * 40 * kPage);
    world.allocate(60 * kPage, own);
    freed = world.allocate(12 * kPage, silent);
    kept = world.allocate(kTwo, silent);
    world.use(freed, 12 * kPage, silent, kVeryLongNs);
    world.use(kept, kTwo, silent, kVeryLongNs);
  }
  void fall_silent() { world.deallocate(freed, silent); }
  std::uint64_t events() const { return world.calls.count(Call::ctx_record_event); }
  // Number of requests until one has all work proven.
  template <typename Request>
  int requests_until_proof(Request&& request) {
    const std::uint64_t before = events();
    for (int i = 1; i <= 40; ++i) {
      request();
      if (events() != before) return i;
    }
    return 0;
  }

  HookedWorld world{[] {
    WorldOptions options = page_by_page_world();
    options.config.prefer = settings::Prefer::latency;
    return options;
  }()};
  const StreamHandle own = world.stream();
  const StreamHandle silent = world.stream();
  DevicePtr freed{};
  DevicePtr kept{};
};

TEST(ProofOfOtherStreams, is_taken_from_one_that_did_not_call_during_eight_misses) {
  Unanswered scene;
  scene.fall_silent();
  const auto miss = [&] { scene.world.allocate(5 * kPage, scene.own); };
  EXPECT_EQ(scene.requests_until_proof(miss), 9);
  // From then on eight more, if it only tries.
  ASSERT_TRUE(scene.world.pool->deallocate_if_ready(scene.kept, scene.silent));
  EXPECT_EQ(scene.requests_until_proof(miss), 8);
}

// It gives idle chunks back and looks again.
TEST(ProofOfOtherStreams, counts_a_request_that_looks_twice_once) {
  Unanswered scene;
  HookedWorld& world = scene.world;
  world.deallocate(world.allocate(40 * kPage, scene.own), scene.own);
  world.sim.advance_host_ns(kLongNs);
  scene.fall_silent();
  pool::Request request{3 * kPage, 0, scene.own};
  request.one_chunk = true;
  const std::uint64_t released = world.statistics().chunks_released;
  EXPECT_EQ(scene.requests_until_proof([&] { EXPECT_TRUE(world.pool->allocate(request).ok()); }),
            9);
  EXPECT_GT(world.statistics().chunks_released, released);
}

TEST(ProofOfOtherStreams, is_not_asked_of_the_stream_itself) {
  for (const Bytes wanted : {20 * kPage, 6 * kPage}) {
    PoolWorld world(page_by_page_world());
    const StreamHandle stream = world.stream();
    const DevicePtr freed = world.allocate(12 * kPage, stream);
    world.use(freed, 12 * kPage, stream, kLongNs);
    world.deallocate(freed, stream);
    world.allocate(wanted, stream);
    world.allocate(wanted, stream);
    EXPECT_EQ(world.statistics().events_recorded, 0u) << wanted;
  }
}

TEST(ProofOfOtherStreams, is_not_asked_of_one_whose_memory_is_in_use_again) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream(), other = world.stream();
  world.deallocate(world.allocate(12 * kPage, other), other);
  world.allocate(12 * kPage, other);
  world.allocate(20 * kPage, stream);
  EXPECT_EQ(world.statistics().events_recorded, 0u);
}

// --- the caches of streams

// Two ranges fit: one that is larger, and one of which the stream keeps a part.
TEST(SearchOfALargeRequest, sees_what_its_stream_has_cached_beside_free_memory) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  world.allocate(1000, world.stream());  // so that no hit goes without a visit
  world.deallocate(world.allocate(64 * kPage, stream), stream);
  const DevicePtr cached = world.allocate(kTwo, stream);
  const DevicePtr beside = world.allocate(8 * kPage, stream);
  const DevicePtr wall = world.allocate(5 * kPage, stream);
  const DevicePtr larger = world.allocate(16 * kPage, stream);
  world.allocate(33 * kPage, stream);
  ASSERT_TRUE(beside == cached + kTwo && wall == beside + 8 * kPage && larger == wall + 5 * kPage);
  world.deallocate(larger, stream);
  world.deallocate(beside, stream);
  world.deallocate(cached, stream);
  EXPECT_EQ(world.allocate(10 * kPage, stream), cached);
}

TEST(SearchForPages, takes_one_allocation_of_its_own_stream_that_is_large_enough) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  world.allocate(1000, world.stream());  // so that no hit goes without a visit
  DevicePtr four[2];
  for (DevicePtr& each : four) each = world.allocate(4 * kPage, stream);
  for (const DevicePtr each : four) world.deallocate(each, stream);
  const Bytes mapped = world.statistics().mapped_bytes;
  const DevicePtr three = world.allocate(3 * kPage, stream);
  EXPECT_TRUE(three == four[0] || three == four[1]);
  EXPECT_FALSE(is_null(world.pool().allocate_if_ready(4 * kPage, 0, stream))) << "is still cached";
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

// Only before growth is work of others worth an event.
TEST(SearchForPages, asks_no_other_stream_for_proof_where_its_own_keeps_enough) {
  PoolWorld world(page_by_page_world());
  const StreamHandle own = world.stream(), other = world.stream();
  const DevicePtr cached = world.allocate(4 * kPage, own);
  const DevicePtr freed = world.allocate(10 * kPage, other);
  world.deallocate(cached, own);
  world.use(freed, 10 * kPage, other, kLongNs);
  world.deallocate(freed, other);
  const observe::Statistics before = world.statistics();
  ASSERT_EQ(before.cached_bytes, 4 * kPage);
  ASSERT_EQ(before.pending_bytes, 10 * kPage);
  EXPECT_EQ(world.allocate(3 * kPage, own), cached);
  EXPECT_EQ(world.allocate(9 * kPage, other), freed) << "a call in which it would answer";
  EXPECT_EQ(world.statistics().events_recorded, before.events_recorded);
  EXPECT_EQ(world.statistics().mapped_bytes, before.mapped_bytes);
}

// A pool may grow a little early, by what is live, however much it took from caches meanwhile.
TEST(SearchForPages, grows_early_rather_than_moves_what_came_from_caches) {
  PoolWorld world(page_by_page_world());
  const StreamHandle own = world.stream(), other = world.stream();
  DevicePtr pieces[3];
  for (DevicePtr& piece : pieces) {
    piece = world.allocate(4 * kPage, other);
    world.allocate(5 * kPage, own);
  }
  world.allocate(385 * kPage, own);
  for (const DevicePtr piece : pieces) {
    world.deallocate(piece, other);
    world.sim().advance_host_ns(1'000'000);  // each has an event
  }
  ASSERT_EQ(world.statistics().mapped_bytes, 412 * kPage);
  ASSERT_EQ(world.statistics().cached_bytes, 12 * kPage);
  world.allocate(100 * kPage, own);
  EXPECT_EQ(world.statistics().cached_bytes, 0u);
  EXPECT_EQ(world.statistics().chunks_moved, 0u);
  EXPECT_EQ(world.statistics().mapped_bytes, 512 * kPage);
}

// The kernel of one stream ends after the request's first look; the other's memory is no better.
TEST(SearchForPages, takes_what_is_newly_complete_before_it_flushes_other_streams) {
  HookedWorld world(page_by_page_world());
  const StreamHandle own = world.stream(), busy = world.stream(), other = world.stream();
  const DevicePtr cached = world.allocate(4 * kPage, other);
  const DevicePtr freed = world.allocate(40 * kPage, busy);
  world.allocate(40 * kPage, own);
  world.deallocate(cached, other);
  world.use(freed, 40 * kPage, busy, 1'000'000);
  world.deallocate(freed, busy);  // with an event
  ASSERT_EQ(world.statistics().outstanding_events, 2u);
  int queries = 0;
  world.hooks.on[Call::event_query] = [&] {
    if (++queries == 3) world.sim.advance_host_ns(2'000'000);
    return CuResult::success;
  };
  EXPECT_EQ(world.allocate(40 * kPage, own), freed);
  EXPECT_EQ(queries, 3);
  EXPECT_FALSE(is_null(world.pool->allocate_if_ready(4 * kPage, 0, other))) << "is still cached";
}

// Of two streams that keep as much, one gives half of it, and the other nothing.
TEST(SearchForPages, takes_what_one_stream_keeps_and_leaves_the_others_theirs) {
  WorldOptions options = page_by_page_world();
  options.config.prefer = settings::Prefer::footprint;
  PoolWorld world(options);
  const StreamHandle own = world.stream(), one = world.stream(), other = world.stream();
  std::vector<std::pair<StreamHandle, DevicePtr>> kept;
  for (const StreamHandle stream : {one, other})
    for (int i = 0; i < 2; ++i) kept.emplace_back(stream, world.allocate(4 * kPage, stream));
  for (const auto& [stream, ptr] : kept) world.deallocate(ptr, stream);
  ASSERT_TRUE(world.pool().streams().synchronize().ok());  // which takes back what they keep
  kept.clear();
  for (const StreamHandle stream : {one, other})
    for (int i = 0; i < 2; ++i) kept.emplace_back(stream, world.allocate(4 * kPage, stream));
  for (const auto& [stream, ptr] : kept) {
    world.deallocate(ptr, stream);
    world.sim().advance_host_ns(1'000'000);
  }
  const Bytes mapped = world.statistics().mapped_bytes;
  const DevicePtr taken = world.allocate(4 * kPage, own);
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(),
                          [&](const auto& each) { return each.second == taken; }));
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  std::vector<int> left;
  for (const StreamHandle stream : {one, other}) {
    left.push_back(0);
    for (int i = 0; i < 4; ++i)
      if (!is_null(world.pool().allocate_if_ready(4 * kPage, 0, stream))) ++left.back();
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre(1, 2));
}

// What is freed is complete, and known to be.
TEST(SearchForAPageToCut, takes_pages_that_other_streams_keep_before_the_pool_grows) {
  PoolWorld world(page_by_page_world());
  const StreamHandle one = world.stream(), other = world.stream();
  const auto take_small = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_TRUE(world.pool().allocate({kMiB, 0, other}).ok());
  };
  std::vector<DevicePtr> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(world.allocate(kTwo, one));
  take_small(800);
  for (const DevicePtr pair : pairs) {
    world.deallocate(pair, one);
    world.sim().advance_host_ns(1'000'000);  // each has an event
  }
  ASSERT_EQ(world.statistics().free_bytes, 8 * kTwo);
  const Bytes mapped = world.statistics().mapped_bytes;
  take_small(16);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

TEST(SearchForAPageToCut, leaves_caches_alone_where_a_page_is_idle) {
  PoolWorld world(page_by_page_world());
  const StreamHandle one = world.stream(), other = world.stream();
  const DevicePtr cached = world.allocate(kTwo, one);
  world.deallocate(world.allocate(8 * kPage, other), other);
  world.deallocate(cached, one);
  world.allocate(1000, other);
  EXPECT_EQ(world.pool().allocate_if_ready(kTwo, 0, one), cached);
  EXPECT_EQ(world.statistics().mapped_bytes, 10 * kPage);
}

// --- the driver's pool

class IdleInTheDriversPool : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = page_by_page_world();
    options.config.small = settings::SmallRequests::stream_ordered;
    return options;
  }
  // Blocks that make the driver's pool hold more than one page.
  std::vector<DevicePtr> blocks(int count = 8) {
    std::vector<DevicePtr> all;
    for (int i = 0; i < count; ++i) all.push_back(world.allocate(kMiB, stream));
    return all;
  }
  void free(const std::vector<DevicePtr>& all, pool::Stream on) {
    for (const DevicePtr ptr : all) world.deallocate(ptr, on);
  }
  std::uint64_t trims() { return world.calls().count(Call::mem_pool_trim_to); }

  PoolWorld world{options()};
  StreamHandle stream = world.stream();
};

TEST_F(IdleInTheDriversPool, goes_back_before_pages_set_a_record) {
  free(blocks(), stream);
  world.wait();
  const Bytes held = world.statistics().stream_ordered_bytes;
  ASSERT_GE(held, 4 * kPage);
  world.allocate(64 * kPage, stream);
  EXPECT_EQ(trims(), 1u);
  EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 64 * kPage);
}

TEST_F(IdleInTheDriversPool, stays_while_cleanup_is_deferred) {
  free(blocks(), stream);
  world.wait();
  world.pool().limits().defer_cleanup_begin();
  world.allocate(64 * kPage, stream);
  EXPECT_EQ(trims(), 0u);
  ASSERT_TRUE(world.pool().limits().defer_cleanup_end().ok());
}

TEST_F(IdleInTheDriversPool, stays_below_a_record) {
  const DevicePtr pages = world.allocate(64 * kPage, stream);
  world.deallocate(pages, stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  const std::uint64_t before = trims();
  free(blocks(), stream);
  world.wait();
  world.allocate(32 * kPage, stream);
  EXPECT_EQ(trims(), before);
}

// Memory whose work is not over is not idle.
TEST_F(IdleInTheDriversPool, is_not_what_waits_to_be_freed) {
  for (const std::ptrdiff_t freed : {3, 8}) {
    const std::vector<DevicePtr> all = blocks();
    for (const DevicePtr ptr : all) world.use(ptr, kMiB, stream, kLongNs);
    free({all.begin(), all.begin() + freed}, std::nullopt);
    world.allocate(64 * kPage, stream);
    EXPECT_EQ(trims(), 0u) << "freed " << freed;
  }
}

TEST_F(IdleInTheDriversPool, is_a_page_or_more) {
  const std::vector<DevicePtr> all = blocks(4);
  ASSERT_EQ(world.statistics().stream_ordered_bytes, 4 * kMiB);
  world.deallocate(all[0], stream);
  world.wait();
  world.allocate(64 * kPage, stream);
  EXPECT_EQ(trims(), 0u);
  world.deallocate(all[1], stream);
  world.wait();
  world.allocate(64 * kPage, stream);
  EXPECT_EQ(trims(), 1u);
  EXPECT_EQ(world.statistics().stream_ordered_bytes, kPage);
}

// --- chunks of their own

class SearchForOneChunk : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = page_by_page_world();
    options.config.prefer = settings::Prefer::latency;
    return options;
  }
  static pool::Request one_chunk(Bytes bytes, StreamHandle stream) {
    pool::Request request{bytes, 0, stream};
    request.one_chunk = true;
    return request;
  }
  HookedWorld world{options()};
  const StreamHandle own = world.stream();
  const StreamHandle busy = world.stream();

  void make_idle(Bytes pages) {
    const DevicePtr idle = world.allocate(pages * kPage, own);
    world.deallocate(idle, own);
    ASSERT_TRUE(world.pool->streams().synchronize().ok());
  }
};

// The kernel ends while idle chunks are given back for the request.
TEST_F(SearchForOneChunk, looks_again_after_it_gave_idle_chunks_back) {
  const DevicePtr freed = world.pool->allocate(one_chunk(20 * kPage, busy)).value();
  make_idle(40);
  world.pool->reports().reset_peaks();
  world.use(freed, 20 * kPage, busy, 5'000'000);
  world.deallocate(freed, busy);  // with an event
  bool has_waited = false;
  world.hooks.on[Call::mem_unmap] = [&] {
    if (!std::exchange(has_waited, true)) world.sim.advance_host_ns(10'000'000);
    return CuResult::success;
  };
  const std::uint64_t created = world.statistics().chunks_created;
  EXPECT_EQ(world.pool->allocate(one_chunk(20 * kPage, own)).value(), freed);
  EXPECT_TRUE(has_waited);
  EXPECT_EQ(world.statistics().chunks_created, created);
}

TEST_F(SearchForOneChunk, grows_where_idle_chunks_cannot_be_given_back) {
  make_idle(40);
  world.pool->reports().reset_peaks();
  world.faults.set_plan({{Call::mem_unmap}, 1, CuResult::unknown});
  EXPECT_TRUE(world.pool->allocate(one_chunk(20 * kPage, own)).ok());
  EXPECT_EQ(world.faults.fired(), 1u);
}

TEST_F(SearchForOneChunk, ends_where_the_context_breaks_meanwhile) {
  make_idle(40);
  world.pool->reports().reset_peaks();
  const std::uint64_t created = world.calls.count(Call::mem_create);
  world.faults.set_plan({{Call::mem_unmap}, 1, CuResult::illegal_address});
  expect_error(world.pool->allocate(one_chunk(20 * kPage, own)), ErrorCode::poisoned);
  EXPECT_EQ(world.calls.count(Call::mem_create), created);
}

TEST_F(SearchForOneChunk, leaves_what_its_stream_has_cached_while_there_is_memory) {
  const DevicePtr cached = world.allocate(kTwo, own);
  world.deallocate(cached, own);
  EXPECT_NE(world.pool->allocate(one_chunk(kTwo, own)).value(), cached);
  EXPECT_EQ(world.pool->allocate_if_ready(kTwo, 0, own), cached);
}

TEST(SearchOfAnOnlyStream, asks_for_no_proof_of_its_own_small_memory) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> small;
  for (int i = 0; i < 400; ++i) small.push_back(world.allocate(20 * kKiB, stream));
  for (std::size_t i = 0; i < small.size(); i += 2) world.deallocate(small[i], stream);
  const Bytes before = world.statistics().mapped_bytes;
  while (world.statistics().mapped_bytes < before + 4 * kPage) world.allocate(200 * kKiB, stream);
  EXPECT_EQ(world.calls().count(Call::ctx_record_event), 0u);
  EXPECT_EQ(world.calls().count(Call::event_record), 0u);
}

TEST(SearchOfAnOnlyStream, takes_parts_that_its_cache_gives_back_before_the_pool_grows) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> small;
  for (int i = 0; i < 1000; ++i) small.push_back(world.allocate(20 * kKiB, stream));
  for (std::size_t i = 0; i < small.size(); ++i)
    if (i % 10 != 0) world.deallocate(small[i], stream);
  const Bytes before = world.statistics().mapped_bytes;
  for (int i = 0; i < 20; ++i) world.allocate(100 * kKiB, stream);
  EXPECT_EQ(world.statistics().mapped_bytes, before);
}

}  // namespace
}  // namespace vpmm::test
