// SPDX-License-Identifier: Apache-2.0
// process: output of VPMM_STATS=1 at the end of a pool, and of VPMM_LOG=info at its opening.
#pragma once

#include <optional>
#include <string>

#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "settings/config.hpp"

namespace vpmm::process {

// Several lines, each with its line break.
std::string summary(driver::DeviceOrdinal device, const observe::Statistics& figures,
                    std::optional<Bytes> capacity);
// Prints to standard error, in one write. Safe while the process ends.
void print_summary(const std::string& text) noexcept;

// "device 0 (NVIDIA H100, 80 GiB): pool opened, limit none; VPMM_PREFER=latency", with all settings
// that differ from the defaults.
std::string opening(driver::Driver& driver, driver::DeviceOrdinal device,
                    const settings::Config& config);

}  // namespace vpmm::process
