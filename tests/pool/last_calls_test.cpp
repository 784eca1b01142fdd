// pool: whether several threads are at work.
#include "pool/last_calls.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <future>
#include <thread>

namespace vpmm::pool {
namespace {

// Three threads that are alive at once, so that no two have the same id.
class LastCallsOfThree : public ::testing::Test {
 protected:
  ~LastCallsOfThree() override {
    end_.set_value();
    for (std::thread& thread : threads_) thread.join();
  }
  std::thread waiting() {
    return std::thread([over = over_] { over.wait(); });
  }

 private:
  std::promise<void> end_;
  std::shared_future<void> over_{end_.get_future()};
  std::array<std::thread, 3> threads_{waiting(), waiting(), waiting()};

 protected:
  const std::thread::id me = threads_[0].get_id();
  const std::thread::id you = threads_[1].get_id();
  const std::thread::id third = threads_[2].get_id();
  LastCalls calls;
};

TEST_F(LastCallsOfThree, nobody_called) {
  EXPECT_FALSE(calls.has_other(me, 0));
  EXPECT_FALSE(calls.has_other(you, 0));
}

TEST_F(LastCallsOfThree, the_own_calls_do_not_count) {
  calls.note(me, 0);
  EXPECT_FALSE(calls.has_other(me, 0));
  calls.note(me, 5);
  EXPECT_FALSE(calls.has_other(me, 0));
}

TEST_F(LastCallsOfThree, another_called) {
  calls.note(you, 5);
  EXPECT_TRUE(calls.has_other(me, 4));
  EXPECT_TRUE(calls.has_other(me, 5));
  EXPECT_FALSE(calls.has_other(you, 0));
}

TEST_F(LastCallsOfThree, another_called_before_i_did) {
  calls.note(you, 5);
  calls.note(me, 6);
  calls.note(me, 7);
  EXPECT_TRUE(calls.has_other(me, 5));
  EXPECT_TRUE(calls.has_other(you, 7));
}

TEST_F(LastCallsOfThree, what_another_called_before_then_does_not_count) {
  calls.note(you, 5);
  EXPECT_FALSE(calls.has_other(me, 6));
  calls.note(me, 6);
  EXPECT_FALSE(calls.has_other(me, 6));
  EXPECT_FALSE(calls.has_other(you, 7));
}

TEST_F(LastCallsOfThree, two_that_take_turns) {
  for (std::uint64_t now = 10; now < 20; now += 2) {
    calls.note(me, now);
    calls.note(you, now + 1);
    EXPECT_TRUE(calls.has_other(me, now + 1)) << now;
    EXPECT_FALSE(calls.has_other(me, now + 2)) << now;
    EXPECT_TRUE(calls.has_other(you, now)) << now;
    EXPECT_FALSE(calls.has_other(you, now + 1)) << now;
  }
}

TEST_F(LastCallsOfThree, the_latest_of_the_others_counts) {
  calls.note(me, 1);
  calls.note(you, 2);
  calls.note(third, 3);
  EXPECT_TRUE(calls.has_other(me, 3));
  EXPECT_TRUE(calls.has_other(you, 3));
  EXPECT_TRUE(calls.has_other(third, 2));
  EXPECT_FALSE(calls.has_other(third, 3));
  calls.note(me, 4);
  EXPECT_TRUE(calls.has_other(me, 3)) << "the third's";
  EXPECT_FALSE(calls.has_other(me, 4));
  EXPECT_TRUE(calls.has_other(third, 4));
}

}  // namespace
}  // namespace vpmm::pool
