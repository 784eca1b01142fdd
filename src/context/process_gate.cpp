// context: how exit and fork close the gate.
#include "context/process_gate.hpp"

#include <pthread.h>

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

// Threads are spread over counters so that they do not share a cache line on the hot path.
struct alignas(64) Counter {
  std::atomic<std::int64_t> entries{0};
};
constexpr std::size_t kCounters = 64;
constexpr std::chrono::seconds kLongestWait{2};

// Everything here is initialised at compile time and has no destructor: usable before main and after exit.
constinit std::atomic<Gate> gate{Gate::open};
constinit std::atomic<bool> handlers_registered{false};
constinit std::atomic<std::size_t> next_counter{0};
constinit std::array<Counter, kCounters> counters{};

struct ThreadEntries {
  Counter* counter = nullptr;
  std::int64_t depth = 0;  // of this thread's own nested entries
};
constinit thread_local ThreadEntries this_thread{};

Counter& counter_of_this_thread() noexcept {
  if (this_thread.counter == nullptr) {
    this_thread.counter = &counters[next_counter.fetch_add(1, std::memory_order_relaxed) % kCounters];
  }
  return *this_thread.counter;
}

std::int64_t entries_of_other_threads() noexcept {
  std::int64_t entries = -this_thread.depth;
  for (const Counter& counter : counters) entries += counter.entries.load(std::memory_order_seq_cst);
  return entries;
}

// Runs on the thread that called exit(), possibly inside one of our own calls (a callback that exits).
void close_for_exit() noexcept {
  Gate expected = Gate::open;
  gate.compare_exchange_strong(expected, Gate::exiting, std::memory_order_seq_cst);
  // A child has no other threads, and its counters still hold the parent's.
  if (expected == Gate::forked_child) return;
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
  pthread_atfork(nullptr, nullptr, close_in_child);
  close_gate_at_exit();
  handlers_registered.store(true, std::memory_order_release);
}

}  // namespace

// Sequentially consistent on both sides: either this entry sees the closed gate, or close_for_exit sees this entry.
GateEntry::GateEntry() noexcept {
  if (!handlers_registered.load(std::memory_order_acquire)) register_handlers();
  counter_of_this_thread().entries.fetch_add(1, std::memory_order_seq_cst);
  ++this_thread.depth;
  open_ = gate.load(std::memory_order_seq_cst) == Gate::open;
}

GateEntry::~GateEntry() {
  --this_thread.depth;
  this_thread.counter->entries.fetch_sub(1, std::memory_order_release);
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
