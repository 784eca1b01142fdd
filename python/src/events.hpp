// SPDX-License-Identifier: Apache-2.0
// python: reports allocations and frees to a log, and information about pools to child processes.
// Holds: the GIL, for all functions.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>

namespace vpmm::python {

using Clock = std::chrono::steady_clock;

// Calls the log that set_log() named, if there is one, after a call: log(event, device, address,
// stream, bytes, start, end), with times of time.perf_counter(). An exception of the log is
// reported as unraisable.
class Event {
 public:
  explicit Event(const char* name)
      : name_(name), start_(is_on() ? Clock::now() : Clock::time_point{}) {}
  void end(int device, std::uintptr_t ptr, std::uintptr_t stream, std::size_t bytes) const {
    if (is_on() && start_ != Clock::time_point{}) tell(device, ptr, stream, bytes);
  }

 private:
  static bool is_on();
  void tell(int device, std::uintptr_t ptr, std::uintptr_t stream, std::size_t bytes) const;

  const char* name_;
  Clock::time_point start_;
};

// Python gives its child processes a copy of the environment that it made at the start. So the
// library's note for child processes, once pages are mapped ahead, must also be in that copy. Every
// function that opens a pool calls this.
void tell_children();

void bind_events(nanobind::module_& module);

}  // namespace vpmm::python
