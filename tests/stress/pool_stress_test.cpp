// stress tests: many threads on one pool at once, made for the thread sanitizer: short, crowded, no GPU work.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::stress {
namespace {

using driver::CuResult;
using driver::StreamHandle;

class Hammer {
 public:
  explicit Hammer(const pool::Config& config) : sim_(options()) {
    EXPECT_EQ(sim_.init(), CuResult::success);
    EXPECT_EQ(sim_.device_primary_ctx_retain(0, context_), CuResult::success);
    EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
    auto created = context::Context::create(sim_, 0, config);
    EXPECT_TRUE(created.ok());
    if (created) pool_ = std::move(created).value();
  }
  // Everything is freed by now; nothing may be left, and nothing may have been handed out twice.
  ~Hammer() {
    sim_.run_until_idle();
    EXPECT_TRUE(pool_->synchronize().ok());
    EXPECT_TRUE(pool_->trim(0).ok());
    EXPECT_EQ(pool_->validate(), "");
    EXPECT_EQ(pool_->statistics().live_allocations, 0u);
    pool_.reset();
    EXPECT_EQ(sim_.census().chunks, 0u);
    EXPECT_EQ(sim_.census().reservations, 0u);
    EXPECT_EQ(sim_.hazard_count(), 0u) << (sim_.hazards().empty() ? "" : sim_.hazards().front().describe());
  }
  Hammer(const Hammer&) = delete;
  Hammer& operator=(const Hammer&) = delete;

  context::Context& pool() { return *pool_; }
  StreamHandle stream() {
    StreamHandle stream{};
    EXPECT_EQ(sim_.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
    return stream;
  }
  void destroy(StreamHandle stream) { EXPECT_EQ(sim_.stream_destroy(stream), CuResult::success); }

  // Runs all at once, each in a thread with the context current.
  void together(const std::vector<std::function<void()>>& works) {
    std::vector<std::thread> threads;
    std::latch all_there(static_cast<std::ptrdiff_t>(works.size()));
    for (const auto& work : works)
      threads.emplace_back([&] {
        EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
        all_there.arrive_and_wait();
        work();
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = kGiB;
    options.schedule = driver::sim::Schedule::random;
    return options;
  }

  driver::sim::SimDriver sim_;
  driver::ContextHandle context_{};
  std::unique_ptr<context::Context> pool_;
};

pool::Config small_config(bool page_chunks) {
  pool::Config config;
  config.va_size = 2 * kGiB;
  config.page_chunks = page_chunks;
  config.chunk_max = 16 * kMiB;
  config.log = pool::LogLevel::quiet;
  return config;
}

void free_now(Hammer& hammer, DevicePtr ptr, context::Stream stream) {
  EXPECT_TRUE(hammer.pool().deallocate(ptr, stream).ok());
}

// Allocates and frees on a stream of its own, ways of freeing in turn.
void churn(Hammer& hammer, std::uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  const StreamHandle own = hammer.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < rounds; ++i) {
    const Bytes bytes = random() % 3 == 0 ? 1 + random() % kMiB : (1 + random() % 12) * kMiB;
    const auto made = hammer.pool().allocate({bytes, 0, random() % 4 == 0 ? std::nullopt : context::Stream(own)});
    if (made) live.push_back(made.value());
    while (live.size() > 6 || (!made && !live.empty())) {
      const std::uint64_t way = random() % 3;
      if (way == 0) hammer.pool().deallocate_deferred(live.back());
      if (way != 0) free_now(hammer, live.back(), way == 1 ? context::Stream(own) : std::nullopt);
      live.pop_back();
    }
  }
  for (const DevicePtr ptr : live) EXPECT_TRUE(hammer.pool().deallocate(ptr, own).ok());
}

class PoolStress : public ::testing::TestWithParam<bool> {};

TEST_P(PoolStress, threads_with_streams_of_their_own_allocate_and_free_at_once) {
  Hammer hammer(small_config(GetParam()));
  std::vector<std::function<void()>> works;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) works.push_back([&hammer, seed] { churn(hammer, seed, 600); });
  hammer.together(works);
}

TEST_P(PoolStress, observers_and_limits_change_nothing_for_those_who_allocate) {
  Hammer hammer(small_config(GetParam()));
  std::atomic<int> busy{3};
  const auto beside = [&](const std::function<void()>& look) {
    return [&busy, look] {
      while (busy.load() > 0) look();
    };
  };
  std::vector<std::function<void()>> works;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    works.push_back([&, seed] {
      churn(hammer, seed, 600);
      --busy;
    });
  works.push_back(beside([&] { EXPECT_EQ(hammer.pool().validate(), ""); }));
  works.push_back(beside([&] {
    const observe::Statistics now = hammer.pool().statistics();
    EXPECT_LE(now.live_bytes, now.peak_live_bytes);
    static_cast<void>(hammer.pool().snapshot());
    hammer.pool().reset_peaks();
  }));
  works.push_back(beside([&] {
    hammer.pool().set_capacity(64 * kMiB);
    EXPECT_TRUE(hammer.pool().trim(16 * kMiB).ok());
    hammer.pool().set_capacity(std::nullopt);
    EXPECT_TRUE(hammer.pool().memory_info().ok());
  }));
  works.push_back(beside([&] { EXPECT_TRUE(hammer.pool().synchronize().ok()); }));
  hammer.together(works);
}

// More timelines than are kept: idle ones are retired while others' calls are going on.
TEST_P(PoolStress, streams_that_come_and_go_are_forgotten_while_others_allocate) {
  Hammer hammer(small_config(GetParam()));
  std::vector<std::function<void()>> works;
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    works.push_back([&hammer, thread] {
      for (std::uint64_t i = 0; i < 300; ++i) {
        const StreamHandle stream = hammer.stream();
        const auto made = hammer.pool().allocate({(1 + (i + thread) % 20) * kMiB, 0, stream});
        if (made) free_now(hammer, made.value(), stream);
        hammer.destroy(stream);
      }
    });
  hammer.together(works);
}

TEST_P(PoolStress, the_callback_of_a_pool_that_runs_short_frees_what_it_holds) {
  pool::Config config = small_config(GetParam());
  config.capacity = 48 * kMiB;
  Hammer hammer(config);
  std::atomic<std::uint64_t> hoard{0};
  const auto drop = [&] {
    const std::uint64_t held = hoard.exchange(0);
    if (held == 0) return false;
    EXPECT_TRUE(hammer.pool().deallocate(DevicePtr{held}, std::nullopt).ok());
    return true;
  };
  hammer.pool().set_out_of_memory_callback([&](const context::OutOfMemory&) { return drop(); });
  std::vector<std::function<void()>> works;
  for (int thread = 0; thread < 4; ++thread)
    works.push_back([&] {
      const StreamHandle own = hammer.stream();
      for (int i = 0; i < 400; ++i) {
        const auto made = hammer.pool().allocate({14 * kMiB, 0, own});
        if (!made) continue;
        std::uint64_t none = 0;
        if (!hoard.compare_exchange_strong(none, to_integer(made.value()))) free_now(hammer, made.value(), own);
      }
    });
  hammer.together(works);
  drop();
}

TEST_P(PoolStress, a_recording_starts_and_stops_while_others_allocate) {
  Hammer hammer(small_config(GetParam()));
  const std::string path = ::testing::TempDir() + "vpmm_stress_" + std::to_string(GetParam()) + ".csv.gz";
  std::vector<std::function<void()>> works;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) works.push_back([&hammer, seed] { churn(hammer, seed, 300); });
  works.push_back([&] {
    for (int i = 0; i < 30; ++i) {
      EXPECT_TRUE(hammer.pool().start_recording(path).ok());
      EXPECT_TRUE(hammer.pool().stop_recording().ok());
    }
  });
  hammer.together(works);
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Policies, PoolStress, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& each) {
  return each.param ? std::string("pages") : std::string("adaptive");
});

}  // namespace
}  // namespace vpmm::stress
