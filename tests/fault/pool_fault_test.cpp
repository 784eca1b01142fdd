// SPDX-License-Identifier: Apache-2.0
// fault tests: each driver call of each scenario fails in turn, with every error that matters, once
// and from then on.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fault/scenarios.hpp"

namespace vpmm::fault {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

Call call_named(const std::string& name) {
  for (std::size_t i = 0; i < driver::kCallCount; ++i)
    if (name == driver::to_string(static_cast<Call>(i))) return static_cast<Call>(i);
  return Call::init;
}

// That the legacy stream may not be used is an answer, not a fault; for other streams it would be a
// lie.
std::vector<CuResult> errors_of(Call call) {
  std::vector<CuResult> errors = driver::errors_that_matter(call);
  if (call == Call::stream_is_capturing || call == Call::stream_get_capture_info)
    std::erase(errors, CuResult::stream_capture_implicit);
  return errors;
}

// The fallible calls of a run without faults, in order.
std::vector<Call> calls_of(FaultWorld& world, const std::function<void()>& run) {
  world.recorder().start_listing();
  run();
  std::vector<Call> calls;
  for (const std::string& line : world.recorder().stop_listing()) {
    const Call call = call_named(line.substr(0, line.find(':')));
    if (!driver::errors_that_matter(call).empty()) calls.push_back(call);
  }
  return calls;
}

class PoolFault : public ::testing::TestWithParam<Case> {
 protected:
  std::string describe(std::size_t n, Call call, CuResult error, FaultPlan::Repeat repeat) const {
    return fmt::format("{}: call {} ({}) gives {} {}", name_of(GetParam()), n,
                       driver::to_string(call), driver::to_string(error),
                       repeat == FaultPlan::Repeat::once ? "once" : "from then on");
  }
  // `faulty(n, plan, description)` for every call, error that matters, and repeat.
  void sweep(const std::vector<Call>& calls,
             const std::function<std::string(const FaultPlan&)>& faulty) {
    for (std::size_t n = 1; n <= calls.size(); ++n)
      for (const CuResult error : errors_of(calls[n - 1]))
        for (const auto repeat : {FaultPlan::Repeat::once, FaultPlan::Repeat::from_then_on}) {
          const bool is_repetition = n > 1 && calls[n - 2] == calls[n - 1];
          // Each of the calls to come is tried a hundred times: once for each kind is enough.
          if (error == CuResult::not_ready && repeat == FaultPlan::Repeat::from_then_on &&
              is_repetition)
            continue;
          const std::string failure = faulty({{}, n, error, repeat});
          if (failure.empty()) continue;
          ADD_FAILURE() << describe(n, calls[n - 1], error, repeat) << ": " << failure;
          if (++failures_ == 5) return;
        }
  }

 private:
  int failures_ = 0;
};

TEST_P(PoolFault, a_failed_call_loses_nothing_and_leaves_a_pool_that_works_or_is_poisoned) {
  const Case& c = GetParam();
  const auto run = [&](FaultWorld& world) {
    world.open();
    c.scenario.run(world);
  };
  FaultWorld dry(options_of(c), config_of(c));
  const std::vector<Call> calls = calls_of(dry, [&] { run(dry); });
  dry.check_aftermath();
  dry.close(FaultWorld::Left::nothing);
  ASSERT_EQ(dry.failure(), "") << "without any fault";
  sweep(calls, [&](const FaultPlan& plan) {
    FaultWorld world(options_of(c), config_of(c));
    world.faulting().set_plan(plan);
    run(world);
    EXPECT_GT(world.faulting().fired(), 0u);
    world.check_aftermath();
    world.faulting().clear_plan();
    world.close(FaultWorld::Left::nothing);
    return world.failure();
  });
}

TEST_P(PoolFault, an_end_with_a_failed_call_gives_back_what_the_driver_takes) {
  const Case& c = GetParam();
  const auto prepare = [&](FaultWorld& world) {
    world.open();
    c.scenario.run(world);
  };
  FaultWorld dry(options_of(c), config_of(c));
  prepare(dry);
  const std::vector<Call> calls = calls_of(dry, [&] { dry.close(FaultWorld::Left::nothing); });
  ASSERT_EQ(dry.failure(), "") << "without any fault";
  ASSERT_FALSE(calls.empty());
  sweep(calls, [&](const FaultPlan& plan) {
    FaultWorld world(options_of(c), config_of(c));
    prepare(world);
    world.faulting().set_plan(plan);
    const bool is_harmless =
        plan.result == CuResult::not_ready && plan.repeat == FaultPlan::Repeat::once;
    world.close(is_harmless ? FaultWorld::Left::nothing : FaultWorld::Left::what_was_refused);
    EXPECT_GT(world.faulting().fired(), 0u);
    return world.failure();
  });
}

INSTANTIATE_TEST_SUITE_P(Scenarios, PoolFault, ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& each) {
                           return name_of(each.param);
                         });

}  // namespace
}  // namespace vpmm::fault
