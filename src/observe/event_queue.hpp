// SPDX-License-Identifier: Apache-2.0
// observe: events of many threads, in one order, on their way to the thread that writes the file.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/address.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "observe/recorded_event.hpp"

namespace vpmm::observe {

// An event as known to the thread that makes it: the writer gives out the file's numbers.
struct QueuedEvent {
  RecordedKind kind = RecordedKind::none;
  std::uint16_t flags = 0;
  std::uint32_t thread = 0;
  DevicePtr address{};
  Bytes bytes = 0;
  std::uint64_t value = 0;
  std::optional<std::uint64_t>
      stream;  // equal for events of one stream; nullopt: no stream was named
  std::optional<std::uint64_t> stream_handle;  // the program's handle; nullopt: unknown
  std::uint64_t time_ns = 0;                   // by the pool's clock
  std::uint64_t arena = 0;
  std::uint32_t tag = 0;
  std::uint32_t library = 0;  // of an allocation
  std::uint32_t stack = 0;
  std::unique_ptr<std::string> text = nullptr;
};

// Note [The order of claims is the order of the file]
// A place is claimed by one addition, filled, and published; the writer takes places in the order
// of claims, and waits for unpublished ones. So a claim at the right time needs no lock for the
// order: an allocation claims after the memory is its caller's, a free before any other thread can
// get the memory. Then every free stands behind its allocation, and before the address's next one.
// A free that turns out to be none leaves its place void.
//
// Note [A recording never stops what it records]
// If the file takes less than is recorded, the queue is full, and a call waits for the writer,
// once, for at most a second; while the queue stays full, events are left out and counted.
//
// Any number of threads put in, one at a time takes out. No place may outlive the queue.
class EventQueue {
 public:
  // Places of 128 bytes: 8 MiB. With fewer, calls wait for shorter pauses of a disk; more is memory
  // that a program under test misses.
  static constexpr std::size_t kPlaces = std::size_t{1} << 16;
  static constexpr std::size_t kEventsPerFlush = 1024;

  class Claim;

  EventQueue();  // closed
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() = default;

  void open() noexcept;
  // Admits no more events, except for places claimed already.
  void close() noexcept;
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  bool would_wait() const noexcept {
    return is_open() && !has_room() && !is_behind_.load(std::memory_order_relaxed);
  }
  // Returns no place if the queue is closed, and a lost one if it stays full.
  Claim claim() noexcept;
  void put(QueuedEvent event) noexcept;
  // Events without room since open().
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  // Claims so far, and those taken by the writer.
  std::uint64_t claimed() const { return claimed_.load(std::memory_order_acquire); }
  std::uint64_t taken() const { return taken_.load(std::memory_order_acquire); }
  // Wakes the writer.
  void let_on() noexcept;

  // --- the writer ---
  // Waits until a flush is worthwhile, `patience` is over, or the queue is closed.
  void wait(std::chrono::milliseconds patience);
  // Calls `use(QueuedEvent&)` for published events, at most kPlaces, in the order of claims.
  // Returns false if the queue is closed and empty.
  template <typename Use>
  bool take(Use&& use);

 private:
  struct alignas(kCacheLine) QueueSlot {
    std::atomic<std::uint64_t> published{0};  // number of the claim + 1
    QueuedEvent event;
  };
  static_assert(sizeof(QueueSlot) == 2 * kCacheLine);
  static constexpr std::size_t kMask = kPlaces - 1;
  // Bound on threads between the check for room and the claim; any more would wait for the writer.
  static constexpr std::uint64_t kSpare = 4096;

  bool has_room() const noexcept {
    return claimed_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_acquire) <
           kPlaces - kSpare;
  }
  bool wait_for_room() noexcept;
  void publish(std::uint64_t claim, QueuedEvent&& event) noexcept;

  const std::unique_ptr<QueueSlot[]> slots_ = std::make_unique<QueueSlot[]>(kPlaces);
  alignas(kCacheLine) std::atomic<std::uint64_t> claimed_{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> taken_{0};
  alignas(kCacheLine) std::atomic<bool> is_open_{false};
  std::atomic<bool> is_behind_{false};  // a call has waited in vain since the last take
  std::atomic<std::uint64_t> lost_{0};
  Mutex mutex_;  // of sleeping threads
  std::condition_variable_any wake_;
  std::condition_variable_any room_;
  bool is_woken_ VPMM_GUARDED_BY(mutex_) = false;
};

// A claim; destroyed unpublished, it leaves its place void.
class [[nodiscard]] EventQueue::Claim {
 public:
  Claim() = default;
  Claim(Claim&& other) noexcept
      : queue_(std::exchange(other.queue_, nullptr)),
        claim_(other.claim_),
        is_lost_(other.is_lost_) {}
  Claim& operator=(Claim&&) = delete;
  ~Claim() {
    if (queue_ != nullptr && !is_lost_) queue_->publish(claim_, {});
  }
  // Publishes, or counts a lost event. No effect without a place.
  void publish(QueuedEvent event) noexcept {
    EventQueue* const queue = std::exchange(queue_, nullptr);
    if (queue == nullptr) return;
    if (is_lost_)
      queue->lost_.fetch_add(1, std::memory_order_relaxed);
    else
      queue->publish(claim_, std::move(event));
  }

 private:
  friend class EventQueue;
  Claim(EventQueue& queue, std::uint64_t claim) : queue_(&queue), claim_(claim) {}
  explicit Claim(EventQueue& full) : queue_(&full), is_lost_(true) {}

  EventQueue* queue_ = nullptr;  // null: the queue is closed
  std::uint64_t claim_ = 0;
  bool is_lost_ = false;
};

inline EventQueue::Claim EventQueue::claim() noexcept {
  if (!is_open()) return {};
  if (!has_room() && !wait_for_room()) return Claim(*this);
  return {*this, claimed_.fetch_add(1, std::memory_order_acq_rel)};
}

inline void EventQueue::put(QueuedEvent event) noexcept { claim().publish(std::move(event)); }

inline void EventQueue::publish(std::uint64_t claim, QueuedEvent&& event) noexcept {
  while (claim - taken_.load(std::memory_order_acquire) >= kPlaces) spin_pause();
  QueueSlot& slot = slots_[claim & kMask];
  slot.event = std::move(event);
  slot.published.store(claim + 1, std::memory_order_release);
  if (claim % kEventsPerFlush == kEventsPerFlush - 1) let_on();
}

template <typename Use>
bool EventQueue::take(Use&& use) {
  constexpr std::uint64_t kStep = 256;  // so that writing threads do not fetch the line for each
                                        // event
  const bool was_open = is_open();
  const std::uint64_t begin = taken_.load(std::memory_order_relaxed);
  std::uint64_t next = begin;
  while (next - begin < kPlaces) {
    QueueSlot& slot = slots_[next & kMask];
    if (slot.published.load(std::memory_order_acquire) != next + 1) break;
    if (slot.event.kind != RecordedKind::none) use(slot.event);
    slot.event.text.reset();
    ++next;
    if (next % kStep == 0) taken_.store(next, std::memory_order_release);
  }
  taken_.store(next, std::memory_order_release);
  if (next != begin) {
    is_behind_.store(false, std::memory_order_relaxed);
    const MutexLock lock(mutex_);
    room_.notify_all();
  }
  return was_open || next != claimed_.load(std::memory_order_acquire) || next != begin;
}

}  // namespace vpmm::observe
