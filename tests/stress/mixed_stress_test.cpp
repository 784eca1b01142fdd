// SPDX-License-Identifier: Apache-2.0
// stress tests: rounds in which threads mix all ways to allocate and to free, on streams of their
// own or, in a third of the rounds, on fewer streams than threads, while an observer trims, limits,
// looks and records.
//
// VPMM_STRESS_SECONDS: how long it goes on. VPMM_SEED: the first round; what the threads do in a
// round depends on it, when they do it does not.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stress/hammer.hpp"
#include "support/page_size.hpp"
#include "support/pool_observer.hpp"
#include "support/stress_seconds.hpp"

namespace vpmm::stress {
namespace {

struct Loan {
  DevicePtr ptr;
  Bytes bytes;
  StreamHandle home;  // all its work is queued there
  bool has_tenant;    // it was allocated for `home`
};

class Round {
 public:
  explicit Round(std::uint64_t seed)
      : random_(seed),
        seed_(seed),
        threads_(2 + random_() % 7),
        hammer_(config(), seed % 3 == 0 ? 1 + random_() % (threads_ - 1) : 0,
                "VPMM_SEED=" + std::to_string(seed)) {}

  void run(int steps) {
    std::vector<std::function<void()>> works;
    busy_ = threads_;
    for (std::uint64_t thread = 0; thread < threads_; ++thread)
      works.emplace_back([this, thread, steps] {
        Worker(*this, thread).run(steps);
        --busy_;
      });
    works.emplace_back(
        [this] { EXPECT_EQ(test::PoolObserver(hammer_.pool(), seed_).run(busy_), ""); });
    hammer_.together(works);
    while (const auto loan = take()) hammer_.deallocate(loan->ptr, std::nullopt);
  }

 private:
  class Worker {
   public:
    Worker(Round& round, std::uint64_t thread)
        : round_(round),
          hammer_(round.hammer_),
          random_(round.seed_ * 100 + thread),
          own_(hammer_.stream_of(thread)) {
      kind_ = below(4);
      most_live_ = 4 + below(kind_ == 0 ? 120 : 60);
      if (below(2) == 0) return;
      auto bound = hammer_.pool().bind(own_);
      EXPECT_TRUE(bound.ok());
      if (bound) bound_ = std::move(bound).value();
    }
    void run(int steps) {
      for (int i = 0; i < steps && hammer_.goes_on(); ++i) step();
      for (const Loan& loan : mine_) round_.give(loan);
    }

   private:
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

    void step() {
      if (mine_.size() >= most_live_) drain(below(most_live_));
      const std::uint64_t what = below(100);
      if (what < 55) return allocate();
      if (what < 58) return allocate_many();
      if (what < 70) return free_mine();
      if (what < 73) return free_many();
      if (what < 80) return hand_over();
      free_taken();
    }

    // From a byte to 64 MiB. A thread prefers blocks, or runs that are likely to cross a page, or
    // neither: the one then cuts what the other gives back.
    Bytes size() {
      const std::uint64_t what = below(8) != 0 ? kind_ : below(3);
      if (what == 0) return 1 + below(below(4) == 0 ? 4 * kKiB : 128 * kKiB);
      if (what == 1) return kMiB + below(below(8) == 0 ? 3 * kMiB : 900 * kKiB);
      return below(2) == 0 ? (1 + below(4)) * kPage : Bytes{1} << below(below(8) == 0 ? 27 : 23);
    }

    void allocate() {
      const Bytes bytes = size();
      const bool is_named = below(6) != 0;
      const auto made = hammer_.allocate(bytes, is_named ? pool::Stream(own_) : std::nullopt,
                                         is_named && below(3) != 0 ? bound_.get() : nullptr);
      if (made) return take_over(made.value(), bytes, is_named);
      EXPECT_EQ(made.error().code, ErrorCode::out_of_memory) << made.error().message;
      if (!mine_.empty()) free_mine();
    }

    void allocate_many() {
      const std::vector<Bytes> sizes{size(), size(), size()};
      std::vector<DevicePtr> made(sizes.size());
      if (!hammer_.allocate_many(sizes, own_, made)) return;
      for (std::size_t i = 0; i < sizes.size(); ++i) take_over(made[i], sizes[i], true);
    }

    void take_over(DevicePtr ptr, Bytes bytes, bool has_tenant) {
      mine_.push_back({ptr, bytes, own_, has_tenant});
      if (below(2) == 0) hammer_.use(ptr, bytes, own_);
    }

    // So that slabs and segments end.
    void drain(std::size_t least) {
      while (mine_.size() > least / 4) free_mine();
    }

    Loan draw() {
      std::swap(mine_[below(mine_.size())], mine_.back());
      const Loan loan = mine_.back();
      mine_.pop_back();
      return loan;
    }

    void free_mine() {
      if (mine_.empty()) return;
      const Loan loan = draw();
      if (below(4) == 0) hammer_.use(loan.ptr, loan.bytes, loan.home);
      hammer_.deallocate(loan.ptr, loan.home, below(3) != 0 ? bound_.get() : nullptr);
    }

    void free_many() {
      std::vector<DevicePtr> pointers;
      while (!mine_.empty() && pointers.size() < 3) pointers.push_back(draw().ptr);
      hammer_.deallocate_many(pointers, own_);
    }

    void hand_over() {
      if (!mine_.empty()) round_.give(draw());
    }

    // What another thread allocated, perhaps on our stream.
    void free_taken() {
      const auto loan = round_.take();
      if (!loan) return;
      hammer_.use(loan->ptr, loan->bytes, loan->home);
      switch (below(loan->has_tenant ? 5 : 4)) {
        case 0: return hammer_.deallocate(loan->ptr, loan->home);
        case 1: return hammer_.deallocate(loan->ptr, std::nullopt);
        case 2: return hammer_.deallocate_deferred(loan->ptr);
        case 3: hammer_.order(loan->home, own_); break;
        default: break;  // the pool waits for the stream of the allocation by itself
      }
      hammer_.deallocate(loan->ptr, own_, below(2) == 0 ? bound_.get() : nullptr);
    }

    Round& round_;
    Hammer& hammer_;
    std::mt19937_64 random_;
    const StreamHandle own_;
    std::unique_ptr<context::BoundStream> bound_;
    std::uint64_t kind_ = 0;
    std::size_t most_live_ = 0;
    std::vector<Loan> mine_;
  };

  settings::Config config() {
    settings::Config config = small_config(random_() % 2 == 0);
    constexpr std::array kPrefer{settings::Prefer::footprint, settings::Prefer::balanced,
                                 settings::Prefer::latency};
    config.prefer = kPrefer[random_() % kPrefer.size()];
    if (random_() % 2 == 0) config.streams.crowded_after = 0;
    if (random_() % 4 == 0) config.streams.any_stream = settings::AnyStreamOrder::park;
    return config;
  }

  void give(const Loan& loan) {
    const std::lock_guard lock(mutex_);
    left_.push_back(loan);
  }
  std::optional<Loan> take() {
    const std::lock_guard lock(mutex_);
    if (left_.empty()) return std::nullopt;
    const Loan loan = left_.front();
    left_.pop_front();
    return loan;
  }

  std::mt19937_64 random_;
  const std::uint64_t seed_;
  const std::uint64_t threads_;
  Hammer hammer_;
  std::atomic<std::uint64_t> busy_{0};
  std::mutex mutex_;
  std::deque<Loan> left_;
};

TEST(MixedStress,
     threads_share_memory_and_streams_while_an_observer_trims_limits_looks_and_records) {
  constexpr int kSteps = 2000;
  const char* const asked = std::getenv("VPMM_SEED");
  const std::uint64_t first = asked != nullptr ? std::stoull(asked) : 1;
  const auto end = test::end_of_stress(std::chrono::seconds(2));
  std::uint64_t seed = first;
  do {
    Round(seed).run(kSteps);
    EXPECT_FALSE(HasFailure()) << "in the round of VPMM_SEED=" << seed;
    ++seed;
  } while (!HasFailure() && (seed < first + 3 || std::chrono::steady_clock::now() < end));
  std::printf("%llu rounds\n", static_cast<unsigned long long>(seed - first));
}

}  // namespace
}  // namespace vpmm::stress
