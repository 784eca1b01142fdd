// SPDX-License-Identifier: Apache-2.0
// replay: runs one trace through one allocator on one machine and measures it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "driver/timing.hpp"
#include "observe/trace_file.hpp"
#include "replay/machine.hpp"
#include "replay/trace_allocator.hpp"

namespace vpmm::replay {

enum class OnRefusal {
  go_on,  // counts it and leaves out its free
  stop,   // measures and checks the events so far
};

struct ReplayOptions {
  std::uint64_t seed = 1;  // of written bytes and their places
  OnRefusal on_refusal = OnRefusal::go_on;
  std::optional<Bytes> page_size;  // for peak_rounded_bytes; nullopt: the device's granularity
  // Called now and then with the number of events done, at the end with all. May be empty.
  std::function<void(std::size_t done, std::size_t total)> progress;
  // Called as often; true ends the replay with an error. May be empty.
  std::function<bool()> should_stop;
};

// Smallest GPU found on which a trace runs without a refused allocation.
struct SmallestGpu {
  Bytes capacity = 0;
  std::size_t replays = 0;
};

struct FirstFailure {
  std::size_t event = 0;  // of the trace, from 0
  Bytes bytes = 0;
};

// Result of a replay. Driver calls and times are those of memory calls (driver/calls.def) between
// the trace's first and last event; on a simulator all times but `seconds` are virtual and the same
// in every run.
struct ReplayResult {
  std::string trace;
  std::string driver;
  std::string allocator;
  std::uint64_t operations = 0;
  std::uint64_t allocations = 0;
  std::uint64_t failed_allocations = 0;  // refused ones: no memory, or a size beyond any GPU
  std::uint64_t recorded_failures = 0;   // allocations that had failed when the trace was recorded
  std::optional<FirstFailure> first_failure;
  Bytes peak_live_bytes = 0;     // as requested
  Bytes peak_rounded_bytes = 0;  // the same, each request page_rounded()
  Bytes page_size = 0;           // used for rounding
  Bytes peak_mapped_bytes = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t driver_ns = 0;
  std::uint64_t driver_first_half_ns = 0;  // of driver_ns, within the first half of the events
  std::uint64_t worst_allocate_ns = 0;     // memory calls within one allocate
  std::uint64_t p99_allocate_ns = 0;
  std::uint64_t corruptions = 0;         // spots that changed while their allocation lived
  std::optional<std::uint64_t> hazards;  // nullopt: the machine does not check
  std::uint64_t mapped_chunks_peak = 0;
  std::uint64_t plans = 0;  // of the pool, carried out
  double seconds = 0;
  std::vector<driver::CallTimes> calls;  // of the allocator, also other than memory calls
  std::vector<std::string> findings;     // first corruptions and hazards, and unchecked records
  std::optional<SmallestGpu> fit;        // from find_fit(); replay() leaves it empty
};

// Replays the trace. Small writes on its stream use each allocation right after it is made and
// right before it is freed; contents are checked in between (use_checker.hpp). An allocation that
// had failed in the program is freed at once. Memory live at the end is checked and freed, too.
// Error: the replay could not go on; a refused allocation is none.
Result<ReplayResult> replay(const observe::Trace& trace, TraceMachine& machine,
                            const AllocatorRecipe& recipe, const ReplayOptions& options);

}  // namespace vpmm::replay
