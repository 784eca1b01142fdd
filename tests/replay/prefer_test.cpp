// tests: VPMM_PREFER does what its values say on the recorded traces: less memory takes more time in the driver.
#include <gtest/gtest.h>

#include <string>

#include "replay/replay.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

class PreferOnTraces : public testing::TestWithParam<std::string> {
 protected:
  ReplayResult with(pool::Prefer prefer) const {
    context::Config config;
    config.prefer = prefer;
    const auto machine = make_sim_machine({});
    auto result = replay(trace_.value(), *machine, allocator_recipe(AllocatorKind::vpmm, config), {});
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result ? std::move(result).value() : ReplayResult{};
  }
  void SetUp() override { ASSERT_TRUE(trace_.ok()) << trace_.error().message; }

  const Result<observe::Trace> trace_ = observe::read_trace(repository_path("bench/traces/" + GetParam() + ".csv.gz"));
};
INSTANTIATE_TEST_SUITE_P(, PreferOnTraces,
                         testing::Values("gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(PreferOnTraces, is_monotone_in_footprint_and_in_time_in_the_driver) {
  const ReplayResult footprint = with(pool::Prefer::footprint);
  const ReplayResult balanced = with(pool::Prefer::balanced);
  const ReplayResult latency = with(pool::Prefer::latency);
  EXPECT_GE(footprint.driver_ns, balanced.driver_ns);
  EXPECT_GE(balanced.driver_ns, latency.driver_ns);
  EXPECT_LE(footprint.peak_mapped_bytes, balanced.peak_mapped_bytes);
  EXPECT_LE(balanced.peak_mapped_bytes, latency.peak_mapped_bytes);
}

}  // namespace
}  // namespace vpmm::replay
