// SPDX-License-Identifier: Apache-2.0
// replay: the loop over a trace's events.
#include "replay/replay.hpp"

#include <algorithm>
#include <chrono>

#include "driver/driver_error.hpp"
#include "driver/recording.hpp"
#include "driver/timing.hpp"
#include "observe/log.hpp"
#include "replay/live_memory.hpp"
#include "replay/session.hpp"
#include "replay/use_checker.hpp"

namespace vpmm::replay {
namespace {

using observe::TraceEvent;

constexpr std::size_t kEventsPerProgress = 256;

struct LiveReplay {
  DevicePtr ptr{};
  Bytes bytes = 0;
  std::size_t stream = 0;
};

std::uint64_t p99(std::vector<std::uint64_t> values) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::ptrdiff_t>((values.size() * 99 + 99) / 100 - 1);
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<std::size_t>(rank)];
}

class Replay {
 public:
  Replay(const observe::Trace& trace, TraceMachine& machine, Session& session,
         driver::TimingDriver& timing, driver::RecordingDriver& recorder, TraceAllocator& allocator,
         UseChecker& checker, Bytes page_size)
      : trace_(trace),
        machine_(machine),
        session_(session),
        timing_(timing),
        recorder_(recorder),
        allocator_(allocator),
        checker_(checker),
        live_(trace.allocations),
        live_memory_(page_size) {}

  Result<void> run(const ReplayOptions& options) {
    start_calls_ = recorder_.memory_call_count();
    start_ns_ = recorder_.memory_call_ns();
    timing_.clear();
    machine_.start();
    const bool stops = options.on_refusal == OnRefusal::stop;
    for (std::size_t i = 0; i < trace_.events.size() && !(stops && result_.failed_allocations != 0);
         ++i) {
      if (i % kEventsPerProgress == 0) VPMM_TRY(report_progress(options, i));
      if (i == trace_.events.size() / 2) result_.driver_first_half_ns = driver_ns();
      const TraceEvent& event = trace_.events[i];
      machine_.wait_until(event.time_us * 1000, driver_ns());
      VPMM_TRY(event.kind == TraceEvent::TraceKind::allocate ? allocate(i) : deallocate(event));
    }
    if (options.progress) options.progress(trace_.events.size(), trace_.events.size());
    VPMM_TRY(measure());
    return end_what_lives();
  }

  ReplayResult take_result() { return std::move(result_); }

 private:
  std::uint64_t driver_ns() const {
    return recorder_.memory_call_ns() - start_ns_;
  }  // since the start

  Result<void> report_progress(const ReplayOptions& options, std::size_t done) const {
    if (options.progress) options.progress(done, trace_.events.size());
    if (options.should_stop && options.should_stop())
      return Error{ErrorCode::process_ending, "interrupted"};
    return {};
  }

  Result<void> allocate(std::size_t index) {
    const TraceEvent& event = trace_.events[index];
    ++result_.allocations;
    recorder_.take_thread_memory_ns();
    auto ptr = allocator_.allocate(event.bytes, session_.stream(event.stream));
    allocate_ns_.push_back(recorder_.take_thread_memory_ns());
    if (!ptr) return refused(index, std::move(ptr.error()));
    live_[event.allocation] = LiveReplay{ptr.value(), event.bytes, event.stream};
    live_memory_.allocate(event.bytes);
    VPMM_TRY(checker_.first_use({event.allocation, {ptr.value(), event.bytes}, event.stream}));
    return event.failed ? end(event.allocation, event.stream) : Result<void>();
  }

  Result<void> refused(std::size_t index, Error error) {
    if (error.code != ErrorCode::out_of_memory && error.code != ErrorCode::invalid_argument)
      return error;
    if (!result_.first_failure)
      result_.first_failure = FirstFailure{index, trace_.events[index].bytes};
    ++result_.failed_allocations;
    if (error.message.starts_with(
            "out of device memory"))  // a pool's report; its first line suffices
      observe::log(observe::LogLevel::warning, "{}",
                   error.message.substr(0, error.message.find('\n')));
    return {};
  }

  Result<void> deallocate(const TraceEvent& event) {
    if (!live_[event.allocation]) return {};  // its allocation was refused
    return end(event.allocation, event.stream);
  }

  // Last use and free, both on `stream`.
  Result<void> end(std::size_t allocation, std::size_t stream) {
    const LiveReplay live = *std::exchange(live_[allocation], std::nullopt);
    live_memory_.deallocate(live.bytes);
    // A program that frees on another stream has ordered its streams first.
    if (stream != live.stream) VPMM_TRY(session_.order({.before = live.stream, .after = stream}));
    VPMM_TRY(checker_.last_use({allocation, {live.ptr, live.bytes}, stream}));
    return allocator_.deallocate(live.ptr, session_.stream(stream));
  }

  Result<void> measure() {
    VPMM_TRY_ASSIGN(const TraceFootprint footprint, allocator_.footprint());
    result_.operations = trace_.events.size();
    result_.recorded_failures = trace_.failed;
    result_.peak_live_bytes = live_memory_.peak();
    result_.peak_rounded_bytes = live_memory_.rounded_peak();
    result_.page_size = live_memory_.page_size();
    result_.peak_mapped_bytes = footprint.peak_mapped_bytes;
    result_.mapped_chunks_peak = footprint.peak_mapped_chunks;
    result_.plans = footprint.plans;
    result_.driver_calls = recorder_.memory_call_count() - start_calls_;
    result_.driver_ns = driver_ns();
    result_.calls = timing_.times();
    if (!allocate_ns_.empty())
      result_.worst_allocate_ns = *std::max_element(allocate_ns_.begin(), allocate_ns_.end());
    result_.p99_allocate_ns = p99(std::move(allocate_ns_));
    return {};
  }

  Result<void> end_what_lives() {
    for (std::size_t allocation = 0; allocation < live_.size(); ++allocation) {
      if (live_[allocation]) VPMM_TRY(end(allocation, live_[allocation]->stream));
    }
    VPMM_TRY(checker_.finish());
    result_.corruptions = checker_.corruptions();
    result_.findings = checker_.findings();
    return {};
  }

  const observe::Trace& trace_;
  TraceMachine& machine_;
  Session& session_;
  driver::TimingDriver& timing_;
  driver::RecordingDriver& recorder_;
  TraceAllocator& allocator_;
  UseChecker& checker_;
  std::vector<std::optional<LiveReplay>> live_;  // by allocation
  LiveMemory live_memory_;                       // = live_
  std::vector<std::uint64_t> allocate_ns_;
  std::uint64_t start_calls_ = 0;
  std::uint64_t start_ns_ = 0;
  ReplayResult result_;
};

// A device that cannot map has no granularity; others' is taken.
Bytes granularity(driver::Driver& driver) {
  Bytes bytes = 0;
  const auto answer =
      driver.mem_get_allocation_granularity({}, driver::Granularity::minimum, bytes);
  return answer == driver::CuResult::success ? bytes : 2 * kMiB;
}

Result<ReplayResult> run_in(Session& session, const observe::Trace& trace, TraceMachine& machine,
                            const AllocatorRecipe& recipe, const ReplayOptions& options) {
  const auto timing = std::make_unique<driver::TimingDriver>(machine.driver());
  driver::RecordingDriver recorder(*timing);
  VPMM_TRY_ASSIGN(const auto allocator, recipe.make(recorder));
  UseChecker::PassCopies pass_copies;
  if (!machine.has_contents())
    pass_copies = [&machine](std::size_t calls) { machine.pass_copies(calls); };
  VPMM_TRY_ASSIGN(const auto checker, UseChecker::create(machine.driver(), session.streams(),
                                                         options.seed, std::move(pass_copies)));
  const Bytes page_size = options.page_size ? *options.page_size : granularity(machine.driver());
  Replay replay(trace, machine, session, *timing, recorder, *allocator, *checker, page_size);
  VPMM_TRY(replay.run(options));
  return replay.take_result();
}

}  // namespace

Result<ReplayResult> replay(const observe::Trace& trace, TraceMachine& machine,
                            const AllocatorRecipe& recipe, const ReplayOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  VPMM_TRY_ASSIGN(const auto session, Session::open(machine.driver(), trace.streams));
  VPMM_TRY_ASSIGN(ReplayResult result, run_in(*session, trace, machine, recipe, options));
  result.trace = trace.name;
  result.allocator = recipe.name;
  result.driver = machine.driver().name();
  // After the allocator's end, which must be free of hazards, too.
  result.hazards = machine.hazard_count();
  for (std::string& finding : machine.findings()) result.findings.push_back(std::move(finding));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace vpmm::replay
