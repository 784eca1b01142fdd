// torch_allocator: the most recent events, and the trackers and observers that are told of events.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;
using c10::CachingDeviceAllocator::TraceEntry;
using Action = TraceEntry::Action;
using Context = std::shared_ptr<GatheredContext>;

constexpr MempoolId_t kCommonPool{0, 0};

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
  // Whether events have an audience.
  bool is_listening() const { return is_listening_.load(std::memory_order_relaxed); }
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // The caller's stack, if stacks of this level are recorded; else null. Takes the GIL, so no lock
  // may be held.
  Context stack(RecordContext level) const;

  void start(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
             bool clears, const std::vector<std::string>& skipped);
  void track(cca::AllocatorTraceTracker tracker);
  void observe_shortages(cca::OutOfMemoryObserver observer);

  // Passes on the exception of a tracker. `text` replaces the thread's metadata.
  void record(const Event& event, Audience audience = Audience::ALL,
              const std::optional<std::string>& text = std::nullopt);
  void tell_of_shortage(DeviceIndex device, std::size_t bytes, std::size_t allowed,
                        std::size_t free);
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
};

}  // namespace vpmm::torch_plugin
