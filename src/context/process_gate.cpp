// context: how exit and fork close the gate.
#include "context/process_gate.hpp"

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

#include "context/recordings.hpp"

namespace vpmm::context {
namespace {

enum class Gate : int { open, exiting, forked_child };

// A counter is one thread's as long as it lives, so that entering is a plain store; threads beyond the number of
// counters share the last.
struct alignas(64) Counter {
  std::atomic<std::int64_t> entries{0};
  std::atomic<bool> is_owned{false};
};
constexpr std::size_t kCounters = 256;
constexpr std::chrono::seconds kLongestWait{2};

// Everything here is initialised at compile time and has no destructor: usable before main and after exit.
constinit std::atomic<Gate> gate{Gate::open};
constinit std::atomic<bool> handlers_registered{false};
constinit std::atomic<bool> has_membarrier{false};
constinit std::array<Counter, kCounters> counters{};

constinit thread_local Counter* this_thread_counter = nullptr;
constinit thread_local std::int64_t shared_entries = 0;  // of this thread, among those of the shared counter

Counter& shared_counter() noexcept { return counters.back(); }

// Runs when a thread ends that owns a counter. What it still enters after that counts with the shared ones.
struct CounterReturn {
  ~CounterReturn() {
    Counter& counter = *this_thread_counter;
    if (counter.entries.load(std::memory_order_relaxed) != 0) return;  // it ends inside a call and keeps it for ever
    this_thread_counter = &shared_counter();
    counter.is_owned.store(false, std::memory_order_release);
  }
};

void claim_counter() noexcept {
  this_thread_counter = &shared_counter();
  for (std::size_t i = 0; i + 1 < kCounters; ++i) {
    if (counters[i].is_owned.load(std::memory_order_relaxed) || counters[i].is_owned.exchange(true)) continue;
    this_thread_counter = &counters[i];
    thread_local const CounterReturn at_thread_end;
    static_cast<void>(at_thread_end);
    return;
  }
}

std::int64_t entries_of_this_thread() noexcept {
  const bool has_own = this_thread_counter != nullptr && this_thread_counter != &shared_counter();
  return shared_entries + (has_own ? this_thread_counter->entries.load(std::memory_order_relaxed) : 0);
}

std::int64_t entries_of_other_threads() noexcept {
  std::int64_t entries = -entries_of_this_thread();
  for (const Counter& counter : counters) entries += counter.entries.load(std::memory_order_seq_cst);
  return entries;
}

// Note [One side of the gate pays for both]
// Either an entry sees the closed gate, or whoever closed it sees the entry. Usually each side has a full fence between
// its store and its load. Entering is frequent and closing is not, so closing has the kernel put a fence into every
// running thread (membarrier, Linux 4.14), and entering needs only that the compiler keeps the order.
void fence_of_entry() noexcept {
  if (has_membarrier.load(std::memory_order_relaxed)) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}
void fence_of_closing() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (has_membarrier.load()) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
}

// Runs on the thread that called exit(), possibly inside one of our own calls (a callback that exits).
void close_for_exit() noexcept {
  Gate expected = Gate::open;
  gate.compare_exchange_strong(expected, Gate::exiting, std::memory_order_seq_cst);
  // A child has no other threads, and its counters still hold the parent's.
  if (expected == Gate::forked_child) return;
  fence_of_closing();
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (entries_of_other_threads() > 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  finish_recordings();
}

// Nothing but one store is safe here: other threads' locks may be held for ever.
void close_in_child() noexcept { gate.store(Gate::forked_child, std::memory_order_relaxed); }

// Lock-free, so that a fork in the middle of it leaves nothing behind. Two threads may both register: the handlers
// may run any number of times.
void register_handlers() noexcept {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) == 0) has_membarrier.store(true);
  pthread_atfork(nullptr, nullptr, close_in_child);
  close_gate_at_exit();
  handlers_registered.store(true, std::memory_order_release);
}

}  // namespace

GateEntry::GateEntry() noexcept {
  if (this_thread_counter == nullptr) {
    if (!handlers_registered.load(std::memory_order_acquire)) register_handlers();
    claim_counter();
  }
  Counter& counter = *this_thread_counter;
  entries_ = &counter.entries;
  if (&counter == &shared_counter()) {
    ++shared_entries;
    entries_->fetch_add(1, std::memory_order_seq_cst);
  } else {
    entries_->store(entries_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    fence_of_entry();
  }
  open_ = gate.load(std::memory_order_seq_cst) == Gate::open;
}

GateEntry::~GateEntry() {
  if (entries_ == &shared_counter().entries) {
    --shared_entries;
    entries_->fetch_sub(1, std::memory_order_release);
  } else {
    entries_->store(entries_->load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }
}

bool process_is_ending() noexcept { return gate.load(std::memory_order_acquire) != Gate::open; }

Error process_ending_error() {
  const bool child = gate.load(std::memory_order_acquire) == Gate::forked_child;
  return {ErrorCode::process_ending,
          child ? "this is a forked child: CUDA works only in the process that started it; use the spawn start method"
                : "the process is exiting: no more CUDA calls are made"};
}

void close_gate_at_exit() noexcept {
  std::atexit([] { close_for_exit(); });
}

}  // namespace vpmm::context
