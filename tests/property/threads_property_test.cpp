// SPDX-License-Identifier: Apache-2.0
// property tests: several threads with a pool per device, memory that one allocates and another
// frees, or that another process holds beyond that, and resets while all of them pause. In a third
// of the seeds the threads share streams; in all, an observer of each device trims, limits, looks
// and records beside them.
//
// VPMM_SOAK_OPERATIONS: a tenth of it is done here. VPMM_SEED: replays one seed.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "property/crew.hpp"
#include "property/dice.hpp"

namespace vpmm::property {
namespace {

constexpr std::uint64_t kStepsPerThread = 400;
constexpr std::uint64_t kLeastSeeds = 16;
constexpr std::uint64_t kShareOfSoak = 10;  // one in so many operations

// Streams here are non-blocking, and memory is freed without a stream while they use it. `legacy`
// forbids that, and `allocating_stream` where another thread has moved the memory on.
Scene scene_for_threads(std::uint64_t seed) {
  Dice dice(seed);
  Scene scene = dice.scene();
  scene.sim.vmm_supported = true;
  scene.sim.schedule = seed % 2 == 0 ? driver::sim::Schedule::timed : driver::sim::Schedule::random;
  scene.config.va_size = 4 * kGiB;
  if (scene.config.streams.any_stream == settings::AnyStreamOrder::legacy)
    scene.config.streams.any_stream = settings::AnyStreamOrder::context;
  scene.config.streams.unnamed_free = settings::UnnamedFree::any_stream;
  return scene;
}

TEST(PoolThreads, threads_that_share_a_pool_meet_no_hazard_and_leave_nothing_behind) {
  const char* const fixed = std::getenv("VPMM_SEED");
  const char* const begin = fixed != nullptr ? fixed : std::getenv("VPMM_SOAK_FIRST_SEED");
  const std::uint64_t first = begin != nullptr ? std::stoull(begin) : 1;
  const char* const soak = std::getenv("VPMM_SOAK_OPERATIONS");
  const std::uint64_t wanted = soak == nullptr ? 0 : std::stoull(soak) / kShareOfSoak;
  const auto is_over = [&](std::uint64_t seed, std::uint64_t done) {
    return fixed != nullptr ? seed > first : seed >= first + kLeastSeeds && done >= wanted;
  };
  std::uint64_t done = 0;
  for (std::uint64_t seed = first; !is_over(seed, done) && !HasFailure(); ++seed) {
    const Scene scene = scene_for_threads(seed);
    Crew crew(scene, seed % 3 == 0 ? Crew::Streams::shared : Crew::Streams::own,
              fmt::format("VPMM_SEED={}", seed));
    const std::uint64_t threads = 2 + seed % 7;
    crew.run(seed, threads, static_cast<int>(kStepsPerThread), 1 + static_cast<int>(seed % 4));
    done += threads * kStepsPerThread;
    EXPECT_EQ(crew.failure(), "") << "Try again: VPMM_SEED=" << seed
                                  << " vpmm_test_property --gtest_filter=PoolThreads.*\n"
                                  << to_code(scene);
  }
}

}  // namespace
}  // namespace vpmm::property
