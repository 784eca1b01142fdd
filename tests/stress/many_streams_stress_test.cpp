// SPDX-License-Identifier: Apache-2.0
// stress tests: rounds in which a few threads use many streams in turn, which come and go, while an
// observer trims, limits, looks and records.
//
// VPMM_STRESS_SECONDS: how long it goes on. VPMM_STRESS_STREAMS: how many streams there are.
// VPMM_SEED: the first round.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "stress/hammer.hpp"
#include "support/page_size.hpp"
#include "support/pool_observer.hpp"
#include "support/stress_seconds.hpp"

namespace vpmm::stress {
namespace {

std::size_t number_from(const char* variable, std::size_t otherwise) {
  const char* const asked = std::getenv(variable);
  return asked == nullptr ? otherwise : std::stoull(asked);
}

class ManyStreamsRound {
 public:
  explicit ManyStreamsRound(std::uint64_t seed)
      : seed_(seed), hammer_(config(seed), 0, "VPMM_SEED=" + std::to_string(seed)) {}

  void run(int steps) {
    std::vector<std::function<void()>> works;
    busy_ = kThreads;
    for (std::uint64_t thread = 0; thread < kThreads; ++thread)
      works.emplace_back([this, thread, steps] {
        Worker(*this, thread).run(steps);
        --busy_;
      });
    works.emplace_back(
        [this] { EXPECT_EQ(test::PoolObserver(hammer_.pool(), seed_).run(busy_), ""); });
    hammer_.together(works);
    for (const DevicePtr ptr : left_) hammer_.deallocate(ptr, std::nullopt);
  }

 private:
  static constexpr std::uint64_t kThreads = 4;

  // Each stream is one thread's, with what lives on it.
  struct Lane {
    StreamHandle stream{};
    std::unique_ptr<context::BoundStream> bound;
    std::vector<DevicePtr> live;
  };

  class Worker {
   public:
    Worker(ManyStreamsRound& round, std::uint64_t thread)
        : round_(round), hammer_(round.hammer_), random_(round.seed_ * 100 + thread) {
      lanes_.resize(number_from("VPMM_STRESS_STREAMS", 200) / kThreads);
      for (Lane& lane : lanes_) begin(lane);
    }
    void run(int steps) {
      for (int i = 0; i < steps && hammer_.goes_on(); ++i) {
        const bool is_in_turn = steps / 4 < i && i < steps / 2;
        step(lanes_[is_in_turn ? static_cast<std::size_t>(i) % lanes_.size()
                               : below(lanes_.size())]);
      }
      for (Lane& lane : lanes_) empty(lane);
    }

   private:
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
    Bytes draw() {
      constexpr std::array<Bytes, 6> kUsual{256, 5000, 100 * kKiB, kMiB, kPage, 2 * kPage};
      return below(8) != 0 ? kUsual[below(kUsual.size())] : 1 + below(3 * kMiB);
    }
    void begin(Lane& lane) {
      lane.stream = hammer_.stream();
      if (below(8) != 0) return;
      auto bound = hammer_.pool().bind(lane.stream);
      EXPECT_TRUE(bound.ok());
      if (bound) lane.bound = std::move(bound).value();
    }
    void step(Lane& lane) {
      const Bytes bytes = draw();
      const Result<DevicePtr> made = hammer_.allocate(bytes, lane.stream, lane.bound.get());
      if (made) {
        hammer_.use(made.value(), bytes, lane.stream);
        lane.live.push_back(made.value());
      }
      const std::size_t most = made ? below(3) : 0;
      while (lane.live.size() > most) free(lane);
      if (below(50) == 0) round_.take_one();
      if (below(100) != 0) return;
      end(lane);
      begin(lane);
    }
    void free(Lane& lane) {
      const DevicePtr ptr = lane.live.back();
      lane.live.pop_back();
      if (below(20) == 0) return round_.leave(ptr);
      if (lane.bound == nullptr && below(2) == 0) return hammer_.try_deallocate(ptr, lane.stream);
      hammer_.deallocate(ptr, lane.stream, lane.bound.get());
    }
    void empty(Lane& lane) {
      while (!lane.live.empty()) free(lane);
    }
    // What lives on it is freed before, or by others later.
    void end(Lane& lane) {
      if (below(2) == 0) empty(lane);
      for (const DevicePtr ptr : lane.live) round_.leave(ptr);
      lane.live.clear();
      lane.bound.reset();
      hammer_.destroy(lane.stream);
    }

    ManyStreamsRound& round_;
    Hammer& hammer_;
    std::mt19937_64 random_;
    std::vector<Lane> lanes_;
  };

  static settings::Config config(std::uint64_t seed) {
    constexpr std::array kPrefer{settings::Prefer::footprint, settings::Prefer::balanced,
                                 settings::Prefer::latency};
    settings::Config config = small_config(seed % 4 == 0);
    config.prefer = kPrefer[seed % kPrefer.size()];
    if (seed % 2 == 0) config.streams.crowded_after = 0;
    return config;
  }

  void leave(DevicePtr ptr) {
    const std::lock_guard lock(mutex_);
    left_.push_back(ptr);
  }
  void take_one() {
    DevicePtr ptr{};
    {
      const std::lock_guard lock(mutex_);
      if (left_.empty()) return;
      ptr = left_.back();
      left_.pop_back();
    }
    hammer_.deallocate(ptr, std::nullopt);
  }

  const std::uint64_t seed_;
  Hammer hammer_;
  std::atomic<std::uint64_t> busy_{0};
  std::mutex mutex_;
  std::vector<DevicePtr> left_;
};

TEST(ManyStreamsStress, threads_use_many_streams_in_turn_that_come_and_go) {
  constexpr int kSteps = 3000;
  const std::uint64_t first = number_from("VPMM_SEED", 1);
  const auto end = test::end_of_stress(std::chrono::seconds(2));
  std::uint64_t seed = first;
  do {
    ManyStreamsRound(seed).run(kSteps);
    EXPECT_FALSE(HasFailure()) << "in the round of VPMM_SEED=" << seed;
    ++seed;
  } while (!HasFailure() && (seed < first + 3 || std::chrono::steady_clock::now() < end));
  std::printf("%llu rounds\n", static_cast<unsigned long long>(seed - first));
}

}  // namespace
}  // namespace vpmm::stress
