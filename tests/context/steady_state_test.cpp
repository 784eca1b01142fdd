// SPDX-License-Identifier: Apache-2.0
// context: a program that does the same again and again makes no call that maps, and waits for
// nobody, once it has done so a few times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

// A pool with one stream comes to rest when it has moved half of what is mapped (Note [Large frees
// stay cached while one stream makes the pool grow]).
constexpr int kPeriodsUntilSteady = 120;
constexpr int kPeriodsWatched = 20;

class SteadyState : public ::testing::TestWithParam<settings::Prefer> {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.prefer = GetParam();
    return options;
  }
  // Runs `period` until it has settled, then looks on.
  void expect_steady(const std::function<void(int)>& period) {
    int number = 0;
    for (; number < kPeriodsUntilSteady; ++number) period(number);
    const std::uint64_t calls = world.calls().memory_call_count();
    const std::uint64_t host_waits = world.statistics().host_waits;
    const Bytes mapped = world.statistics().mapped_bytes;
    for (; number < kPeriodsUntilSteady + kPeriodsWatched; ++number) period(number);
    EXPECT_EQ(world.calls().memory_call_count(), calls);
    EXPECT_EQ(world.statistics().host_waits, host_waits);
    EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  }
  DevicePtr take(Bytes bytes, StreamHandle stream) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    world.use(ptr, bytes, stream);
    return ptr;
  }

  PoolWorld world{options()};
};

// Weights stay, activations are freed backwards, and every layer needs room to work in.
TEST_P(SteadyState, of_a_training_step) {
  const StreamHandle stream = world.stream();
  const DevicePtr weights = take(200 * kMiB, stream);
  expect_steady([&](int) {
    std::vector<DevicePtr> activations;
    for (Bytes layer = 1; layer <= 12; ++layer) {
      activations.push_back(take(layer * 3 * kMiB + 100, stream));
      const DevicePtr scratch = take(40 * kMiB - layer * kMiB, stream);
      world.deallocate(scratch, stream);
    }
    for (; !activations.empty(); activations.pop_back()) {
      const DevicePtr gradient = take(25 * kMiB, stream);
      world.deallocate(activations.back(), stream);
      world.deallocate(gradient, stream);
    }
  });
  world.deallocate(weights, stream);
}

// Two streams that work at the same time, and a host that runs ahead of them by one period.
TEST_P(SteadyState, of_two_streams) {
  const StreamHandle streams[] = {world.stream(), world.stream()};
  expect_steady([&](int) {
    std::vector<DevicePtr> live[2];
    for (Bytes part = 1; part <= 6; ++part)
      for (const std::size_t s : {0U, 1U})
        live[s].push_back(take(part * (7 - 3 * s) * kMiB, streams[s]));
    for (const std::size_t s : {1U, 0U})
      for (const DevicePtr ptr : live[s]) world.deallocate(ptr, streams[s]);
    world.sim().advance_host_ns(1'000'000);
  });
}

// Requests grow from period to period, as sequences do while a program warms up, and then no more.
TEST_P(SteadyState, of_growth_that_ends) {
  const StreamHandle stream = world.stream();
  expect_steady([&](int number) {
    const Bytes size = static_cast<Bytes>(std::min(number, kPeriodsUntilSteady / 2) + 1) * 9 * kMiB;
    const DevicePtr first = take(size, stream);
    const DevicePtr second = take(2 * size, stream);
    world.deallocate(first, stream);
    const DevicePtr third = take(size / 2, stream);
    world.deallocate(second, stream);
    world.deallocate(third, stream);
    world.sim().advance_host_ns(1'000'000);
  });
}

INSTANTIATE_TEST_SUITE_P(Preferences, SteadyState,
                         ::testing::Values(settings::Prefer::footprint, settings::Prefer::balanced,
                                           settings::Prefer::latency));

}  // namespace
}  // namespace vpmm::test
