// pool: what pauses may take of the time.
#include "pool/pause_budget.hpp"

#include <gtest/gtest.h>

namespace vpmm::pool {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kStart = 100'000 * kMs;  // the clock has run for long

TEST(PauseBudget, allows_50_ms_at_once) {
  PauseBudget budget;
  EXPECT_TRUE(budget.allows_pause(0)) << "when the clock has just begun, too";
  budget.charge(kStart, kStart + 49 * kMs);
  EXPECT_TRUE(budget.allows_pause(kStart + 49 * kMs));
  budget.charge(kStart + 49 * kMs, kStart + 60 * kMs);
  EXPECT_FALSE(budget.allows_pause(kStart + 60 * kMs));
}

TEST(PauseBudget, allows_a_twentieth_of_the_time_from_then_on) {
  PauseBudget budget;
  std::uint64_t now = kStart;
  std::uint64_t paused = 0;
  while (now < kStart + 10'000 * kMs) {
    if (budget.allows_pause(now)) {
      budget.charge(now, now + kMs);
      paused += kMs;
    }
    now += kMs;
  }
  EXPECT_NEAR(static_cast<double>(paused), 550.0 * kMs, 2.0 * kMs) << "50 ms and a twentieth of 10 s";
}

TEST(PauseBudget, saves_no_more_than_that) {
  PauseBudget budget;
  budget.charge(kStart, kStart + kMs);
  const std::uint64_t later = kStart + 1'000'000 * kMs;
  budget.charge(later, later + 53 * kMs);
  EXPECT_FALSE(budget.allows_pause(later + 53 * kMs));
}

// Three calls in one pause, whose ends are told in order.
TEST(PauseBudget, counts_a_moment_once) {
  PauseBudget budget;
  budget.charge(kStart, kStart + 20 * kMs);
  budget.charge(kStart, kStart + 20 * kMs);
  budget.charge(kStart + 5 * kMs, kStart + 40 * kMs);
  EXPECT_TRUE(budget.allows_pause(kStart + 40 * kMs));
  budget.charge(kStart, kStart + 55 * kMs);
  EXPECT_FALSE(budget.allows_pause(kStart + 55 * kMs));
}

}  // namespace
}  // namespace vpmm::pool
