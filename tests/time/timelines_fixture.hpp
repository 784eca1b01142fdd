// SPDX-License-Identifier: Apache-2.0
// time tests: timelines of a simulated machine with two devices.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "support/sim_timelines.hpp"
#include "time/timelines.hpp"

namespace vpmm::time {

using driver::Call;
using driver::CuResult;
using driver::StreamHandle;
using Everything = Timelines::Everything;

constexpr std::size_t kAll = 1000;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

inline ClosingRule every(std::uint64_t frees) {
  ClosingRule rule;
  rule.frees = frees;
  return rule;
}

// Calls take microseconds and work takes seconds, so work ends only when a test lets time pass.
class TimelinesTest : public testing::Test {
 protected:
  TimelinesTest() : sim(two_devices()) { context = enter_primary(sim, timelines); }
  ~TimelinesTest() override {
    EXPECT_EQ(timelines.validate(), "");
    timelines.destroy_events();
  }
  static driver::sim::SimOptions two_devices() {
    driver::sim::SimOptions options;
    options.device_count = 2;
    return options;
  }
  static void expect(CuResult result) { EXPECT_EQ(result, CuResult::success); }

  StreamHandle stream() {
    StreamHandle made{};
    expect(sim.stream_create(driver::StreamFlags::non_blocking, made));
    return made;
  }
  Timeline& of(StreamHandle stream) {
    auto timeline = timelines.of(stream);
    EXPECT_TRUE(timeline.ok());
    return *timeline.value();
  }
  void work(StreamHandle stream, std::uint64_t duration_ns = kSecondNs) {
    expect(sim.launch({"work", duration_ns, {}, {}}, stream));
  }
  Vector<StampPart> poll(std::size_t most = kAll) {
    Vector<StampPart> done;
    EXPECT_TRUE(timelines.poll(most, done).ok());
    return done;
  }

  driver::sim::SimDriver sim;
  driver::FaultingDriver faults{sim};
  driver::RecordingDriver calls{faults};
  driver::ContextHandle context{};
  Timelines timelines{calls, every(2)};
};

}  // namespace vpmm::time
