// context: no CUDA call after the process began to exit, none in a forked child.
//
// Note [The gate is tested before any lock]
// In a child, a lock may be held for ever by a thread that fork() did not copy, and CUDA does not work at all. At exit,
// CUDA unloads while other threads still run. So every public call passes the gate first: a store to the thread's
// own counter, and a load. What a closed gate means is the caller's: a free does nothing and succeeds, everything else
// fails with process_ending.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"

namespace vpmm::context {

// Counts the call it brackets, so that exit can wait for calls in progress. Nests. Takes no lock.
class GateEntry {
 public:
  GateEntry() noexcept;
  ~GateEntry();
  GateEntry(const GateEntry&) = delete;
  GateEntry& operator=(const GateEntry&) = delete;

  bool open() const { return open_; }

 private:
  std::atomic<std::int64_t>* entries_;  // where this one counts
  bool open_;
};

// True from the start of exit on, and in a forked child. For destructors, which run inside somebody else's entry.
bool process_is_ending() noexcept;
// process_ending, and why.
Error process_ending_error();

// Makes exit close the gate before it runs any exit handler registered so far, and wait for calls in progress on other
// threads, two seconds at most; open recordings are finished then. The first GateEntry does it; call it again after
// something registered handlers that must find the gate closed (opening CUDA, retaining its context).
void close_gate_at_exit() noexcept;

}  // namespace vpmm::context
