// SPDX-License-Identifier: Apache-2.0
// tests: what docs/where-it-loses.md says of memory, on the simulator: programs that hold more than
// lives, and how much.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "replay/replay.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;

struct Held {
  double over_live = 0;     // as requested
  double over_rounded = 0;  // to pages
};

Held held_by(const Trace& trace, const SimMachineOptions& options = {}) {
  const auto machine = make_sim_machine(options);
  const auto result = replay(trace, *machine, allocator_recipe(AllocatorKind::vpmm, {}), {});
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (!result) return {};
  const auto mapped = static_cast<double>(result.value().peak_mapped_bytes);
  return {mapped / static_cast<double>(result.value().peak_live_bytes),
          mapped / static_cast<double>(result.value().peak_rounded_bytes)};
}

// So many live allocations whose sizes `pick` draws; then one of them after the other makes room
// for another, 5000 times.
template <typename Pick>
Trace replacing(std::size_t live, const Pick& pick) {
  std::mt19937_64 random(1);
  Trace trace;
  trace.streams = 1;
  std::vector<TraceEvent> living;
  const auto add = [&](TraceEvent event, TraceEvent::TraceKind kind) {
    event.kind = kind;
    event.time_us = trace.events.size();
    trace.events.push_back(event);
  };
  for (std::size_t step = 0; step < live + 5000; ++step) {
    if (step >= live) {
      std::swap(living[random() % living.size()], living.back());
      add(living.back(), TraceEvent::TraceKind::deallocate);
      living.pop_back();
    }
    TraceEvent event;
    event.allocation = trace.allocations++;
    event.bytes = pick(random);
    living.push_back(event);
    add(event, TraceEvent::TraceKind::allocate);
  }
  return trace;
}

Bytes between(std::mt19937_64& random, Bytes least, Bytes most) {
  return least + random() % (most - least + 1);
}

TEST(LosingPrograms, random_sizes_up_to_4_mib_hold_1_07_times_their_bytes) {
  const Trace trace = replacing(10'000, [](auto& random) { return between(random, 1, 4 * kMiB); });
  EXPECT_NEAR(held_by(trace).over_live, 1.07, 0.01);
}

// Spans of more than half a page, a little less than three quarters of all: none may cross from one
// page to the next.
TEST(LosingPrograms, sizes_of_1_to_2_mib_hold_1_24_times_their_bytes) {
  const Trace trace = replacing(928, [](auto& random) {
    return random() % 928 < 342 ? between(random, kMiB + 1, 134 * kMiB / 100)
                                : between(random, 1, 600 * kKiB);
  });
  EXPECT_NEAR(held_by(trace).over_live, 1.24, 0.01);
}

TEST(LosingPrograms, streams_hold_1_24_times_what_lives_where_the_gpu_is_20_ms_behind) {
  const auto trace = observe::read_trace(repository_path("bench/traces/serve_streams.csv.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  SimMachineOptions options;
  options.lag_us = 20'000;
  EXPECT_NEAR(held_by(trace.value(), options).over_rounded, 1.24, 0.01);
}

}  // namespace
}  // namespace vpmm::replay
