// tests: what the project promises about memory: every program runs on a GPU that has a hundredth and 64 MiB more than
// the program's page-rounded live memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "replay/fit.hpp"
#include "replay/live_memory.hpp"
#include "replay/random_program.hpp"
#include "replay/replay.hpp"
#include "support/page_size.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;

Bytes rounded_peak(const Trace& trace) {
  LiveMemory live(kPage);
  for (const TraceEvent& event : trace.events) {
    event.kind == TraceEvent::Kind::allocate ? live.allocate(event.bytes) : live.deallocate(event.bytes);
  }
  return live.rounded_peak();
}

void expect_to_fit(const Trace& trace) {
  const Bytes rounded = rounded_peak(trace);
  SimMachineOptions gpu;
  gpu.capacity = rounded + rounded / 100 + kFitAllowance;
  const auto machine = make_sim_machine(gpu);
  const auto result = replay(trace, *machine, allocator_recipe(AllocatorKind::vpmm, {}), {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result.value().failed_allocations, 0u)
      << fmt::format("{} of {} on {} bytes, for {} bytes that live in pages", trace.name, result.value().allocations,
                     gpu.capacity, rounded);
  EXPECT_EQ(result.value().corruptions, 0u);
  EXPECT_EQ(result.value().hazards, 0u);
}

class RandomPrograms : public testing::TestWithParam<RandomProgram> {};

std::vector<RandomProgram> programs() {
  // Few large requests on much memory, or many smaller ones on less: each fills its memory many times over.
  struct Scale {
    Bytes largest;
    Bytes most_live;
  };
  std::vector<RandomProgram> all;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    for (const std::size_t streams : {std::size_t{1}, std::size_t{4}}) {
      for (const auto& [largest, most_live] : {Scale{16 * kMiB, kGiB}, {128 * kMiB, 4 * kGiB}, {kGiB, 12 * kGiB}}) {
        all.push_back({.seed = seed, .streams = streams, .largest = largest, .most_live = most_live});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, RandomPrograms, testing::ValuesIn(programs()), [](const auto& parameter) {
  const RandomProgram& program = parameter.param;
  return fmt::format("seed_{}_streams_{}_mib_{}", program.seed, program.streams, program.largest / kMiB);
});

// With VPMM_PROGRAMS=FOLDER the programs are written there, for `vpmm replay --fit`.
TEST_P(RandomPrograms, fit_what_lives_in_pages_and_a_hundredth_and_64_mib) {
  const Trace trace = random_program(GetParam());
  if (const char* const folder = std::getenv("VPMM_PROGRAMS"))
    write_trace(trace, std::string(folder) + "/" + trace.name);
  expect_to_fit(trace);
}

TEST(RandomProgram, is_the_same_every_time_and_reads_as_a_trace) {
  const RandomProgram program{.seed = 5, .operations = 2000, .streams = 3};
  const Trace trace = random_program(program);
  const std::string path = testing::TempDir() + "vpmm_random_program.csv";
  write_trace(random_program(program), path);
  const auto again = observe::read_trace(path);
  std::remove(path.c_str());
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again.value().allocations, trace.allocations);
  EXPECT_EQ(again.value().streams, 3u);
  ASSERT_EQ(again.value().events.size(), 2000u);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    ASSERT_EQ(again.value().events[i].kind, trace.events[i].kind);
    ASSERT_EQ(again.value().events[i].allocation, trace.events[i].allocation);
    ASSERT_EQ(again.value().events[i].bytes, trace.events[i].bytes);
  }
}

TEST(RandomProgram, fills_the_memory_that_it_may_and_takes_no_more) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Bytes rounded = rounded_peak(random_program({.seed = seed, .largest = 16 * kMiB, .most_live = kGiB}));
    EXPECT_GE(rounded, kGiB / 20 * 19) << seed;
    EXPECT_LE(rounded, kGiB / 4 * 5) << seed << ": with what rounding adds";
  }
}

class RecordedPrograms : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, RecordedPrograms,
                         testing::Values("gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_P(RecordedPrograms, fit_what_lives_in_pages_and_a_hundredth_and_64_mib) {
  const auto trace = observe::read_trace(repository_path(std::string("bench/traces/") + GetParam() + ".csv.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  expect_to_fit(trace.value());
}

}  // namespace
}  // namespace vpmm::replay
