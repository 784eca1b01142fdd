// SPDX-License-Identifier: Apache-2.0
// cli: `vpmm replay`: traces through allocators, measured and checked.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/progress_bar.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"
#include "context/open_driver.hpp"
#include "observe/log.hpp"
#include "observe/trace_file.hpp"
#include "replay/fit.hpp"
#include "replay/replay.hpp"
#include "replay/report.hpp"
#include "settings/config.hpp"

namespace vpmm::cli {
namespace {

constexpr Bytes kAsRecorded = std::numeric_limits<Bytes>::max();

struct ReplayArguments {
  std::vector<std::string> traces;
  std::optional<settings::DriverKind> driver;
  std::vector<replay::AllocatorKind> allocators;
  std::optional<Bytes> capacity;  // kAsRecorded: what the recorded pool had
  std::uint64_t lag_us = 500;
  std::uint64_t seed = 1;
  replay::CallCosts costs = replay::CallCosts::busy;
  bool fit = false;
  bool paced = false;
  bool calls = false;
  bool json = false;
  bool fail_on_oom = false;
  bool unchecked = false;
};

// One trace through one allocator.
struct Run {
  const observe::Trace* trace;
  replay::AllocatorKind allocator;
};

// The memory that a trace gets.
struct Room {
  Bytes gpu = 0;               // the simulated one
  std::optional<Bytes> limit;  // of the pool; none: what the settings say
};

// A trace that does not fit fails thousands of times, each with a warning. While it lives, the
// first few are shown.
class FewShortages {
 public:
  // While one lives, warnings are expected: none is shown or counted.
  class Expected {
   public:
    explicit Expected(FewShortages& shortages) : shortages_(shortages) {
      shortages_.expected_ = true;
    }
    ~Expected() { shortages_.expected_ = false; }
    Expected(const Expected&) = delete;
    Expected& operator=(const Expected&) = delete;

   private:
    FewShortages& shortages_;
  };

  FewShortages() {
    observe::set_log_sink([this](observe::LogLevel level, std::string_view message) {
      const bool is_shortage = message.starts_with("out of device memory");
      if (is_shortage && expected_) return;
      const std::uint64_t before = is_shortage ? seen_.fetch_add(1) : 0;
      if (before >= kShown) return;
      fmt::print(stderr, "vpmm: {}: {}\n", observe::to_string(level), message);
    });
  }
  ~FewShortages() {
    observe::set_log_sink({});
    if (seen_ <= kShown) return;
    const std::string line =
        "vpmm: " + std::to_string(seen_ - kShown) + " more warnings like it were left out\n";
    std::fputs(line.c_str(), stderr);
  }
  FewShortages(const FewShortages&) = delete;
  FewShortages& operator=(const FewShortages&) = delete;

 private:
  static constexpr std::uint64_t kShown = 3;
  std::atomic<std::uint64_t> seen_{0};
  std::atomic<bool> expected_{false};
};

class Replayer {
 public:
  Replayer(const ReplayArguments& options, const settings::Config& config)
      : options_(options), config_(config) {}

  // Reads everything before anything runs, so that a bad file costs no time.
  Result<void> prepare() {
    for (const std::string& path : options_.traces) {
      VPMM_TRY_ASSIGN(observe::Trace trace, observe::read_trace(path));
      if (!trace.warning.empty()) say_warning(trace.warning);
      traces_.push_back(std::move(trace));
    }
    VPMM_TRY_ASSIGN(driver_,
                    context::open_driver(config_.driver, context::OnMissingCuda::simulate));
    simulated_ = std::string_view(driver_->name()) == "sim";
    if (!simulated_ && options_.unchecked)
      return Error{ErrorCode::bad_configuration,
                   "--unchecked is of the simulator's memory: it needs --driver sim"};
    if (!simulated_ && options_.fit)
      return Error{ErrorCode::bad_configuration,
                   "--fit looks for the smallest simulated GPU: it needs --driver sim"};
    for (const observe::Trace& trace : traces_) {
      if (options_.capacity == kAsRecorded && !trace.capacity && !trace.device_bytes)
        return Error{
            ErrorCode::bad_file,
            fmt::format("{}: --capacity recorded, and it does not say what it had", trace.name)};
      for (const replay::AllocatorKind allocator : options_.allocators)
        runs_.push_back({&trace, allocator});
    }
    return {};
  }

  Result<void> run() {
    std::size_t events = 0;
    for (const Run& each : runs_) events += each.trace->events.size();
    FewShortages few_shortages;
    ProgressBar bar("replaying", events);
    for (const Run& each : runs_) {
      VPMM_TRY_ASSIGN(replay::ReplayResult result, run_one(each, bar));
      if (options_.fit) {
        VPMM_TRY_ASSIGN(result.fit, find_fit(each, result, few_shortages));
      }
      if (options_.json) fmt::print("{}\n", replay::to_json(result));
      std::fflush(stdout);
      results_.push_back(std::move(result));
    }
    return {};
  }

  void report() const {
    if (!options_.json && !results_.empty()) {
      const replay::Columns columns = columns_of_output();
      std::string text = replay::table(results_, columns) + "\n" + replay::summary(results_);
      if (options_.calls) text += "\n" + replay::calls_table(results_, columns);
      if (options_.fit) text += "\n" + replay::fit_table(results_, columns);
      fmt::print("{}", wrapped(text, columns));
    }
    for (const replay::ReplayResult& result : results_) {
      for (const std::string& finding : result.findings) {
        fmt::print(stderr, "vpmm: {}, {}: {}\n", printable(result.trace), result.allocator,
                   finding);
      }
    }
  }

  int exit_code() const {
    const bool trouble =
        std::any_of(results_.begin(), results_.end(), [&](const replay::ReplayResult& result) {
          const bool fails = options_.fail_on_oom && result.failed_allocations != 0;
          return fails || result.corruptions != 0 || result.hazards.value_or(0) != 0;
        });
    return trouble ? kFoundTrouble : kSuccess;
  }

 private:
  // A recording of a program that ran out of memory is replayed with the memory that it had, so
  // that it does again.
  bool is_as_recorded(const observe::Trace& trace) const {
    if (options_.capacity) return *options_.capacity == kAsRecorded;
    const bool knows = trace.capacity || trace.device_bytes;
    return simulated_ && !options_.fit && trace.failed != 0 && knows;
  }

  Room room_for(const observe::Trace& trace) const {
    const Bytes usual = replay::SimMachineOptions().capacity;
    if (is_as_recorded(trace)) return {trace.device_bytes.value_or(usual), trace.capacity};
    if (!options_.capacity) return {usual, std::nullopt};
    return {*options_.capacity, simulated_ ? std::nullopt : options_.capacity};
  }

  std::unique_ptr<replay::TraceMachine> make_machine(Bytes capacity, bool has_contents) {
    if (!simulated_) {
      return replay::make_real_machine(
          *driver_, options_.paced ? replay::Pace::recorded : replay::Pace::as_fast_as_possible);
    }
    replay::SimMachineOptions sim;
    sim.capacity = capacity;
    sim.lag_us = options_.lag_us;
    sim.seed = options_.seed;
    sim.costs = options_.costs;
    sim.has_contents = has_contents;
    return replay::make_sim_machine(sim);
  }

  Result<replay::ReplayResult> run_one(const Run& run, ProgressBar& bar) {
    const auto machine = make_machine(room_for(*run.trace).gpu, !options_.unchecked);
    replay::ReplayOptions how = options_for_all();
    how.progress = [&bar, last = std::size_t{0}](std::size_t done, std::size_t) mutable {
      bar.add(done - std::exchange(last, done));
    };
    return replay_on(*machine, run, how);
  }

  Result<std::optional<replay::SmallestGpu>> find_fit(const Run& run,
                                                      const replay::ReplayResult& roomy,
                                                      FewShortages& shortages) {
    const FewShortages::Expected expected(shortages);
    replay::ReplayOptions how = options_for_all();
    how.on_refusal = replay::OnRefusal::stop;
    return replay::find_fit(roomy, room_for(*run.trace).gpu, [&](Bytes capacity) {
      const auto machine = make_machine(capacity, /*has_contents=*/false);
      return replay_on(*machine, run, how);
    });
  }

  replay::ReplayOptions options_for_all() const {
    replay::ReplayOptions how;
    how.seed = options_.seed;
    how.page_size = config_.page_size;
    how.should_stop = is_interrupted;
    return how;
  }

  Result<replay::ReplayResult> replay_on(replay::TraceMachine& machine, const Run& run,
                                         const replay::ReplayOptions& how) {
    settings::Config config = config_;
    if (const std::optional<Bytes> limit = room_for(*run.trace).limit) {
      config.limits.capacity = limit;
      config.limits.capacity_percent = 0;  // of VPMM_CAPACITY, which the limit replaces
    }
    auto result =
        replay::replay(*run.trace, machine, replay::allocator_recipe(run.allocator, config), how);
    if (result) return result;
    return Error{result.error().code,
                 fmt::format("{} through {}: {}", run.trace->name, replay::to_string(run.allocator),
                             result.error().message)};
  }

  const ReplayArguments& options_;
  settings::Config config_;
  std::vector<observe::Trace> traces_;
  std::unique_ptr<driver::Driver> driver_;
  bool simulated_ = false;
  std::vector<Run> runs_;
  std::vector<replay::ReplayResult> results_;
};

Result<int> replay_traces(const ReplayArguments& options) {
  VPMM_TRY_ASSIGN(settings::Config config, settings::config_from_environment());
  if (options.driver) config.driver = *options.driver;
  Replayer replayer(options, config);
  VPMM_TRY(replayer.prepare());
  const Result<void> done = replayer.run();
  replayer.report();  // also the traces before an error
  VPMM_TRY(done);
  return replayer.exit_code();
}

CLI::Validator allocator_names() {
  std::vector<std::pair<std::string, replay::AllocatorKind>> names;
  for (const auto kind : {replay::AllocatorKind::vpmm, replay::AllocatorKind::vpmm_page,
                          replay::AllocatorKind::cuda, replay::AllocatorKind::cuda_async}) {
    names.emplace_back(replay::to_string(kind), kind);
  }
  return names_only(names);
}

CLI::Validator size_or_recorded() {
  const CLI::Validator size = size_with_unit();
  return CLI::Validator(
      [size](std::string& text) -> std::string {
        if (text != "recorded") return size(text);
        text = std::to_string(kAsRecorded);
        return {};
      },
      "SIZE|recorded");
}

void add_options(CLI::App& verb, ReplayArguments& options) {
  verb.add_option(
          "TRACE", options.traces,
          "Recordings, or CSV files with the columns op, id, bytes, stream, time_us, gzip or "
          "plain; -: standard input")
      ->required();
  verb.add_option("--driver", options.driver,
                  "The driver; auto: the GPU if there is one, else the simulator (default: "
                  "VPMM_DRIVER, else auto)")
      ->transform(driver_names())
      ->type_name("NAME");
  verb.add_option("--allocator", options.allocators,
                  "Allocator to test (default: vpmm); may be given several times")
      ->transform(allocator_names())
      ->type_name("NAME")
      ->take_all()
      ->allow_extra_args(false);
  verb.add_option("--capacity", options.capacity,
                  "Memory of the simulated GPU (default 139GiB); on a GPU, most bytes that the "
                  "pool may map. recorded: "
                  "the recorded pool's, the default on the simulator if requests failed")
      ->transform(size_or_recorded());
  verb.add_flag("--fit", options.fit,
                "On the simulator: also find the smallest GPU, up to --capacity, on which no "
                "allocation fails");
  verb.add_option("--lag-us", options.lag_us,
                  "How far the simulated GPU lags behind the host, in us")
      ->transform(number_up_to(kLongestLagUs))
      ->capture_default_str();
  verb.add_option("--costs", options.costs,
                  "Costs of the simulator's driver calls: as in a process that computes meanwhile "
                  "(busy, the default) "
                  "or in one that does nothing else (idle)")
      ->transform(names_only<replay::CallCosts>(
          {{"busy", replay::CallCosts::busy}, {"idle", replay::CallCosts::idle}}))
      ->type_name("NAME");
  verb.add_flag("--paced", options.paced,
                "On a GPU: at the trace's recorded pace, not as fast as possible");
  verb.add_option("--seed", options.seed, "Seed of the simulator and of the test writes")
      ->transform(number_up_to(std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  verb.add_flag("--calls", options.calls,
                "Also print the time of each kind of driver call; JSON always has it, as "
                "driver_calls_by_kind");
  verb.add_flag("--fail-on-oom", options.fail_on_oom, "Exit with 1 if an allocation fails");
  verb.add_flag(
      "--unchecked", options.unchecked,
      "On the simulator: look for no lost contents and no hazards, which takes half the time");
  verb.add_flag("--json", options.json, "One JSON object per line for each trace and allocator");
}

}  // namespace

void add_replay(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "replay", "Run recorded allocation traces through an allocator and check what they write");
  auto options = std::make_shared<ReplayArguments>();
  add_options(*verb, *options);
  verb->callback([options, &exit_code] {
    if (options->allocators.empty()) options->allocators = {replay::AllocatorKind::vpmm};
    note_interrupts();
    const auto done = replay_traces(*options);
    exit_code = done ? done.value() : fail(done.error().message);
    if (is_interrupted()) exit_code = kInterrupted;
  });
}

}  // namespace vpmm::cli
