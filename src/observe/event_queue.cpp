// SPDX-License-Identifier: Apache-2.0
// observe: waits in the queue of events: for room, and for events.
#include "observe/event_queue.hpp"

namespace vpmm::observe {
namespace {

constexpr std::chrono::seconds kLongestWait{1};  // of a call, for the file

}  // namespace

EventQueue::EventQueue() = default;

void EventQueue::open() noexcept {
  lost_.store(0, std::memory_order_relaxed);
  is_behind_.store(false, std::memory_order_relaxed);
  is_open_.store(true, std::memory_order_release);
}

void EventQueue::close() noexcept {
  is_open_.store(false, std::memory_order_release);
  let_on();
}

bool EventQueue::wait_for_room() noexcept {
  if (is_behind_.load(std::memory_order_relaxed)) return false;
  MutexLock lock(mutex_);
  is_woken_ = true;
  wake_.notify_one();
  room_.wait_for(lock, kLongestWait,
                 [this] { return has_room() || is_behind_.load(std::memory_order_relaxed); });
  if (has_room()) return true;
  is_behind_.store(true, std::memory_order_relaxed);
  room_.notify_all();
  return false;
}

void EventQueue::let_on() noexcept {
  const MutexLock lock(mutex_);
  is_woken_ = true;
  wake_.notify_one();
}

void EventQueue::wait(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  wake_.wait_for(lock, patience, [this]() VPMM_REQUIRES(mutex_) {
    return is_woken_ || !is_open_.load(std::memory_order_relaxed);
  });
  is_woken_ = false;
}

}  // namespace vpmm::observe
