// context: the only place that knows which drivers there are, and the drivers that the whole
// process shares.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "driver/driver.hpp"
#include "settings/config.hpp"

namespace vpmm::context {

// What `automatic` does on a machine without a usable CUDA driver. A library must fail: a program
// that silently computed on a simulated GPU would be worse off than one that stops.
enum class OnMissingCuda { fail, simulate };

// A driver of the caller's own. The simulator comes with its default options.
// no_driver: no CUDA driver or no GPU here; the message names the simulator as the way out.
Result<std::unique_ptr<driver::Driver>> open_driver(settings::DriverKind kind,
                                                    OnMissingCuda on_missing = OnMissingCuda::fail);

// The driver that all pools of the process share: opened at the first call, never destroyed. A
// failure is not remembered. Thread-safe.
Result<driver::Driver*> process_driver(settings::DriverKind kind);

}  // namespace vpmm::context
