// SPDX-License-Identifier: Apache-2.0
// cli: `vpmm fit`: the smallest GPU on which traces run, for each setting of the pool.
#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/interrupt.hpp"
#include "cli/no_shortages.hpp"
#include "cli/options.hpp"
#include "cli/progress_bar.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"
#include "observe/trace_file.hpp"
#include "replay/fit.hpp"
#include "replay/replay.hpp"
#include "replay/report.hpp"
#include "settings/config.hpp"

namespace vpmm::cli {
namespace {

// Settings that are tried: values of VPMM_PREFER, and one chunk per page.
enum class Setting { footprint, balanced, latency, page };

const std::vector<std::pair<std::string, Setting>>& settings() {
  static const std::vector<std::pair<std::string, Setting>> all = {
      {"footprint", Setting::footprint},
      {"balanced", Setting::balanced},
      {"latency", Setting::latency},
      {"page", Setting::page}};
  return all;
}

std::string name_of(Setting setting) {
  for (const auto& [name, each] : settings()) {
    if (each == setting) return name;
  }
  return {};
}

struct FitArguments {
  std::vector<std::string> traces;
  std::vector<Setting> settings;
  std::optional<Bytes> capacity;
  std::uint64_t lag_us = 500;
  bool json = false;
};

class Fitter {
 public:
  Fitter(const FitArguments& options, const settings::Config& config)
      : options_(options),
        config_(config),
        largest_(options.capacity.value_or(replay::SimMachineOptions().capacity)) {}

  Result<void> run() {
    std::vector<observe::Trace> traces;
    for (const std::string& path : options_.traces) {
      VPMM_TRY_ASSIGN(observe::Trace trace, observe::read_trace(path));
      if (!trace.warning.empty()) say_warning(trace.warning);
      traces.push_back(std::move(trace));
    }
    const NoShortages no_shortages;
    for (const observe::Trace& trace : traces) {
      for (const Setting setting : options_.settings) {
        VPMM_TRY_ASSIGN(replay::ReplayResult result, fit(trace, setting));
        if (options_.json) print_json(result);
        results_.push_back(std::move(result));
      }
    }
    return {};
  }

  void print_table() const {
    if (options_.json || results_.empty()) return;
    const replay::Columns columns = columns_of_output();
    fmt::print("{}", wrapped(replay::fit_table(results_, columns), columns));
  }

 private:
  // The result of the replay with memory to spare, with its fit, under the setting's name.
  Result<replay::ReplayResult> fit(const observe::Trace& trace, Setting setting) {
    const std::string label = printable(fmt::format("{}, {}", trace.name, name_of(setting)));
    ProgressBar bar(label, kLikelyReplays * trace.events.size());
    VPMM_TRY_ASSIGN(replay::ReplayResult result,
                    replay(trace, setting, largest_, replay::OnRefusal::go_on, bar));
    VPMM_TRY_ASSIGN(result.fit, replay::find_fit(result, largest_, [&](Bytes capacity) {
                      return replay(trace, setting, capacity, replay::OnRefusal::stop, bar);
                    }));
    result.allocator = name_of(setting);
    return result;
  }

  Result<replay::ReplayResult> replay(const observe::Trace& trace, Setting setting, Bytes capacity,
                                      replay::OnRefusal on_refusal, ProgressBar& bar) {
    settings::Config config = config_;
    if (setting == Setting::footprint) config.prefer = settings::Prefer::footprint;
    if (setting == Setting::balanced) config.prefer = settings::Prefer::balanced;
    if (setting == Setting::latency) config.prefer = settings::Prefer::latency;
    const auto kind =
        setting == Setting::page ? replay::AllocatorKind::vpmm_page : replay::AllocatorKind::vpmm;
    replay::SimMachineOptions sim;
    sim.capacity = capacity;
    sim.lag_us = options_.lag_us;
    sim.has_contents = on_refusal == replay::OnRefusal::go_on;  // a search asks only what fits
    replay::ReplayOptions how;
    how.on_refusal = on_refusal;
    how.page_size = config_.page_size;
    how.should_stop = is_interrupted;
    how.progress = [&bar, last = std::size_t{0}](std::size_t done, std::size_t) mutable {
      bar.add(done - std::exchange(last, done));
    };
    return replay::replay(trace, *replay::make_sim_machine(sim),
                          replay::allocator_recipe(kind, config), how);
  }

  static void print_json(const replay::ReplayResult& result) {
    nlohmann::ordered_json json{{"trace", result.trace},
                                {"setting", result.allocator},
                                {"peak_live_bytes", result.peak_live_bytes},
                                {"peak_rounded_bytes", result.peak_rounded_bytes},
                                {"peak_mapped_bytes", result.peak_mapped_bytes},
                                {"driver_time_us", static_cast<double>(result.driver_ns) / 1e3},
                                {"fit_bytes", nullptr},
                                {"replays", nullptr}};
    if (result.fit) {
      json["fit_bytes"] = result.fit->capacity;
      json["replays"] = result.fit->replays;
    }
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    std::fflush(stdout);
  }

  static constexpr std::size_t kLikelyReplays = 8;

  const FitArguments& options_;
  const settings::Config config_;
  const Bytes largest_;
  std::vector<replay::ReplayResult> results_;
};

Result<void> fit_traces(const FitArguments& options) {
  VPMM_TRY_ASSIGN(const settings::Config config, settings::config_from_environment());
  Fitter fitter(options, config);
  Result<void> done = fitter.run();
  fitter.print_table();  // also the rows before an error
  return done;
}

}  // namespace

void add_fit(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "fit", "Find the smallest GPU on which traces run without a failed allocation");
  auto options = std::make_shared<FitArguments>();
  verb->add_option("TRACE", options->traces,
                   "Recordings, or CSV files with the columns op, id, bytes, stream, time_us")
      ->required();
  verb->add_option("--prefer", options->settings,
                   "Settings to try (default: all); may be given several times")
      ->transform(names_only(settings()))
      ->type_name("NAME")
      ->take_all()
      ->allow_extra_args(false);
  verb->add_option("--capacity", options->capacity,
                   "The largest GPU that is tried (default 139GiB)")
      ->transform(size_with_unit());
  verb->add_option("--lag-us", options->lag_us,
                   "How far the simulated GPU lags behind the host, in us")
      ->transform(number_up_to(kLongestLagUs))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "One JSON object per line for each trace and setting");
  verb->callback([options, &exit_code] {
    if (options->settings.empty()) {
      for (const auto& each : settings()) options->settings.push_back(each.second);
    }
    note_interrupts();
    const auto done = fit_traces(*options);
    if (!done) exit_code = fail(done.error().message);
    if (is_interrupted()) exit_code = kInterrupted;
  });
}

}  // namespace vpmm::cli
