// SPDX-License-Identifier: Apache-2.0
// process: lines of the summary and of the opening.
#include "process/summary.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/quantity.hpp"

namespace vpmm::process {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 100.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string summary(driver::DeviceOrdinal device, const observe::Statistics& figures,
                    std::optional<Bytes> capacity) {
  std::string text = fmt::format("vpmm: summary of a pool on device {}\n", device);
  const auto line = [&text](std::string_view name, const std::string& words) {
    text += fmt::format("  {:<9} {}\n", name, words);
  };
  line("live", fmt::format("{} at most, {} now in {}", readable_bytes(figures.peak_live_bytes),
                           readable_bytes(figures.live_bytes),
                           counted(figures.live_allocations, "allocation")));
  line("mapped",
       fmt::format("{} at most, {} now; the limit is {}", readable_bytes(figures.peak_mapped_bytes),
                   readable_bytes(figures.mapped_bytes),
                   capacity ? readable_bytes(*capacity) : "none"));
  line("requests", fmt::format("{}, {:.1f} % of them without a mapping call; {}",
                               counted(figures.allocations, "allocation"),
                               percent(figures.hits, figures.allocations),
                               counted(figures.deallocations, "free")));
  line("failed",
       fmt::format("{}, {} with wrong arguments", counted(figures.failed_allocations, "allocation"),
                   counted(figures.caller_mistakes, "call")));
  line("driver", fmt::format("{} took {:.1f} ms; {} created, {} moved, {} given back",
                             counted(figures.driver_calls, "call"),
                             static_cast<double>(figures.driver_ns) / 1e6,
                             counted(figures.chunks_created, "chunk"), figures.chunks_moved,
                             figures.chunks_released));
  line("waits",
       fmt::format("{} of the host, {} of streams, {} before the pool grew", figures.host_waits,
                   figures.gpu_waits, counted(figures.pauses, "pause")));
  return text;
}

void print_summary(const std::string& text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string opening(driver::Driver& driver, driver::DeviceOrdinal device,
                    const settings::Config& config) {
  std::string name;
  Bytes total = 0;
  if (driver.device_get_name(device, name) != driver::CuResult::success) name = "unknown";
  if (driver.device_total_mem(device, total) != driver::CuResult::success) total = 0;
  std::string text = fmt::format(
      "device {} ({}, {}): pool opened, limit {}", device, name, readable_bytes(total),
      config.limits.capacity                ? readable_bytes(*config.limits.capacity)
      : config.limits.capacity_percent == 0 ? "none"
                                            : fmt::format("{}%", config.limits.capacity_percent));
  const Vector<settings::SettingInForce> usual = settings::list_settings(settings::Config{});
  const Vector<settings::SettingInForce> here = settings::list_settings(config);
  for (std::size_t i = 0; i < here.size(); ++i)
    if (here[i].value != usual[i].value)
      text += fmt::format("; {}={}", here[i].name, here[i].value);
  return text;
}

}  // namespace vpmm::process
