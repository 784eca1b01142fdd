// SPDX-License-Identifier: Apache-2.0
// stress tests: many threads on one pool at once, made for the thread sanitizer: short, crowded, no
// GPU work.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "stress/hammer.hpp"

namespace vpmm::stress {
namespace {

// Allocates and frees on the stream of its thread, ways of freeing in turn.
void churn(Hammer& hammer, std::uint64_t thread, int rounds) {
  std::mt19937_64 random(thread);
  const StreamHandle own = hammer.stream_of(thread);
  std::vector<DevicePtr> live;
  for (int i = 0; i < rounds && hammer.goes_on(); ++i) {
    const Bytes bytes = random() % 3 == 0 ? 1 + random() % kMiB : (1 + random() % 12) * kMiB;
    const auto made = hammer.allocate(bytes, random() % 4 == 0 ? std::nullopt : pool::Stream(own));
    if (made) live.push_back(made.value());
    while (live.size() > 6 || (!made && !live.empty())) {
      const std::uint64_t way = random() % 3;
      if (way == 0) hammer.deallocate_deferred(live.back());
      if (way != 0) hammer.deallocate(live.back(), way == 1 ? pool::Stream(own) : std::nullopt);
      live.pop_back();
    }
  }
  for (const DevicePtr ptr : live) hammer.deallocate(ptr, own);
}

class PoolStress : public ::testing::TestWithParam<Run> {
 protected:
  Hammer hammer{hammer_for(GetParam())};
  std::vector<std::function<void()>> works;
};

TEST_P(PoolStress, eight_threads_allocate_and_free_at_once) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed)
    works.push_back([this, seed] { churn(hammer, seed, 600); });
  hammer.together(works);
}

TEST_P(PoolStress, observers_and_limits_change_nothing_for_those_who_allocate) {
  std::atomic<int> busy{3};
  const auto beside = [&](const std::function<void()>& look) {
    return [&busy, look] {
      while (busy.load() > 0) {
        Watchdog::doing("look");
        look();
      }
    };
  };
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    works.push_back([&, seed] {
      churn(hammer, seed, 600);
      --busy;
    });
  works.push_back(beside([&] { EXPECT_EQ(hammer.pool().reports().validate(), ""); }));
  works.push_back(beside([&] {
    const observe::Statistics now = hammer.pool().reports().statistics();
    EXPECT_LE(now.live_bytes, now.peak_live_bytes);
    static_cast<void>(hammer.pool().reports().snapshot());
    hammer.pool().reports().reset_peaks();
  }));
  works.push_back(beside([&] {
    hammer.pool().limits().set_capacity(64 * kMiB);
    EXPECT_TRUE(hammer.pool().limits().trim(16 * kMiB).ok());
    hammer.pool().limits().set_capacity(std::nullopt);
    EXPECT_TRUE(hammer.pool().limits().memory_info().ok());
  }));
  works.push_back(beside([&] { EXPECT_TRUE(hammer.pool().streams().synchronize().ok()); }));
  hammer.together(works);
}

// More timelines than are kept: idle ones are retired while others' calls are going on.
TEST_P(PoolStress, streams_that_come_and_go_are_forgotten_while_others_allocate) {
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    works.push_back([this, thread] {
      for (std::uint64_t i = 0; i < 300; ++i) {
        const StreamHandle stream = hammer.stream();
        const auto made = hammer.allocate((1 + (i + thread) % 20) * kMiB, stream);
        if (made) hammer.deallocate(made.value(), stream);
        hammer.destroy(stream);
      }
    });
  hammer.together(works);
}

TEST_P(PoolStress, the_callback_of_a_pool_that_runs_short_frees_what_it_holds) {
  hammer.pool().limits().set_capacity(48 * kMiB);
  std::atomic<std::uint64_t> hoard{0};
  const auto drop = [&] {
    const std::uint64_t held = hoard.exchange(0);
    if (held == 0) return false;
    hammer.deallocate(DevicePtr{held}, std::nullopt);
    return true;
  };
  hammer.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return drop(); });
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    works.push_back([&, thread] {
      const StreamHandle own = hammer.stream_of(thread);
      for (int i = 0; i < 400 && hammer.goes_on(); ++i) {
        const auto made = hammer.allocate(14 * kMiB, own);
        if (!made) continue;
        std::uint64_t none = 0;
        if (!hoard.compare_exchange_strong(none, to_integer(made.value())))
          hammer.deallocate(made.value(), own);
      }
    });
  hammer.together(works);
  hammer.pool().limits().out_of_memory_callbacks().set({});
  drop();
}

TEST_P(PoolStress, a_recording_starts_and_stops_while_others_allocate) {
  const std::string path =
      ::testing::TempDir() + "vpmm_stress_" + run_name({GetParam(), 0}) + ".csv.gz";
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    works.push_back([this, seed] { churn(hammer, seed, 300); });
  works.push_back([&] {
    for (int i = 0; i < 30; ++i) {
      EXPECT_TRUE(hammer.pool().reports().start_recording(path).ok());
      EXPECT_TRUE(hammer.pool().reports().stop_recording().ok());
    }
  });
  hammer.together(works);
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Runs, PoolStress, runs(), run_name);

}  // namespace
}  // namespace vpmm::stress
