// SPDX-License-Identifier: Apache-2.0
// stress tests: what watches the stress itself: the watchdog ends what hangs, and live ranges find
// an overlap.
#include "support/watchdog.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/live_ranges.hpp"

namespace vpmm::test {
namespace {

using std::chrono::milliseconds;

TEST(WatchdogDeathTest,
     a_thread_that_stays_in_one_step_ends_the_process_with_what_each_thread_does) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Watchdog watchdog("seed 7", milliseconds(160));
        const Watchdog::Watched main(watchdog, "main");
        Watchdog::doing("waiting for ever");
        std::thread([&watchdog] {
          const Watchdog::Watched other(watchdog, "other");
          for (;;) Watchdog::doing("going on");
        }).join();
      },
      "WatchdogDeathTest[.].*, seed 7: main has been in one step for 0.16 s:\n"
      "  main: waiting for ever, step 1\n  other: going on, step ");
}

TEST(Watchdog, threads_that_go_on_or_are_watched_no_more_are_left_alone) {
  Watchdog watchdog("", milliseconds(1600));
  { const Watchdog::Watched gone(watchdog, "gone"); }
  const Watchdog::Watched main(watchdog, "main");
  for (int i = 0; i < 40; ++i) {
    Watchdog::doing("going on");
    std::this_thread::sleep_for(milliseconds(50));
  }
}

TEST(LiveRanges, a_range_over_a_live_one_is_refused_and_both_are_named) {
  LiveRanges live;
  const auto add = [&live](std::uint64_t begin, Bytes size) {
    return live.add({DevicePtr{begin}, size});
  };
  EXPECT_EQ(add(0x1000, 0x100), "");
  EXPECT_EQ(add(0x1200, 0x100), "");
  EXPECT_EQ(add(0x1100, 0x100), "");
  const auto expect_overlap = [&](std::uint64_t begin, Bytes size) {
    EXPECT_NE(add(begin, size).find(" was handed out while [0x"), std::string::npos)
        << begin << ", " << size;
  };
  expect_overlap(0x1000, 0x100);  // the same
  expect_overlap(0x10ff, 1);      // its last byte
  expect_overlap(0xfff, 2);       // its first byte
  expect_overlap(0x800, 0x2000);  // all of them
  live.remove(DevicePtr{0x1100});
  EXPECT_EQ(add(0x1100, 0x80), "");
  EXPECT_EQ(add(0x1280, 0x10).substr(0, 65),
            "[0x1280, 0x1290) of 16 bytes was handed out while [0x1200, 0x1300");
}

}  // namespace
}  // namespace vpmm::test
