// SPDX-License-Identifier: Apache-2.0
// process: pools of one GPU that give each other idle memory.
#include "process/neighbours.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "process/process_gate.hpp"
#include "process/rests.hpp"

namespace vpmm::process {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Drivers that are only compared.
const auto* const kDriver = reinterpret_cast<const driver::Driver*>(0x1000);
const auto* const kOther = reinterpret_cast<const driver::Driver*>(0x2000);

// A pool that gives back what it has, and notes what it was asked for.
struct Pool {
  explicit Pool(Bytes bytes, driver::DeviceOrdinal device = 0,
                const driver::Driver* driver = kDriver)
      : idle(bytes) {
    enter_neighbourhood(
        this, {device, driver, [this](Bytes most) { return give(most); }, [this] { ++summaries; }});
  }
  ~Pool() { leave_neighbourhood(this); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Bytes give(Bytes most) {
    asked.push_back(most);
    return std::min(most, std::exchange(idle, idle - std::min(most, idle)));
  }

  Bytes idle;
  std::vector<Bytes> asked;
  int summaries = 0;
};

TEST(Neighbours, give_back_until_there_is_enough) {
  Pool asking(100);
  Pool first(3);
  Pool second(4);
  Pool third(5);
  EXPECT_EQ(ask_neighbours(&asking, 6), 6u);
  EXPECT_THAT(first.asked, ElementsAre(6u));
  EXPECT_THAT(second.asked, ElementsAre(3u));
  EXPECT_THAT(third.asked, IsEmpty());
  EXPECT_THAT(asking.asked, IsEmpty());
}

TEST(Neighbours, give_back_less_where_they_have_less) {
  Pool asking(0);
  Pool other(2);
  EXPECT_EQ(ask_neighbours(&asking, 6), 2u);
  EXPECT_EQ(ask_neighbours(&asking, 6), 0u);
  EXPECT_THAT(other.asked, ElementsAre(6u, 6u));
}

TEST(Neighbours, are_pools_of_the_same_gpu_and_driver) {
  Pool asking(0);
  Pool of_another_gpu(5, 1);
  Pool of_another_driver(5, 0, kOther);
  EXPECT_EQ(ask_neighbours(&asking, 6), 0u);
  EXPECT_THAT(of_another_gpu.asked, IsEmpty());
  EXPECT_THAT(of_another_driver.asked, IsEmpty());
}

TEST(Neighbours, are_none_for_a_pool_that_is_not_listed) {
  Pool other(5);
  { const Pool gone(5); }  // was at the place behind the list's end
  const int stranger = 0;
  leave_neighbourhood(&stranger);
  EXPECT_EQ(ask_neighbours(&stranger, 6), 0u);
  EXPECT_THAT(other.asked, IsEmpty());
}

TEST(Neighbours, that_left_are_not_asked_and_the_others_are) {
  Pool asking(0);
  std::optional<Pool> leaving(std::in_place, 5);
  Pool staying(5);
  leaving.reset();
  EXPECT_EQ(ask_neighbours(&asking, 8), 5u);
  EXPECT_THAT(staying.asked, ElementsAre(8u));
}

// A pool in a trim that ends when it is told to.
struct Trimming {
  Trimming() {
    enter_neighbourhood(this, {0, kDriver,
                               [this](Bytes) {
                                 ++trims;
                                 while (!may_end) std::this_thread::yield();
                                 return Bytes{1};
                               },
                               [] {}});
    asker = std::thread([this] { given = ask_neighbours(&asking, 1); });
    while (trims == 0) std::this_thread::yield();
  }
  ~Trimming() {
    if (asker.joinable()) asker.join();
  }
  Trimming(const Trimming&) = delete;
  Trimming& operator=(const Trimming&) = delete;

  std::atomic<int> trims{0};
  Pool asking{0};  // not the first member: a pool is known by its address
  std::atomic<bool> may_end{false};
  Bytes given = 0;
  std::thread asker;
};

TEST(Neighbours, leave_after_their_trims_and_begin_no_more) {
  Trimming pool;
  std::atomic<bool> has_left{false};
  long rests_of_leaver = 0;
  std::thread leaver([&] {
    leave_neighbourhood(&pool);
    has_left = true;
    rests_of_leaver = rests(RUSAGE_THREAD);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(has_left);
  Pool late(0);
  EXPECT_EQ(ask_neighbours(&late, 1), 0u) << "it is leaving";
  EXPECT_EQ(pool.trims, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_left) << "one that asked in vain ends no trim";
  pool.may_end = true;
  leaver.join();
  EXPECT_GT(rests_of_leaver, 20) << "a wait takes no core";
  pool.asker.join();
  EXPECT_EQ(pool.given, 1u);
}

TEST(Neighbours, come_and_go_while_another_is_in_a_trim) {
  Trimming pool;
  { Pool brief(0); }
  pool.may_end = true;
  pool.asker.join();
  leave_neighbourhood(&pool);
}

TEST(Summaries, are_of_every_pool_once) {
  Pool one(0);
  Pool two(0, 1);
  summarize_all();
  EXPECT_EQ(one.summaries, 1);
  EXPECT_EQ(two.summaries, 1);
}

TEST(Summaries, do_not_wait_for_others_in_progress) {
  const int pool = 0;
  int summaries = 0;
  enter_neighbourhood(&pool, {0, kDriver, {}, [&] {
                                ++summaries;
                                std::thread(summarize_all).join();
                              }});
  summarize_all();
  EXPECT_EQ(summaries, 1);
  summarize_all();
  EXPECT_EQ(summaries, 2) << "the list is free again";
  leave_neighbourhood(&pool);
}

// Death tests in the threadsafe style start the test binary anew.
class NeighboursDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

constexpr unsigned kSeconds = 10;  // to the alarm

TEST_F(NeighboursDeathTest, leave_at_exit_though_a_trim_never_ends) {
  EXPECT_EXIT(
      {
        alarm(kSeconds);
        static auto* const pool = new Trimming;
        std::atexit([] {
          leave_neighbourhood(pool);
          _exit(50);
        });
        { const GateEntry first_use; }
        std::exit(0);
      },
      testing::ExitedWithCode(50), "");
}

TEST_F(NeighboursDeathTest, leave_at_exit_though_a_thread_keeps_the_list_locked) {
  EXPECT_EXIT(
      {
        alarm(kSeconds);
        static std::atomic<bool> is_locked{false};
        static const int pool = 0;
        enter_neighbourhood(&pool, {0, kDriver, {}, [] {
                                      is_locked = true;
                                      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
                                    }});
        std::atexit([] {
          leave_neighbourhood(&pool);
          _exit(rests(RUSAGE_THREAD) > 100 ? 51 : 1);
        });
        { const GateEntry first_use; }
        std::thread(summarize_all).detach();
        while (!is_locked) std::this_thread::yield();
        std::exit(0);
      },
      testing::ExitedWithCode(51), "");
}

TEST_F(NeighboursDeathTest, leave_at_exit_for_good_and_are_not_asked_any_more) {
  EXPECT_EXIT(
      {
        alarm(kSeconds);
        static Pool asking(0);
        static auto* const leaving = new Pool(5);
        static Pool other(5);
        std::atexit([] {
          leaving->summaries = 0;
          leave_neighbourhood(leaving);
          summarize_all();
          const bool is_asked = ask_neighbours(&asking, 1) != 0 || !other.asked.empty();
          _exit(leaving->summaries != 0 ? 1 : is_asked ? 2 : 52);
        });
        { const GateEntry first_use; }
        std::exit(0);
      },
      testing::ExitedWithCode(52), "");
}

TEST_F(NeighboursDeathTest, that_are_destroyed_at_exit_during_a_trim_may_end_it) {
  EXPECT_EXIT(
      {
        alarm(kSeconds);
        static auto* const pool = new Trimming;
        std::atexit([] {
          leave_neighbourhood(pool);
          pool->may_end = true;
          pool->asker.join();
          _exit(53);
        });
        { const GateEntry first_use; }
        std::exit(0);
      },
      testing::ExitedWithCode(53), "");
}

TEST_F(NeighboursDeathTest, print_their_summaries_at_exit) {
  EXPECT_EXIT(
      {
        static const int pool = 0;
        enter_neighbourhood(
            &pool, {0, kDriver, {}, [] { static_cast<void>(write(2, "of one pool", 11)); }});
        { const GateEntry first_use; }
        std::exit(54);
      },
      testing::ExitedWithCode(54), "of one pool");
}

}  // namespace
}  // namespace vpmm::process
