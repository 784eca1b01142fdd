// SPDX-License-Identifier: Apache-2.0
// tests/driver: histograms of durations, and what a timing decorator finds out about calls.
#include "driver/timing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "driver/fake_driver.hpp"

namespace vpmm::driver {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kMinute = 60'000'000'000;

TEST(DurationHistogram, has_zeros_without_a_duration) {
  const DurationHistogram none;
  EXPECT_EQ(none.count(), 0u);
  EXPECT_EQ(none.total_ns(), 0u);
  EXPECT_EQ(none.max_ns(), 0u);
  EXPECT_EQ(none.percentile_ns(50), 0u);
}

TEST(DurationHistogram, every_percentile_of_one_duration_is_that_duration) {
  for (const std::uint64_t ns :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{15}, std::uint64_t{16},
        std::uint64_t{22'801}, 15 * kMinute, 20 * kMinute, ~std::uint64_t{0}}) {
    DurationHistogram one;
    one.add(ns);
    for (const unsigned percent : {0u, 50u, 99u, 100u}) EXPECT_EQ(one.percentile_ns(percent), ns);
    EXPECT_EQ(one.count(), 1u);
    EXPECT_EQ(one.total_ns(), ns);
    EXPECT_EQ(one.max_ns(), ns);
  }
}

TEST(DurationHistogram, a_percentile_is_never_too_small_and_at_most_a_sixteenth_too_large) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    DurationHistogram histogram;
    std::vector<std::uint64_t> durations;
    for (int i = 0; i < 1'000; ++i) {
      durations.push_back((random() & 0xffffff) >> (random() % 24));
      histogram.add(durations.back());
    }
    std::sort(durations.begin(), durations.end());
    for (const unsigned percent : {1u, 10u, 50u, 90u, 99u, 100u}) {
      const std::uint64_t exact = durations[percent * 10 - 1];
      EXPECT_GE(histogram.percentile_ns(percent), exact)
          << "seed " << seed << ", " << percent << " %";
      EXPECT_LE(histogram.percentile_ns(percent), exact + exact / 16)
          << "seed " << seed << ", " << percent << " %";
    }
  }
}

TEST(DurationHistogram, forgets_all_when_cleared) {
  DurationHistogram histogram;
  histogram.add(1'000'000);
  histogram.clear();
  histogram.add(10);
  EXPECT_EQ(histogram.count(), 1u);
  EXPECT_EQ(histogram.total_ns(), 10u);
  EXPECT_EQ(histogram.percentile_ns(99), 10u);
  EXPECT_EQ(histogram.max_ns(), 10u);
}

class TimingDriverTest : public testing::Test {
 protected:
  void call(Call which, std::uint64_t ns) {
    fake.ns_per_call = ns;
    invoke(*timing, which);
  }
  std::vector<Call> kinds() const {
    std::vector<Call> calls;
    for (const CallTimes& times : timing->times()) calls.push_back(times.call);
    return calls;
  }

  FakeDriver fake;
  std::unique_ptr<TimingDriver> timing = std::make_unique<TimingDriver>(fake);
};

TEST_F(TimingDriverTest, each_kind_has_its_own_figures) {
  call(Call::mem_map, 10);
  call(Call::mem_map, 4);
  call(Call::mem_release, 7);
  const auto times = timing->times();
  ASSERT_THAT(kinds(), ElementsAre(Call::mem_release, Call::mem_map));
  EXPECT_EQ(times[1].count, 2u);
  EXPECT_EQ(times[1].total_ns, 14u);
  EXPECT_EQ(times[1].p50_ns, 4u);
  EXPECT_EQ(times[1].p90_ns, 10u);
  EXPECT_EQ(times[1].p99_ns, 10u);
  EXPECT_EQ(times[1].max_ns, 10u);
  EXPECT_EQ(times[0].total_ns, 7u);
}

TEST_F(TimingDriverTest, calls_that_are_no_memory_calls_are_timed_too_and_come_last) {
  for (const Call which : every_call()) call(which, 5);
  const auto times = timing->times();
  ASSERT_EQ(times.size(), kCallCount);
  EXPECT_TRUE(std::is_partitioned(times.begin(), times.end(),
                                  [](const CallTimes& each) { return is_memory_call(each.call); }));
  for (const CallTimes& each : times) EXPECT_EQ(each.total_ns, 5u) << to_string(each.call);
}

TEST_F(TimingDriverTest, calls_that_fail_are_counted_and_timed_too) {
  fake.answer = CuResult::out_of_memory;
  fake.ns_per_call = 9;
  EXPECT_EQ(invoke(*timing, Call::mem_create), CuResult::out_of_memory);
  EXPECT_EQ(timing->times().at(0).total_ns, 9u);
}

TEST_F(TimingDriverTest, bytes_are_those_of_all_calls_about_chunks_and_mappings) {
  const AddressRange range{DevicePtr{kGiB}, 6 * kMiB};
  ChunkHandle chunk{};
  timing->mem_create(2 * kMiB, {}, chunk);
  timing->mem_create(4 * kMiB, {}, chunk);
  timing->mem_map(range, 0, chunk);
  timing->mem_unmap(range);
  timing->mem_unmap(range);
  timing->mem_set_access(range, {});
  timing->mem_release(chunk);
  for (const CallTimes& each : timing->times()) {
    if (each.call == Call::mem_release) {
      EXPECT_FALSE(each.bytes);
    } else {
      EXPECT_EQ(each.bytes, each.call == Call::mem_unmap ? 12 * kMiB : 6 * kMiB)
          << to_string(each.call);
    }
  }
}

TEST_F(TimingDriverTest, knows_of_no_call_after_it_was_cleared) {
  call(Call::mem_map, 10);
  timing->clear();
  EXPECT_THAT(kinds(), ElementsAre());
  timing->mem_unmap({DevicePtr{kGiB}, kMiB});
  EXPECT_EQ(timing->times().at(0).bytes, kMiB);
}

TEST_F(TimingDriverTest, threads_lose_no_calls) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kCallsPerThread = 5'000;
  fake.remembering = false;
  fake.ns_per_call = 3;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t n = 0; n < kCallsPerThread; ++n)
        timing->mem_unmap({DevicePtr{kGiB}, kMiB});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const CallTimes times = timing->times().at(0);
  EXPECT_EQ(times.count, kThreads * kCallsPerThread);
  EXPECT_EQ(times.bytes, kThreads * kCallsPerThread * kMiB);
  EXPECT_GE(times.total_ns, kThreads * kCallsPerThread * fake.ns_per_call);
}

}  // namespace
}  // namespace vpmm::driver
