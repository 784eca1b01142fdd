// SPDX-License-Identifier: Apache-2.0
// stress tests: on one stream some threads take and leave runs that cross pages, while others take
// and leave blocks, so that pages pass from segments of runs to slabs of blocks and back at any
// moment.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "stress/hammer.hpp"
#include "support/stress_seconds.hpp"

namespace vpmm::stress {
namespace {

constexpr int kTurns = 50;  // of a thread that takes runs

class CrossingStress : public ::testing::Test {
 protected:
  // A thread's allocations on the one stream.
  class Held {
   public:
    Held(Hammer& hammer, StreamHandle stream, std::uint64_t seed)
        : hammer_(hammer), stream_(stream), random_(seed) {}
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
    void take(Bytes bytes) {
      if (const auto made = hammer_.allocate(bytes, stream_)) held_.push_back(made.value());
    }
    void leave_one() {
      std::swap(held_[below(held_.size())], held_.back());
      hammer_.deallocate(held_.back(), stream_);
      held_.pop_back();
    }
    std::size_t count() const { return held_.size(); }
    void leave(std::size_t least) {
      while (held_.size() > least && hammer_.goes_on()) leave_one();
    }

   private:
    Hammer& hammer_;
    const StreamHandle stream_;
    std::mt19937_64 random_;
    std::vector<DevicePtr> held_;
  };

  void take_runs(std::uint64_t seed) {
    Held held(hammer, stream, seed);
    for (int i = 0; i < kTurns && hammer.goes_on(); ++i) {
      for (std::uint64_t count = 4 + held.below(60); count > 0; --count)
        held.take(1100 * kKiB + held.below(700 * kKiB));
      while (held.count() > 0 && held.below(40) != 0 && hammer.goes_on()) held.leave_one();
      if (held.below(2) == 0) {
        EXPECT_TRUE(hammer.pool().limits().trim(0).ok());
      }
    }
    held.leave(0);
    --busy;
  }
  void take_blocks(std::uint64_t seed) {
    Held held(hammer, stream, seed);
    while (busy.load() > 0 && hammer.goes_on()) {
      for (std::size_t most = held.below(120); held.count() < most && busy.load() > 0;)
        held.take(held.below(4) == 0 ? 1 + held.below(4 * kKiB)
                                     : 4 * kKiB + held.below(126 * kKiB));
      held.leave(held.below(30));
    }
    held.leave(0);
  }

  Hammer hammer{small_config(false)};
  const StreamHandle stream = hammer.stream();
  std::atomic<int> busy{0};
};

TEST_F(CrossingStress, runs_and_blocks_of_one_stream_never_overlap) {
  const auto end = test::end_of_stress(std::chrono::seconds(2));
  std::uint64_t seed = 0;
  for (int round = 0; round == 0 || (hammer.goes_on() && std::chrono::steady_clock::now() < end);
       ++round) {
    busy = 1 + round % 3;  // two to six threads
    std::vector<std::function<void()>> works;
    for (int i = 0; i < busy.load(); ++i) {
      works.emplace_back([this, one = ++seed] { take_runs(one); });
      works.emplace_back([this, one = ++seed] { take_blocks(one); });
    }
    hammer.together(works);
    ASSERT_EQ(hammer.pool().reports().validate(), "");
  }
}

}  // namespace
}  // namespace vpmm::stress
