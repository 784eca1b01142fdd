// SPDX-License-Identifier: Apache-2.0
// tests: VPMM_PREFER does what its values say, over all recorded traces, on several streams and in
// small programs: `footprint` holds less than the default, and `latency` spends less time in the
// driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "replay/random_program.hpp"
#include "replay/replay.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;
using Kind = TraceEvent::TraceKind;

constexpr std::uint64_t kLagUs = 500;

ReplayResult replayed(const Trace& trace, settings::Prefer prefer, std::uint64_t lag_us = kLagUs) {
  settings::Config config;
  config.prefer = prefer;
  SimMachineOptions options;
  options.lag_us = lag_us;
  const auto machine = make_sim_machine(options);
  auto result = replay(trace, *machine, allocator_recipe(AllocatorKind::vpmm, config), {});
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (!result) return {};
  EXPECT_EQ(result.value().hazards, 0U);
  return std::move(result).value();
}

// Which stream comes first, and where a chunk happens to lie, may cost half a percent.
Bytes with_tolerance(Bytes bytes) { return bytes + bytes / 200; }

void expect_monotone_in_footprint(const Trace& trace, std::uint64_t lag_us) {
  SCOPED_TRACE(trace.name + ", behind the host by us: " + std::to_string(lag_us));
  const Bytes footprint = replayed(trace, settings::Prefer::footprint, lag_us).peak_mapped_bytes;
  const Bytes balanced = replayed(trace, settings::Prefer::balanced, lag_us).peak_mapped_bytes;
  EXPECT_LE(footprint, with_tolerance(balanced));
  EXPECT_LE(balanced,
            with_tolerance(replayed(trace, settings::Prefer::latency, lag_us).peak_mapped_bytes));
}

Trace recorded(const std::string& name) {
  auto trace = observe::read_trace(repository_path("bench/traces/" + name + ".csv.gz"));
  EXPECT_TRUE(trace.ok()) << trace.error().message;
  return trace ? std::move(trace).value() : Trace{};
}

// --- recorded traces

constexpr const char* kTraces[] = {"eval_between",   "gnn",         "gpt_ckpt", "gpt_train",
                                   "llama_generate", "moe_train",   "rl_loop",  "serve_streams",
                                   "unet_diffusion", "vit_multires"};

struct Sum {
  Bytes held = 0;
  std::uint64_t driver_ns = 0;
};

Sum sum_over(const std::vector<Trace>& traces, settings::Prefer prefer) {
  Sum sum;
  for (const Trace& trace : traces) {
    const ReplayResult result = replayed(trace, prefer);
    sum.held += result.peak_mapped_bytes;
    sum.driver_ns += result.driver_ns;
  }
  return sum;
}

// A program may be an exception: what a pool does with it depends on where a chunk happens to lie.
void expect_what_the_values_say(const std::vector<Trace>& traces) {
  const Sum balanced = sum_over(traces, settings::Prefer::balanced);
  EXPECT_LT(sum_over(traces, settings::Prefer::footprint).held, balanced.held);
  EXPECT_LT(sum_over(traces, settings::Prefer::latency).driver_ns, balanced.driver_ns);
}

TEST(PreferOnTraces,
     footprint_holds_less_and_latency_takes_less_time_in_the_driver_than_the_default) {
  std::vector<Trace> traces;
  for (const char* const name : kTraces) traces.push_back(recorded(name));
  expect_what_the_values_say(traces);
}

// --- several streams

// Allocations take turns, and each is freed on its own stream.
Trace spread_over_four(Trace trace) {
  constexpr std::size_t kStreams = 4;
  for (TraceEvent& event : trace.events) event.stream = event.allocation % kStreams;
  trace.streams = std::max(trace.streams, kStreams);
  return trace;
}

TEST(PreferOnStreams,
     footprint_holds_less_and_latency_takes_less_time_where_traces_are_spread_over_four) {
  std::vector<Trace> traces;
  for (const char* const name : {"gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train"})
    traces.push_back(spread_over_four(recorded(name)));
  expect_what_the_values_say(traces);
}

TEST(PreferOnRandomPrograms,
     footprint_holds_no_more_than_the_default_however_far_the_gpu_is_behind) {
  for (const std::size_t streams : {2U, 4U, 8U}) {
    for (const Bytes largest : {6 * kMiB, 64 * kMiB}) {
      const Trace trace = random_program({.seed = streams,
                                          .operations = 2000,
                                          .streams = streams,
                                          .largest = largest,
                                          .most_live = 16 * largest});
      for (const std::uint64_t lag_us : {0U, 500U, 5'000U, 50'000U}) {
        EXPECT_LE(
            replayed(trace, settings::Prefer::footprint, lag_us).peak_mapped_bytes,
            with_tolerance(replayed(trace, settings::Prefer::balanced, lag_us).peak_mapped_bytes))
            << trace.name << ", " << lag_us;
      }
    }
  }
}

// --- small programs

// A stream allocates `count` times `bytes` and frees every other of them; then another stream asks
// for `wanted`.
Trace handed_over(std::size_t count, Bytes bytes, Bytes wanted) {
  Trace trace;
  trace.name = std::to_string(count) + " x " + std::to_string(bytes / kMiB) + " MiB";
  trace.streams = 2;
  for (std::size_t i = 0; i < count; ++i) trace.events.push_back({Kind::allocate, i, bytes, 0, i});
  for (std::size_t i = 0; i < count; i += 2)
    trace.events.push_back({Kind::deallocate, i, bytes, 0, count + i});
  trace.events.push_back({Kind::allocate, count, wanted, 1, 2 * count});
  trace.allocations = count + 1;
  return trace;
}

// What the first stream gave back is enough, in pieces that it keeps in its cache and in larger
// ones.
TEST(PreferFootprint,
     takes_what_another_stream_freed_before_it_grows_however_far_the_gpu_is_behind) {
  for (const auto& [count, bytes, wanted] : {std::tuple{6, 5 * kMiB, 12 * kMiB},
                                             {18, 50 * kMiB, 60 * kMiB},
                                             {90, 10 * kMiB, 60 * kMiB},
                                             {450, 2 * kMiB, 60 * kMiB},
                                             {6, 150 * kMiB, 300 * kMiB}}) {
    const Trace trace = handed_over(static_cast<std::size_t>(count), bytes, wanted);
    const Bytes needed = static_cast<Bytes>(count) * round_up(bytes, 2 * kMiB);
    for (const std::uint64_t lag_us : {0U, 500U, 50'000U}) {
      expect_monotone_in_footprint(trace, lag_us);
      const Bytes mapped = replayed(trace, settings::Prefer::footprint, lag_us).peak_mapped_bytes;
      EXPECT_LE(mapped, with_tolerance(needed)) << trace.name << ", " << lag_us;
    }
  }
}

// As examples/out_of_memory.py has it, with memory enough.
TEST(PreferFootprint, holds_no_more_than_the_default_in_the_program_that_runs_out_of_memory) {
  Trace trace;
  trace.name = "out_of_memory";
  trace.streams = 2;
  trace.events.push_back({Kind::allocate, 0, 20 * kMiB, 0, 0});
  for (std::size_t i = 1; i <= 6; ++i) trace.events.push_back({Kind::allocate, i, 5 * kMiB, 1, i});
  for (std::size_t i = 1; i <= 6; i += 2)
    trace.events.push_back({Kind::deallocate, i, 5 * kMiB, 1, 6 + i});
  trace.events.push_back({Kind::allocate, 7, 40 * kMiB, 0, 14});
  trace.allocations = 8;
  for (const std::uint64_t lag_us : {0U, 500U, 5'000U, 50'000U})
    expect_monotone_in_footprint(trace, lag_us);
}

}  // namespace
}  // namespace vpmm::replay
