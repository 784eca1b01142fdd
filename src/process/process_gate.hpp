// SPDX-License-Identifier: Apache-2.0
// process: a gate for all calls, closed at exit and in a forked child.
//
// Note [The gate is tested before any lock]
// In a child, a lock may be held for ever by a thread that fork() did not copy, and CUDA does not
// work. At exit, CUDA unloads while other threads still run. So every public call passes the gate
// first: a store to the thread's own counter, and a load. Behind a closed gate a free succeeds
// without effect, and other calls fail with process_ending.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/race_window.hpp"
#include "base/result.hpp"

namespace vpmm::process {

// Note [Thread-local variables]
// In a shared library an access to one calls the loader, unless they lie in the block that every
// thread gets at its start (initial-exec). A library loaded later finds a few hundred bytes of room
// there, so ours are a few words in all.
namespace detail {
enum class Gate : int { open, exiting, forked_child };
extern constinit std::atomic<Gate> gate;
extern constinit std::atomic<bool> has_membarrier;
// Calls in progress on this thread; null: no call so far, or counted with other threads.
[[gnu::tls_model(
    "initial-exec")]] extern constinit thread_local std::atomic<std::int64_t>* own_entries;
}  // namespace detail

// True from the start of exit on, and in a forked child of a process that made calls. For
// destructors, which run inside an entry of their caller.
inline bool is_ending() noexcept {
  return detail::gate.load(std::memory_order_acquire) != detail::Gate::open;
}

// Counts a call in progress, so that exit can wait for it. Nests. Takes no lock, except in first
// calls, which wait until exit is to close the gate.
//
// Note [One side of the gate pays for both]
// Either an entry sees the closed gate, or the closing thread sees the entry. Usually each side has
// a full fence between its store and its load. Entries are frequent, closing is not, so closing
// lets the kernel put a fence into every running thread (membarrier, Linux 4.14), and an entry
// needs only the compiler's order.
//
// Note [Exit waits for no call that is turned away]
// An entry at a closed gate does not count, however long its caller takes for an error message, and
// however often it calls again.
class GateEntry {
 public:
  GateEntry() noexcept {
    if (is_ending()) return;
    own_ = detail::own_entries;
    if (own_ == nullptr) {
      enter_first_or_shared();
    } else {
      own_->store(own_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    if (detail::has_membarrier.load(std::memory_order_relaxed)) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    VPMM_RACE_WINDOW("an entry counts, and has not looked at the gate again");
    open_ = detail::gate.load(std::memory_order_seq_cst) == detail::Gate::open;
    if (!open_) leave();  // closed meanwhile
  }
  ~GateEntry() {
    if (open_) leave();
  }
  GateEntry(const GateEntry&) = delete;
  GateEntry& operator=(const GateEntry&) = delete;

  bool open() const { return open_; }

 private:
  void enter_first_or_shared() noexcept;
  static void leave_shared() noexcept;
  void leave() noexcept {
    if (own_ == nullptr)
      leave_shared();
    else
      own_->store(own_->load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }

  std::atomic<std::int64_t>* own_ = nullptr;  // null: counted with other threads
  bool open_ = false;
};

// process_ending, with its reason.
Error ending_error();

// Makes exit run `handler` before those registered so far. All handlers of the library are
// registered under one lock:
//
// Note [No fork falls into a registration]
// glibc keeps its list of exit handlers under a lock unknown to fork(): a fork during another
// thread's registration leaves the lock taken in the child, and the child's exit() never returns.
// So fork() waits for registrations, and their number does not depend on how often pools are opened
// or reset.
void run_at_exit(void (*handler)()) noexcept;

// Makes exit close the gate before the handlers registered so far, wait for calls in progress on
// other threads, at most two seconds in all, and finish open recordings. The first GateEntry has
// done so; it is called again after CUDA registered its own handlers, which must find the gate
// closed.
void close_gate_at_exit() noexcept;

}  // namespace vpmm::process
