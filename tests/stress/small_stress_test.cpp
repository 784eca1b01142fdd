// SPDX-License-Identifier: Apache-2.0
// stress tests: many threads on requests that pass the pool's lock by, with GPU work that the
// hazard checker watches.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "stress/hammer.hpp"
#include "support/page_size.hpp"

namespace vpmm::stress {
namespace {

// Blocks, runs and pages, sizes of a kind often alike, so that what is cached fits; runs that cross
// pages, too.
Bytes draw(std::mt19937_64& random) {
  constexpr std::array<Bytes, 8> kUsual{256,        1000, 5000,  100 * kKiB,
                                        200 * kKiB, kMiB, kPage, 3 * kPage};
  if (random() % 4 != 0) return kUsual[random() % kUsual.size()];
  if (random() % 2 != 0) return kMiB + random() % (900 * kKiB);
  return 1 + random() % (Bytes{1} << (random() % 23));
}

// Frees that other threads left for whoever passes by.
class Exchange {
 public:
  void put(DevicePtr ptr) {
    const std::lock_guard lock(mutex_);
    left_.push_back(ptr);
  }
  DevicePtr take() {
    const std::lock_guard lock(mutex_);
    if (left_.empty()) return {};
    const DevicePtr ptr = left_.back();
    left_.pop_back();
    return ptr;
  }

 private:
  std::mutex mutex_;
  std::vector<DevicePtr> left_;
};

// One thread: its stream, by handle or bound, and what it has live.
class Worker {
 public:
  Worker(Hammer& hammer, std::uint64_t seed, bool is_bound)
      : hammer_(hammer), random_(seed), own_(hammer.stream_of(seed)) {
    if (!is_bound) return;
    auto bound = hammer.pool().bind(own_);
    EXPECT_TRUE(bound.ok());
    if (bound) bound_ = std::move(bound).value();
  }
  void round() {
    const Bytes bytes = draw(random_);
    const Result<DevicePtr> made = hammer_.allocate(bytes, own_, bound_.get());
    if (made) {
      hammer_.use(made.value(), bytes, own_);
      live_.push_back(made.value());
    }
    while (live_.size() > 12 || (!made && !live_.empty())) free(pick());
  }
  DevicePtr pick() {
    std::swap(live_[random_() % live_.size()], live_.back());
    const DevicePtr ptr = live_.back();
    live_.pop_back();
    return ptr;
  }
  void free(DevicePtr ptr) { hammer_.deallocate(ptr, own_, bound_.get()); }
  // Allocates several at once, frees them at once.
  void batch() {
    std::vector<Bytes> sizes(1 + random_() % 6);
    for (Bytes& bytes : sizes) bytes = draw(random_);
    std::vector<DevicePtr> made(sizes.size());
    if (hammer_.allocate_many(sizes, own_, made)) hammer_.deallocate_many(made, own_);
  }
  void end() {
    while (!live_.empty()) free(pick());
    bound_.reset();
  }
  std::size_t live() const { return live_.size(); }
  std::uint64_t dice() { return random_(); }

 private:
  Hammer& hammer_;
  std::mt19937_64 random_;
  const StreamHandle own_;
  std::unique_ptr<context::BoundStream> bound_;
  std::vector<DevicePtr> live_;
};

class SmallStress : public ::testing::TestWithParam<Run> {
 protected:
  Hammer hammer{hammer_for(GetParam())};
  std::vector<std::function<void()>> works;
  std::atomic<int> busy{0};

  // A worker that takes `rounds` steps, every other one bound.
  void add_worker(std::uint64_t seed, int rounds, const std::function<void(Worker&)>& step) {
    ++busy;
    works.push_back([this, seed, rounds, step] {
      Worker worker(hammer, seed, seed % 2 == 0);
      for (int i = 0; i < rounds && hammer.goes_on(); ++i) step(worker);
      worker.end();
      --busy;
    });
  }
  // Runs until all workers are done.
  void add_beside(const std::function<void()>& look) {
    works.push_back([this, look] {
      while (busy.load() > 0) {
        Watchdog::doing("look");
        look();
      }
    });
  }
};

TEST_P(SmallStress, eight_threads_allocate_use_and_free_at_once) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed)
    add_worker(seed, 1500, [](Worker& worker) {
      worker.round();
      if (worker.dice() % 16 == 0) worker.batch();
    });
  hammer.together(works);
}

TEST_P(SmallStress, threads_free_what_others_allocated) {
  Exchange exchange;
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    add_worker(seed, 800, [this, &exchange](Worker& worker) {
      worker.round();
      if (worker.live() > 0 && worker.dice() % 3 == 0) exchange.put(worker.pick());
      if (worker.dice() % 3 != 0) return;
      const DevicePtr ptr = exchange.take();
      if (is_null(ptr)) return;
      const std::uint64_t way = worker.dice() % 3;
      if (way == 0) hammer.deallocate_deferred(ptr);
      if (way == 1) worker.free(ptr);
      if (way == 2) hammer.deallocate(ptr, std::nullopt);
    });
  hammer.together(works);
  for (DevicePtr ptr = exchange.take(); !is_null(ptr); ptr = exchange.take())
    hammer.deallocate_deferred(ptr);
}

TEST_P(SmallStress, hands_are_emptied_and_looked_at_while_their_streams_go_on) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    add_worker(seed, 1000, [](Worker& worker) { worker.round(); });
  add_beside([this] { EXPECT_TRUE(hammer.pool().limits().trim(4 * kPage).ok()); });
  add_beside([this] { EXPECT_EQ(hammer.pool().reports().validate(), ""); });
  add_beside([this] {
    const observe::Statistics now = hammer.pool().reports().statistics();
    EXPECT_LE(now.live_bytes, now.allocated_bytes);
    EXPECT_LE(now.live_bytes, now.peak_live_bytes);
    EXPECT_LE(now.small_free_bytes, now.small_bytes);
    static_cast<void>(hammer.pool().reports().snapshot());
    hammer.pool().reports().reset_peaks();
  });
  add_beside([this] { EXPECT_TRUE(hammer.pool().streams().synchronize().ok()); });
  hammer.together(works);
}

// Addresses of live memory, asked for by others while they are live.
TEST_P(SmallStress, uses_and_questions_from_other_threads_meet_warm_calls) {
  const StreamHandle other = hammer.stream();
  std::array<std::mutex, 4> held;
  std::array<std::pair<DevicePtr, Bytes>, 4> shown{};
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    add_worker(seed, 500, [this, seed, &held, &shown](Worker& worker) {
      worker.round();
      const Bytes bytes = Bytes{1} << (worker.dice() % 22);
      const auto made = hammer.allocate(bytes, std::nullopt);
      if (!made) return;
      {
        const std::lock_guard lock(held[seed]);
        shown[seed] = {made.value(), bytes};
      }
      worker.round();
      const std::lock_guard lock(held[seed]);
      shown[seed] = {};
      worker.free(made.value());
    });
  add_beside([this, other, &held, &shown] {
    for (std::size_t i = 0; i < held.size(); ++i) {
      const std::lock_guard lock(held[i]);
      const auto [ptr, bytes] = shown[i];
      if (is_null(ptr)) continue;
      const auto info = hammer.pool().query(ptr + bytes / 2);
      EXPECT_TRUE(info.ok() && info.value().begin == ptr && info.value().requested == bytes);
      EXPECT_TRUE(hammer.pool().record_use(ptr, other).ok());
    }
  });
  hammer.together(works);
}

TEST_P(SmallStress, a_capture_announced_by_one_thread_does_not_disturb_the_others) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    add_worker(seed, 800, [](Worker& worker) { worker.round(); });
  add_beside([this] {
    EXPECT_TRUE(hammer.pool().streams().capture_begin().ok());
    EXPECT_TRUE(hammer.pool().streams().capture_end().ok());
  });
  hammer.together(works);
}

TEST_P(SmallStress, streams_come_and_go_with_what_they_had_in_hand) {
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    works.push_back([this, thread] {
      std::mt19937_64 random(thread);
      for (int i = 0; i < 200; ++i) {
        const StreamHandle stream = hammer.stream();
        std::vector<DevicePtr> live;
        for (int k = 0; k < 5; ++k) {
          const Bytes bytes = draw(random);
          const auto made = hammer.allocate(bytes, stream);
          if (!made) continue;
          hammer.use(made.value(), bytes, stream);
          live.push_back(made.value());
        }
        for (const DevicePtr ptr : live) hammer.deallocate(ptr, stream);
        hammer.destroy(stream);
      }
    });
  hammer.together(works);
  EXPECT_LE(hammer.pool().reports().statistics().timelines, 500u);
}

INSTANTIATE_TEST_SUITE_P(Runs, SmallStress, runs(), run_name);

}  // namespace
}  // namespace vpmm::stress
