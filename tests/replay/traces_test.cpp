// SPDX-License-Identifier: Apache-2.0
// tests: the recorded traces run on the simulator without a failure, and within the bounds that the
// project promises.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "replay/replay.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

// With memory to spare: so much mapped at the peak over what lives, rounded to pages.
constexpr double kHeld = 1.10;

// Peak mapped over peak live memory rounded to pages, and time in memory calls on the simulator's
// default clock, that of a busy process. In page mode the ratio leaves half a per cent, or a whole
// one where streams are many: memory that is held for small requests and frees that are not
// complete yet.
struct Promise {
  const char* trace;
  AllocatorKind allocator;
  double largest_ratio;
  std::uint64_t most_driver_ms;
};

void PrintTo(const Promise& promise, std::ostream* out) {
  *out << promise.trace << " through " << to_string(promise.allocator);
}

class Traces : public testing::TestWithParam<Promise> {};
INSTANTIATE_TEST_SUITE_P(
    , Traces,
    testing::Values(Promise{"gnn", AllocatorKind::vpmm, kHeld, 250},
                    Promise{"gpt_train", AllocatorKind::vpmm, kHeld, 700},
                    Promise{"serve_streams", AllocatorKind::vpmm, kHeld, 300},
                    Promise{"gpt_ckpt", AllocatorKind::vpmm, kHeld, 700},
                    Promise{"moe_train", AllocatorKind::vpmm, kHeld, 900},
                    Promise{"gnn", AllocatorKind::vpmm_page, 1.005, 4000},
                    Promise{"gpt_train", AllocatorKind::vpmm_page, 1.005, 2000},
                    Promise{"serve_streams", AllocatorKind::vpmm_page, 1.01, 2000},
                    Promise{"gpt_ckpt", AllocatorKind::vpmm_page, 1.005, 3500},
                    Promise{"moe_train", AllocatorKind::vpmm_page, 1.005, 2000}),
    [](const auto& parameter) {
      return std::string(parameter.param.trace) +
             (parameter.param.allocator == AllocatorKind::vpmm ? "_adaptive" : "_page");
    });

TEST_P(Traces, keep_their_contents_and_their_bounds) {
  const Promise& promise = GetParam();
  const auto trace = observe::read_trace(
      repository_path(std::string("bench/traces/") + promise.trace + ".csv.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  const auto machine = make_sim_machine({});
  const auto result = replay(trace.value(), *machine, allocator_recipe(promise.allocator, {}), {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result.value().failed_allocations, 0u);
  EXPECT_EQ(result.value().corruptions, 0u);
  EXPECT_EQ(result.value().hazards, 0u);
  EXPECT_TRUE(result.value().findings.empty()) << result.value().findings.front();
  const double ratio = static_cast<double>(result.value().peak_mapped_bytes) /
                       static_cast<double>(result.value().peak_rounded_bytes);
  EXPECT_LE(ratio, promise.largest_ratio);
  EXPECT_LE(result.value().driver_ns / 1'000'000, promise.most_driver_ms);
}

}  // namespace
}  // namespace vpmm::replay
