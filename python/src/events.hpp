// python: who is told of allocations and frees, and what children are told of pools. Holds: the GIL, for all of it.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>

namespace vpmm::python {

using Clock = std::chrono::steady_clock;

// Tells the log that set_log() named, if there is one, when the call is over: log(event, device, address, stream,
// bytes, start, end), with times as time.perf_counter() gives them. What it raises is reported as unraisable.
class Event {
 public:
  explicit Event(const char* name) : name_(name), start_(is_on() ? Clock::now() : Clock::time_point{}) {}
  void end(int device, std::uintptr_t ptr, std::uintptr_t stream, std::size_t bytes) const {
    if (is_on() && start_ != Clock::time_point{}) tell(device, ptr, stream, bytes);
  }

 private:
  static bool is_on();
  void tell(int device, std::uintptr_t ptr, std::uintptr_t stream, std::size_t bytes) const;

  const char* name_;
  Clock::time_point start_;
};

// Python hands its children a copy of the environment that it made at the start: what the library notes in it for them,
// once pages are mapped ahead, has to stand there, too. For whoever opens a pool.
void tell_children();

void bind_events(nanobind::module_& module);

}  // namespace vpmm::python
