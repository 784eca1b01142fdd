// SPDX-License-Identifier: Apache-2.0
// context: the choice of a driver, and the drivers that the process shares.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "driver/driver.hpp"
#include "settings/config.hpp"

namespace vpmm::context {

// Choice of `automatic` without a usable CUDA driver. A library must fail: a silent simulation is
// worse than an error.
enum class OnMissingCuda { fail, simulate };

// Opens a driver for the caller; the simulator with default options.
// no_driver: no CUDA driver or no GPU; the message names the simulator.
Result<std::unique_ptr<driver::Driver>> open_driver(settings::DriverKind kind,
                                                    OnMissingCuda on_missing = OnMissingCuda::fail);

// Driver shared by all pools of the process, opened at the first call, never destroyed. A call
// after a failure tries again. Thread-safe.
Result<driver::Driver*> process_driver(settings::DriverKind kind);

}  // namespace vpmm::context
