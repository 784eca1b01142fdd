// SPDX-License-Identifier: Apache-2.0
// process: closing of the gate by exit and fork.
#include "process/process_gate.hpp"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "base/race_window.hpp"
#include "process/neighbours.hpp"
#include "process/recordings.hpp"

namespace vpmm::process {

// All variables here are initialised at compile time, without a destructor: usable before main and
// after exit.
constinit std::atomic<detail::Gate> detail::gate{Gate::open};
constinit std::atomic<bool> detail::has_membarrier{false};
constinit thread_local std::atomic<std::int64_t>* detail::own_entries = nullptr;

namespace {

using detail::Gate;
using detail::gate;
using detail::has_membarrier;
using detail::own_entries;

// A thread owns its counter for life, so that an entry is a plain store; threads beyond the number
// of counters share the last.
struct alignas(kCacheLine) Counter {
  std::atomic<std::int64_t> entries{0};
  std::atomic<bool> is_owned{false};
};
constexpr std::size_t kCounters = 256;
constexpr std::chrono::seconds kLongestWait{2};
constexpr std::chrono::microseconds kBetweenLooks{50};

constinit std::atomic<bool> was_entered{false};  // by any call of the process
constinit Mutex registering;                     // Note [No fork falls into a registration]
constinit std::array<Counter, kCounters> counters{};

constinit thread_local Counter* own_counter = nullptr;  // of own_entries
constinit thread_local bool may_claim = true;
constinit thread_local std::int64_t shared_entries = 0;  // of this thread, in the shared counter

Counter& shared_counter() noexcept { return counters.back(); }

// Runs at the end of a thread with an own counter. Its later entries use the shared counter.
struct CounterReturn {
  ~CounterReturn() {
    if (own_entries->load(std::memory_order_relaxed) != 0)
      return;  // ends inside a call: keeps the counter for ever
    own_entries = nullptr;
    own_counter->is_owned.store(false, std::memory_order_release);
  }
};

// Acts once in a thread's life.
void claim_counter() noexcept {
  if (!may_claim) return;
  may_claim = false;
  for (std::size_t i = 0; i + 1 < kCounters; ++i) {
    if (counters[i].is_owned.load(std::memory_order_relaxed) || counters[i].is_owned.exchange(true))
      continue;
    own_counter = &counters[i];
    own_entries = &own_counter->entries;
    thread_local const CounterReturn at_thread_end;
    static_cast<void>(at_thread_end);
    return;
  }
}

std::int64_t entries_of_this_thread() noexcept {
  return shared_entries +
         (own_entries == nullptr ? 0 : own_entries->load(std::memory_order_relaxed));
}

std::int64_t entries_of_other_threads() noexcept {
  std::int64_t entries = -entries_of_this_thread();
  for (const Counter& counter : counters)
    entries += counter.entries.load(std::memory_order_seq_cst);
  return entries;
}

// Fails where the kernel has no such call: then entries have fences of their own.
void put_fence_into_other_threads() noexcept {
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
}

// Runs on the thread that called exit(), possibly inside a call (a callback that exits).
void close_for_exit() noexcept {
  Gate expected = Gate::open;
  // Only the closing call waits. A child has no other threads, and its counters are the parent's.
  if (!gate.compare_exchange_strong(expected, Gate::exiting, std::memory_order_seq_cst)) return;
  put_fence_into_other_threads();
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (entries_of_other_threads() > 0 && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(kBetweenLooks);
  finish_recordings();
  summarize_all();
}

// A child of a process without calls may make calls.
void close_in_child() noexcept {
  if (was_entered.load(std::memory_order_relaxed))
    gate.store(Gate::forked_child, std::memory_order_relaxed);
}

// fork() takes the lock in the parent, and releases it on both sides. No other lock is taken under
// it.
void before_fork() noexcept VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { registering.lock(); }
void after_fork() noexcept VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  registering.unlock();
}
void after_fork_in_child() noexcept {
  after_fork();
  close_in_child();
}

// Registered when the library is loaded, before any fork.
[[maybe_unused]] const int kForkHandlers =
    pthread_atfork(before_fork, after_fork, after_fork_in_child);

// Runs at the first call of the process, before its work. First calls of other threads wait, or one
// of them could return, and its thread exit, while nothing closes the gate yet.
void register_once() noexcept {
  {
    const MutexLock lock(registering);
    if (was_entered.load(std::memory_order_relaxed)) return;
    VPMM_RACE_WINDOW("exit is to close the gate");
    std::atexit(close_for_exit);
    was_entered.store(true);
  }
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) == 0)
    has_membarrier.store(true);
}

}  // namespace

void GateEntry::enter_first_or_shared() noexcept {
  if (!was_entered.load(std::memory_order_relaxed)) register_once();
  claim_counter();
  own_ = own_entries;
  if (own_ != nullptr) {
    own_->store(own_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  } else {
    ++shared_entries;
    shared_counter().entries.fetch_add(1, std::memory_order_seq_cst);
  }
}

void GateEntry::leave_shared() noexcept {
  --shared_entries;
  shared_counter().entries.fetch_sub(1, std::memory_order_release);
}

Error ending_error() {
  const bool child = gate.load(std::memory_order_acquire) == Gate::forked_child;
  return {ErrorCode::process_ending, child ? "this is a forked child: CUDA works only in the "
                                             "process that started it; use the spawn start method"
                                           : "the process is exiting: no more CUDA calls are made"};
}

void run_at_exit(void (*handler)()) noexcept {
  const MutexLock lock(registering);
  std::atexit(handler);
}

void close_gate_at_exit() noexcept {
  run_at_exit([] { close_for_exit(); });
}

}  // namespace vpmm::process
