// SPDX-License-Identifier: Apache-2.0
// tests: timelines of a simulated device.
#pragma once

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "time/timelines.hpp"

namespace vpmm::time {

// The primary context of device 0, retained and current in this thread, becomes that of
// `timelines`.
inline driver::ContextHandle enter_primary(driver::sim::SimDriver& sim, Timelines& timelines) {
  driver::ContextHandle context{};
  driver::ContextId id{};
  EXPECT_EQ(sim.init(), driver::CuResult::success);
  EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
  EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
  EXPECT_EQ(sim.ctx_get_id(context, id), driver::CuResult::success);
  timelines.contexts().primary = {context, id};
  return context;
}

}  // namespace vpmm::time
