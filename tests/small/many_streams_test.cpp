// SPDX-License-Identifier: Apache-2.0
// small: more streams than a pool remembers without being asked: those in turn stay warm, those
// that are gone leave nothing behind, and all of them together keep little.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "small/crowd.hpp"
#include "small/stream_cache.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// --- in turn

struct Turns {
  std::size_t streams = 0;
  Bytes bytes = 0;
  bool is_random = false;
  bool are_few() const { return streams <= 64; }  // each keeps all it freed
};

class StreamsInTurn : public ::testing::TestWithParam<Turns> {};

// With as much live that the pool may grow early by what all of them keep.
TEST_P(StreamsInTurn, stay_warm) {
  const Turns& turns = GetParam();
  Crowd crowd(turns.streams);
  const DevicePtr rest =
      crowd.take(std::max(8 * kGiB, 48 * turns.streams * turns.bytes), crowd.streams[0]);
  std::vector<std::pair<DevicePtr, StreamHandle>> live;
  for (std::size_t i = 0; i < 4 * turns.streams && turns.are_few(); ++i)
    live.emplace_back(crowd.take(turns.bytes, crowd.streams[i / 4]), crowd.streams[i / 4]);
  std::mt19937_64 random(turns.streams + turns.bytes);
  const auto run = [&](std::size_t rounds) {
    for (std::size_t i = 0; i < rounds * turns.streams; ++i) {
      const std::size_t next = turns.is_random ? random() % turns.streams : i % turns.streams;
      crowd.pair(turns.bytes, crowd.streams[next]);
      if (i % 64 == 0) crowd.world.sim().advance_host_ns(10'000);
    }
  };
  run(turns.is_random || turns.are_few() ? 50
                                         : 6);  // what others wanted proof of is proven by then
  const std::uint64_t before = crowd.calls_through_the_lock();
  run(2);
  // None that asks for memory; a few frees record an event that others wanted.
  EXPECT_LE(crowd.calls_through_the_lock() - before,
            std::max<std::size_t>(16, 2 * turns.streams / 20));
  EXPECT_EQ(crowd.world.statistics().timelines, turns.streams);
  crowd.give(rest, crowd.streams[0]);
  for (const auto& [ptr, stream] : live) crowd.give(ptr, stream);
  EXPECT_TRUE(turns.are_few() || crowd.kept() <= crowd.most_kept()) << crowd.kept();
}

std::vector<Turns> turns() {
  std::vector<Turns> all;
  for (const std::size_t streams :
       {std::size_t{4}, std::size_t{20}, std::size_t{65}, std::size_t{200}, std::size_t{2000}})
    for (const Bytes bytes : {kKiB, 100 * kKiB, kMiB, 4 * kMiB})
      for (const bool is_random : {false, true}) all.push_back({streams, bytes, is_random});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Turns, StreamsInTurn, ::testing::ValuesIn(turns()), [](const auto& each) {
  const Turns& of = each.param;
  return std::to_string(of.streams) + "_of_" + std::to_string(of.bytes / kKiB) + "_KiB" +
         (of.is_random ? "_at_random" : "");
});

// Each thread's default stream has the handle that all have.
TEST(ThreadsWithDefaultStreams, stay_warm) {
  constexpr int kThreads = 65;
  constexpr int kPairs = 50;
  PoolWorld world(large_gpu());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  ASSERT_FALSE(is_null(world.allocate(8 * kGiB, world.stream())));
  std::vector<std::uint64_t>
      looks;  // which context is current: one a warm call, two a call through the lock
  looks.reserve(100);
  const auto note = [&]() noexcept { looks.push_back(world.calls().count(Call::ctx_get_current)); };
  std::barrier together(kThreads, note);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      EXPECT_EQ(world.sim().ctx_set_current(context), CuResult::success);
      const auto run = [&](int pairs) {
        for (int pair = 0; pair < pairs; ++pair) {
          auto made = world.pool().allocate({kKiB, 0, driver::kPerThreadStream});
          EXPECT_TRUE(made.ok());
          EXPECT_TRUE(world.pool().deallocate(made.value(), driver::kPerThreadStream).ok());
        }
      };
      for (int turn = 0; turn < 6; ++turn) {
        run(1);
        together.arrive_and_wait();
        together.arrive_and_wait();
      }
      run(kPairs);
      together.arrive_and_wait();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(looks.back() - looks[looks.size() - 2], 2 * kThreads * kPairs + kThreads * kPairs / 50);
}

// --- all is freed

class Kept : public ::testing::TestWithParam<settings::Prefer> {};

TEST_P(Kept, little_is_when_all_is_freed_at_once) {
  for (const std::size_t streams : {std::size_t{65}, std::size_t{200}, std::size_t{2000}})
    for (const Bytes bytes : {kMiB, 4 * kMiB}) {
      Crowd crowd(streams, large_gpu(GetParam()));
      crowd.burst(bytes, streams == 2000 ? 1 : 8);
      EXPECT_LE(crowd.kept(), crowd.most_kept()) << streams << " streams, " << bytes;
      EXPECT_EQ(crowd.world.statistics().live_bytes, 0u);
    }
}

// Of every two frees one asks for more, and the next one has it.
TEST_P(Kept, as_much_as_is_live_may_be_of_one_stream) {
  Crowd crowd(100, large_gpu(GetParam()));
  const DevicePtr rest = crowd.take(300 * kMiB, crowd.streams[0]);
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  std::vector<DevicePtr> live;
  for (int i = 0; i < 110; ++i) live.push_back(crowd.take(4 * kMiB, crowd.streams[1]));
  for (const DevicePtr ptr : live) crowd.give(ptr, crowd.streams[1]);
  EXPECT_GE(crowd.kept(), 55 * 4 * kMiB);
  for (int i = 0; i < 55; ++i)
    EXPECT_FALSE(is_null(crowd.world.pool().allocate_if_ready(4 * kMiB, 0, crowd.streams[1]))) << i;
  crowd.give(rest, crowd.streams[1]);
}

// Spans that are freed stay with their stream beyond what it may keep, until it gives all back.
TEST_P(Kept, no_more_than_is_live_is_of_one_stream_after_each_free) {
  Crowd crowd(100, large_gpu(GetParam()));
  const DevicePtr rest = crowd.take(64 * kMiB, crowd.streams[0]);
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  std::vector<DevicePtr> live;
  for (int i = 0; i < 200; ++i) live.push_back(crowd.take(kMiB, crowd.streams[1]));
  Bytes most = 0;
  for (const DevicePtr ptr : live) {
    crowd.give(ptr, crowd.streams[1]);
    const observe::Statistics now = crowd.world.statistics();
    const Bytes always = 100 * small::kUnit;
    EXPECT_LE(now.cached_bytes,
              always + std::max((now.allocated_bytes + now.cached_bytes) / 2, crowd.most_kept()));
    most = std::max(most, now.cached_bytes);
  }
  EXPECT_GE(most, 120 * kMiB);
  crowd.give(rest, crowd.streams[0]);
}

// Those that keep a unit keep it when others, which keep much, are told to give it back.
TEST_P(Kept, a_unit_always_is_also_when_others_keep_too_much) {
  Crowd crowd(100, large_gpu(GetParam()));
  const DevicePtr rest = crowd.take(8 * kGiB, crowd.streams[0]);
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  ASSERT_EQ(crowd.kept(), 100 * small::kUnit);
  std::vector<std::pair<DevicePtr, StreamHandle>> live;
  for (std::size_t i = 76; i < 100; ++i)
    live.emplace_back(crowd.take(4 * kMiB, crowd.streams[i]), crowd.streams[i]);
  for (const auto& [ptr, stream] : live) crowd.give(ptr, stream);
  EXPECT_GE(crowd.kept(), 76 * small::kUnit + 24 * 4 * kMiB);
  crowd.give(rest, crowd.streams[1]);
  EXPECT_LE(crowd.kept(), crowd.most_kept());
  EXPECT_GE(crowd.kept(), 76 * small::kUnit + 8 * kMiB) << "no more is taken back than it takes";
  for (std::size_t i = 0; i < 76; ++i)
    EXPECT_FALSE(is_null(crowd.world.pool().allocate_if_ready(kKiB, 0, crowd.streams[i]))) << i;
}

// So requests of one small size are warm on every stream, though nothing else lives.
TEST_P(Kept, a_slab_of_small_blocks_always_is) {
  for (const bool has_page_chunks : {false, true})
    for (const std::size_t streams : {std::size_t{65}, std::size_t{200}, std::size_t{2000}}) {
      Crowd crowd(streams, large_gpu(GetParam(), has_page_chunks));
      for (int i = 0; i < 4; ++i) crowd.round(kKiB);
      const std::uint64_t before = crowd.calls_through_the_lock();
      crowd.round(kKiB);
      EXPECT_EQ(crowd.calls_through_the_lock(), before) << streams;
      EXPECT_EQ(crowd.kept(), streams * small::kAlwaysKept);
    }
}

TEST_P(Kept, little_is_when_the_last_large_allocation_is_freed) {
  Crowd crowd(200, large_gpu(GetParam()));
  const DevicePtr rest = crowd.take(64 * kGiB, crowd.streams[0]);
  for (int i = 0; i < 4; ++i) crowd.round(4 * kMiB);
  crowd.give(rest, crowd.streams[1]);
  EXPECT_LE(crowd.kept(), crowd.most_kept());
}

// What the first of them kept while they were few counts as well.
TEST_P(Kept, little_is_however_much_was_before_there_were_many) {
  Crowd crowd(64, large_gpu(GetParam()));
  crowd.burst(4 * kMiB, 16);
  if (GetParam() != settings::Prefer::footprint) {  // whose streams find memory before they grow
    EXPECT_GT(crowd.kept(), 3 * kGiB) << "a few may keep all";
  }
  crowd.pair(kKiB, crowd.world.stream());
  EXPECT_LE(crowd.kept(), crowd.most_kept());
}

TEST_P(Kept, never_more_than_is_live) {
  Crowd crowd(200, large_gpu(GetParam()));
  std::mt19937_64 random(7);
  std::vector<std::pair<DevicePtr, StreamHandle>> live;
  for (int i = 0; i < 20'000; ++i) {
    const StreamHandle stream = crowd.streams[random() % 200];
    if (const Bytes bytes = 1 + random() % (16 * kMiB); live.size() < 400 || random() % 2 == 0)
      live.emplace_back(crowd.take(bytes, stream), stream);
    while (live.size() > (i / 2'000 % 2 == 0 ? 400 : 40)) {
      std::swap(live[random() % live.size()], live.back());
      crowd.give(live.back().first, live.back().second);
      live.pop_back();
    }
    if (i % 100 != 0) continue;
    const observe::Statistics now = crowd.world.statistics();
    ASSERT_LE(now.cached_bytes, std::max(now.allocated_bytes, now.peak_mapped_bytes / 100) +
                                    200 * small::kAlwaysKept);
  }
  for (const auto& [ptr, stream] : live) crowd.give(ptr, stream);
  EXPECT_LE(crowd.kept(), crowd.most_kept());
}

// Blocks that other streams used come back to their cache when the GPU is done with them, without a
// call of its stream.
TEST_P(Kept, little_is_of_what_comes_back_late) {
  Crowd crowd(200, large_gpu(GetParam()));
  std::vector<DevicePtr> live;
  for (const StreamHandle stream : crowd.streams) {
    for (int i = 0; i < 8; ++i) live.push_back(crowd.take(kMiB, stream));
    ASSERT_TRUE(crowd.world.pool().streams().make_wait(crowd.streams[0], stream).ok());
  }
  for (const DevicePtr ptr : live) {
    ASSERT_TRUE(crowd.world.pool().record_use(ptr, crowd.streams[0]).ok());
    crowd.world.use(ptr, kMiB, crowd.streams[0]);
  }
  for (std::size_t i = 0; i < live.size(); ++i) crowd.give(live[i], crowd.streams[i / 8]);
  crowd.world.sim().run_until_idle();
  for (Bytes pages = 20; pages < 40; ++pages) crowd.pair(pages * kPage, crowd.streams[0]);
  EXPECT_LE(crowd.kept(), crowd.most_kept());
}

TEST_P(Kept, nothing_is_after_a_trim_or_a_wait) {
  for (const bool is_trim : {false, true}) {
    Crowd crowd(200, large_gpu(GetParam()));
    const DevicePtr rest = crowd.take(8 * kGiB, crowd.streams[0]);
    for (int i = 0; i < 3; ++i) crowd.round(kMiB);
    EXPECT_GT(crowd.kept(), 0u);
    const bool is_done = is_trim ? crowd.world.pool().limits().trim(0).ok()
                                 : crowd.world.pool().streams().synchronize().ok();
    EXPECT_TRUE(is_done);
    EXPECT_EQ(crowd.kept(), 0u);
    crowd.give(rest, crowd.streams[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Preferences, Kept,
                         ::testing::Values(settings::Prefer::footprint, settings::Prefer::balanced,
                                           settings::Prefer::latency));

// --- streams that come and go

// Their memory outlives them. The hazard checker sees whoever gets it too early.
TEST(StreamsThatGo, leave_nothing_behind_when_their_memory_is_freed_later) {
  for (const bool has_page_chunks : {false, true}) {
    Crowd crowd(1, large_gpu(settings::Prefer::balanced, has_page_chunks));
    std::vector<DevicePtr> live;
    for (int i = 0; i < 10'000; ++i) {
      const StreamHandle stream = crowd.world.stream();
      const Bytes bytes = i % 3 == 0 ? kPage : 5000;
      live.push_back(crowd.take(bytes, stream));
      crowd.world.use(live.back(), bytes, stream);
      ASSERT_EQ(crowd.world.sim().stream_destroy(stream), CuResult::success);
      if (live.size() < 100) continue;
      for (const DevicePtr ptr : live)
        ASSERT_TRUE(crowd.world.pool()
                        .deallocate(ptr, i % 2 == 0 ? pool::Stream(crowd.streams[0]) : std::nullopt)
                        .ok());
      live.clear();
      crowd.world.sim().advance_host_ns(1'000'000);
    }
    EXPECT_LE(crowd.world.statistics().timelines, 300u);
    crowd.world.wait();
    for (Bytes pages = 9; pages < 30; ++pages) crowd.pair(pages * kPage, crowd.streams[0]);
    EXPECT_LE(crowd.world.statistics().timelines, 64u);
    for (const DevicePtr ptr : live)
      ASSERT_TRUE(crowd.world.pool().deallocate(ptr, std::nullopt).ok());
  }
}

// First the pool remembers all that come back, then few again.
TEST(StreamsThatGo, are_forgotten_although_others_came_back_before) {
  Crowd crowd(300);
  for (int i = 0; i < 3; ++i) crowd.round(kKiB);
  EXPECT_EQ(crowd.world.statistics().timelines, 300u);
  for (int i = 0; i < 20'000; ++i) {
    const StreamHandle stream = crowd.world.stream();
    crowd.pair(kMiB, stream);
    ASSERT_EQ(crowd.world.sim().stream_destroy(stream), CuResult::success);
    if (i % 16 == 0) crowd.world.sim().advance_host_ns(1'000'000);
  }
  EXPECT_LE(crowd.world.statistics().timelines, 400u);
}

// Of the context that is gone nothing is kept, and its successor's streams begin anew.
TEST(StreamsThatGo, with_their_context_leave_nothing_behind) {
  Crowd crowd(200);
  const DevicePtr rest = crowd.take(8 * kGiB, std::nullopt);
  for (int i = 0; i < 3; ++i) crowd.round(kMiB);
  ASSERT_TRUE(crowd.world.pool().streams().reset().ok());
  EXPECT_EQ(crowd.kept(), 0u);
  for (StreamHandle& stream : crowd.streams) stream = crowd.world.stream();
  for (int i = 0; i < 6; ++i) crowd.round(kMiB);
  EXPECT_EQ(crowd.world.statistics().timelines, 200u);
  const std::uint64_t before = crowd.calls_through_the_lock();
  crowd.round(kMiB);
  EXPECT_LE(crowd.calls_through_the_lock() - before, 20u);
  crowd.give(rest, std::nullopt);
  EXPECT_LE(crowd.kept(), crowd.most_kept());
}

// While a capture is known no event of the context is recorded, which would break it.
TEST(StreamsThatStay, disturb_no_capture) {
  Crowd crowd(200);
  const StreamHandle captured = crowd.world.stream();
  begin_capture(crowd.world, captured, driver::CaptureMode::global);
  const DevicePtr inside = crowd.take(kPage, captured);
  const std::uint64_t events = crowd.world.calls().count(Call::ctx_record_event);
  crowd.burst(kMiB, 4);
  EXPECT_EQ(crowd.world.calls().count(Call::ctx_record_event), events);
  crowd.give(inside, captured);
  destroy(crowd.world, end_capture(crowd.world, captured));
}

// Both have something that lives, so neither is forgotten.
TEST(StreamsThatStay, one_that_is_idle_gives_back_all_it_keeps_and_one_that_calls_nothing) {
  Crowd crowd(100);
  const StreamHandle idle = crowd.streams[0];
  const StreamHandle busy = crowd.streams[1];
  const DevicePtr rest = crowd.take(8 * kGiB, crowd.streams[2]);
  const DevicePtr of_idle = crowd.take(kPage, idle);
  const DevicePtr of_busy = crowd.take(kPage, busy);
  for (int i = 0; i < 3; ++i) {
    crowd.pair(4 * kMiB, idle);
    crowd.pair(4 * kMiB, busy);
  }
  EXPECT_EQ(crowd.kept(), 8 * kMiB);
  std::uint64_t visits = 0;
  for (int i = 0; i < 30; ++i) {
    for (std::size_t k = 2; k < 100; ++k) crowd.pair(9 * kPage, crowd.streams[k]);
    const std::uint64_t before = crowd.calls_through_the_lock();
    crowd.pair(4 * kMiB, busy);
    visits += crowd.calls_through_the_lock() - before;
  }
  EXPECT_EQ(crowd.kept(), 4 * kMiB) << "of the busy one";
  EXPECT_LE(visits, 6u) << "of 30 times, but for events that others want";
  for (const auto& [ptr, stream] : {std::pair{rest, idle}, {of_idle, idle}, {of_busy, busy}})
    crowd.give(ptr, stream);
}

// More than two thirds of what all may keep, one after the other.
TEST(StreamsThatStay, one_may_keep_what_an_idle_one_gave_back) {
  Crowd crowd(100);
  const StreamHandle idle = crowd.streams[0], busy = crowd.streams[1];
  const DevicePtr rest = crowd.take(300 * kMiB, crowd.streams[2]);
  const DevicePtr of_idle = crowd.take(kPage, idle), of_busy = crowd.take(kPage, busy);
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  const auto keep = [&](StreamHandle stream) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < 112; ++i) live.push_back(crowd.take(kMiB, stream));
    for (const DevicePtr ptr : live) crowd.give(ptr, stream);
    EXPECT_GE(crowd.kept(), 112 * kMiB) << (stream == idle ? "idle" : "busy");
  };
  keep(idle);
  for (int i = 0; i < 30; ++i)
    for (std::size_t k = 2; k < 100; ++k) crowd.pair(9 * kPage, crowd.streams[k]);
  EXPECT_LT(crowd.kept(), 4 * kMiB);
  keep(busy);
  for (const auto& [ptr, stream] : {std::pair{rest, idle}, {of_idle, idle}, {of_busy, busy}})
    crowd.give(ptr, stream);
}

// Each call through the lock looks at two streams in turn, once some are forgotten.
TEST(StreamsThatStay, one_is_idle_that_does_not_call_between_eight_looks) {
  Crowd crowd(70);
  std::vector<DevicePtr> live;  // so that the first 60 are not forgotten
  for (std::size_t i = 0; i < 60; ++i) live.push_back(crowd.take(kPage, crowd.streams[i]));
  const DevicePtr rest = crowd.take(8 * kGiB, crowd.streams[1]);
  crowd.round(kKiB);
  const auto call = [&](std::size_t turn) { crowd.pair(9 * kPage, crowd.streams[1 + turn % 50]); };
  for (std::size_t i = 0; i < 300; ++i) call(i);
  const std::size_t streams = crowd.world.statistics().timelines;
  ASSERT_LE(streams, 64u);
  for (int i = 0; i < 3; ++i) crowd.pair(4 * kMiB, crowd.streams[0]);
  const Bytes before = crowd.kept();
  std::size_t pairs = 0;
  for (; crowd.kept() + 4 * kMiB > before && pairs < 10 * streams; ++pairs) call(pairs);
  EXPECT_GE(pairs, 7 * streams / 4) << "two calls, so four looks";
  EXPECT_LE(pairs, 9 * streams / 4);
  for (std::size_t i = 0; i < live.size(); ++i) crowd.give(live[i], crowd.streams[i]);
  crowd.give(rest, crowd.streams[1]);
}

TEST(StreamsThatStay, a_bound_one_is_found_again_after_long_idleness) {
  Crowd crowd(200);
  const DevicePtr rest = crowd.take(8 * kGiB, crowd.streams[1]);
  auto bound = crowd.world.pool().bind(crowd.streams[0]);
  ASSERT_TRUE(bound.ok());
  const auto pair = [&] {
    const auto made = bound.value()->allocate(kMiB, 0);
    ASSERT_TRUE(made.ok());
    crowd.world.use(made.value(), kMiB, crowd.streams[0]);
    ASSERT_TRUE(bound.value()->deallocate(made.value()).ok());
  };
  pair();
  for (int i = 0; i < 30; ++i) {
    for (std::size_t k = 1; k < 200; ++k) crowd.pair(9 * kPage, crowd.streams[k]);
    crowd.world.sim().advance_host_ns(1'000'000);
  }
  for (int i = 0; i < 3; ++i) pair();
  const std::uint64_t before = crowd.calls_through_the_lock();
  for (int i = 0; i < 10; ++i) pair();
  EXPECT_LE(crowd.calls_through_the_lock(), before + 2);
  crowd.give(rest, crowd.streams[1]);
}

}  // namespace
}  // namespace vpmm::test
