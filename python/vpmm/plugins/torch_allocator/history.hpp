// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the most recent events, and the trackers and observers that are told of events.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mutex.hpp"

namespace vpmm::torch_plugin {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;
using c10::CachingDeviceAllocator::TraceEntry;
using Action = TraceEntry::Action;
using Context = std::shared_ptr<GatheredContext>;

// PyTorch has a name for it from 2.12 on: device, bytes of the request, allocated bytes, and the
// device's total.
using RejectionObserver = std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>;

constexpr MempoolId_t kCommonPool{0, 0};

inline std::size_t address(const void* ptr) { return reinterpret_cast<std::size_t>(ptr); }

inline thread_local std::vector<std::string> compile_contexts;
inline thread_local std::string user_metadata;  // for the thread's next events

struct Event {
  Action action;
  DeviceIndex device;
  const void* at;
  std::size_t bytes;
  MempoolId_t pool = kCommonPool;
  Context stack = nullptr;
  cudaStream_t stream = nullptr;
};

enum class Audience : std::uint8_t { ALL, TRACKERS, RING };

// One object for all devices. Any thread.
class History {
 public:
  // Tells if events have an audience.
  bool is_listening() const { return is_listening_.load(std::memory_order_relaxed); }
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // The caller's stack, if stacks of this level are recorded; else null. Takes the GIL, so no lock
  // may be held.
  Context stack(RecordContext level) const;

  void start(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
             bool clears, const std::vector<std::string>& skipped);
  void track(cca::AllocatorTraceTracker tracker);
  void observe_shortages(cca::OutOfMemoryObserver observer);
  void observe_rejections(RejectionObserver observer);

  // Passes on the exception of a tracker. `text` replaces the thread's metadata.
  void record(const Event& event, Audience audience = Audience::ALL,
              const std::optional<std::string>& text = std::nullopt);
  void tell_of_shortage(DeviceIndex device, std::size_t bytes, std::size_t allowed,
                        std::size_t free);
  void tell_of_rejection(DeviceIndex device, std::size_t bytes, std::size_t allocated,
                         std::size_t total);
  void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& pairs);
  // Oldest first, times in microseconds since 1970.
  void copy_to(cca::SnapshotInfo& snapshot);

 private:
  void keep(TraceEntry entry) VPMM_REQUIRES(mutex_);

  std::atomic<bool> is_listening_{false};
  std::atomic<bool> is_recording_{false};
  std::atomic<cca::CreateContextFn> gather_{nullptr};
  std::atomic<RecordContext> level_{RecordContext::NEVER};
  c10::ApproximateClockToUnixTimeConverter clock_;  // more exact the longer ago it was made
  Mutex mutex_;
  std::size_t most_ VPMM_GUARDED_BY(mutex_) = 1;
  std::vector<std::deque<TraceEntry>> rings_ VPMM_GUARDED_BY(mutex_);  // by device
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_ VPMM_GUARDED_BY(mutex_);
  std::vector<Action> skipped_ VPMM_GUARDED_BY(mutex_);
  std::vector<cca::AllocatorTraceTracker> trackers_ VPMM_GUARDED_BY(mutex_);
  std::vector<cca::OutOfMemoryObserver> observers_ VPMM_GUARDED_BY(mutex_);
  std::vector<RejectionObserver> rejection_observers_ VPMM_GUARDED_BY(mutex_);
};

// A pool maps and unmaps memory in the middle of a call, under its lock. No stack can be captured
// there, so the call captures it before. No exception may be thrown there, so the call stores that
// of a tracker for later. Does nothing if events have no audience.
class Call {
 public:
  Call(const History& history, RecordContext level);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Null: no stack is recorded.
  const Context& stack() const { return stack_; }
  // The first exception that a tracker threw in this call; null: none.
  const std::exception_ptr& thrown() const { return thrown_; }
  void rethrow() const;

  // The stack of the call that this thread is in; null: it is in none.
  static Context current_stack() { return current_ == nullptr ? nullptr : current_->stack_; }
  // Stores the exception that is being handled in the call that this thread is in. Outside of a
  // call, as when another library uses the pool, it becomes a warning.
  static void note_exception() noexcept;
  static void warn_of(const std::exception_ptr& thrown) noexcept;

 private:
  static inline thread_local Call* current_ = nullptr;
  bool is_on_ = false;
  Call* outer_ = nullptr;
  Context stack_;
  std::exception_ptr thrown_;
};

}  // namespace vpmm::torch_plugin
