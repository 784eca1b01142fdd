// process: what VPMM_STATS=1 and VPMM_LOG=info say of a pool when it ends and when it opens.
#pragma once

#include <optional>
#include <string>

#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "settings/config.hpp"

namespace vpmm::process {

// Several lines for people, the last with its line break.
std::string summary(driver::DeviceOrdinal device, const observe::Statistics& figures,
                    std::optional<Bytes> capacity);
// To standard error, in one write. Safe while the process ends.
void print_summary(const std::string& text) noexcept;

// "device 0 (NVIDIA H100, 80 GiB): pool opened, limit none; VPMM_PREFER=latency": what differs from
// the defaults.
std::string opening(driver::Driver& driver, driver::DeviceOrdinal device,
                    const settings::Config& config);

}  // namespace vpmm::process
