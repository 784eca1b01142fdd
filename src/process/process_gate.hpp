// process: no CUDA call after the process began to exit, none in a forked child.
//
// Note [The gate is tested before any lock]
// In a child, a lock may be held for ever by a thread that fork() did not copy, and CUDA does not
// work at all. At exit, CUDA unloads while other threads still run. So every public call passes the
// gate first: a store to the thread's own counter, and a load. What a closed gate means is the
// caller's: a free does nothing and succeeds, everything else fails with process_ending.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"

namespace vpmm::process {

// Note [Thread-local variables]
// In a shared library each access to one is a call into the loader, unless they lie in the block
// that every thread gets at its start (initial-exec). A library that is loaded later finds room for
// a few hundred bytes there, so all of ours together are a few words.
namespace detail {
enum class Gate : int { open, exiting, forked_child };
extern constinit std::atomic<Gate> gate;
extern constinit std::atomic<bool> has_membarrier;
// Calls in progress on this thread; null: it has not made one yet, or counts with others.
[[gnu::tls_model(
    "initial-exec")]] extern constinit thread_local std::atomic<std::int64_t>* own_entries;
}  // namespace detail

// True from the start of exit on, and in a forked child. For destructors, which run inside somebody
// else's entry.
inline bool is_ending() noexcept {
  return detail::gate.load(std::memory_order_acquire) != detail::Gate::open;
}

// Counts the call it brackets, so that exit can wait for calls in progress. Nests. Takes no lock.
//
// Note [One side of the gate pays for both]
// Either an entry sees the closed gate, or whoever closed it sees the entry. Usually each side has
// a full fence between its store and its load. Entering is frequent and closing is not, so closing
// has the kernel put a fence into every running thread (membarrier, Linux 4.14), and entering needs
// only that the compiler keeps the order.
//
// Note [Exit waits for nobody who is turned away]
// An entry that finds the gate closed does not count, however long its caller takes to make an
// error message of that and however soon it calls again.
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
    open_ = detail::gate.load(std::memory_order_seq_cst) == detail::Gate::open;
    if (!open_) leave();  // it closed meanwhile
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

  std::atomic<std::int64_t>* own_ = nullptr;  // null: it counts with others
  bool open_ = false;
};

// process_ending, and why.
Error ending_error();

// Has exit run `handler`, before those registered so far. The only way in which the library
// registers one:
//
// Note [No fork falls into a registration]
// glibc keeps its list of exit handlers under a lock that fork() does not know of: a fork while
// another thread registers one leaves the lock taken in the child, whose exit() then never returns.
// So fork() waits for a registration, and how many there are does not depend on how often pools are
// opened or reset.
void run_at_exit(void (*handler)()) noexcept;

// Makes exit close the gate before it runs any exit handler registered so far, and wait for calls
// in progress on other threads, two seconds at most and once, however often this was called; open
// recordings are finished then. The first GateEntry does it; once more is needed after CUDA has
// registered its own handlers, which must find the gate closed.
void close_gate_at_exit() noexcept;

}  // namespace vpmm::process
