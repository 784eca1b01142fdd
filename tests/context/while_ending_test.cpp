// SPDX-License-Identifier: Apache-2.0
// context: calls while the process ends.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "context/bound_stream.hpp"
#include "process/process_gate.hpp"
#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

// Bits of what went wrong.
enum Wrong : int {
  kNotReadyBefore = 1,
  kNotEnding = 2,
  kServed = 4,
  kFreed = 8,
  kDriverCalled = 16,
  kRecorded = 32,
};

struct Ending {
  HookedWorld* world = nullptr;
  StreamHandle stream{};
  std::unique_ptr<context::BoundStream> bound;
  DevicePtr live{};
  int wrong = 0;

  // Takes and frees by each way without the pool's lock; counts those that serve.
  int served() {
    int count = 0;
    for (const DevicePtr made :
         {world->pool->allocate_if_ready(1000, 0, stream), world->pool->allocate_if_ready(1000, 0),
          bound->try_allocate(1000, 0)})
      count += is_null(made) ? 0 : 1;
    return count;
  }
  std::uint64_t calls() const {
    return std::accumulate(world->hooks.counts.begin(), world->hooks.counts.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& each) { return sum + each.second; });
  }
};

Ending ending;

[[noreturn]] void look() {
  int wrong = ending.wrong;
  const std::uint64_t calls = ending.calls();
  if (!process::is_ending()) wrong |= kNotEnding;
  if (ending.served() != 0) wrong |= kServed;
  if (ending.world->pool->deallocate_if_ready(ending.live, ending.stream) ||
      ending.bound->try_deallocate(ending.live))
    wrong |= kFreed;
  const auto recording = ending.world->pool->reports().start_recording("/dev/null", {});
  if (recording || recording.error().code != ErrorCode::process_ending) wrong |= kRecorded;
  ending.bound.reset();
  ending.world->pool.reset();
  if (ending.calls() != calls) wrong |= kDriverCalled;
  std::_Exit(wrong);
}

TEST(AtExit, nothing_is_served_or_freed_without_the_lock_and_the_driver_is_not_called) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ending.world = new HookedWorld(adaptive_world());  // the process ends with it
        ending.stream = ending.world->stream();
        ending.bound = std::move(ending.world->pool->bind(ending.stream).value());
        for (const pool::Stream& on : {pool::Stream(ending.stream), pool::Stream()}) {
          std::vector<DevicePtr> parts;
          for (int i = 0; i < 8; ++i) parts.push_back(ending.world->allocate(1000, on));
          for (const DevicePtr part : parts) ending.world->deallocate(part, on);
          if (!ending.world->pool->streams().synchronize()) ending.wrong |= kNotReadyBefore;
        }
        ending.live = ending.world->allocate(1000, ending.stream);
        ending.world->deallocate(ending.world->allocate(1000, ending.stream), ending.stream);
        if (ending.served() != 3) ending.wrong |= kNotReadyBefore;
        if (!ending.world->pool->deallocate_if_ready(ending.world->allocate(1000, ending.stream),
                                                     ending.stream) ||
            !ending.bound->try_deallocate(ending.world->allocate(1000, ending.stream)))
          ending.wrong |= kNotReadyBefore;
        std::atexit(&look);
        process::close_gate_at_exit();
        std::exit(128);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vpmm::test
