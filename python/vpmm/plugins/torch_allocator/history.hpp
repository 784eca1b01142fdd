// torch_allocator: the most recent events, and who is told of them.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

inline thread_local std::vector<std::string> compile_contexts;
inline thread_local std::string user_metadata;  // for the thread's next events

// The most recent events, and who is told of them: the profiler, NCCL. One object for all devices.
class History {
 public:
  // Whether anybody wants events.
  bool is_listening() const { return is_listening_.load(std::memory_order_relaxed); }
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // The caller's stack, if stacks of this level are recorded. Takes the GIL, so no lock may be
  // held.
  Context stack(RecordContext level) const {
    if (level_.load(std::memory_order_relaxed) < level) return nullptr;
    const cca::CreateContextFn gather = gather_.load(std::memory_order_relaxed);
    return gather == nullptr ? nullptr : gather();
  }

  void start(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
             bool clears, const std::vector<std::string>& skipped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(level == RecordContext::NEVER || gather != nullptr,
                "stacks are asked for without a way to take them");
    std::vector<Action> actions;
    for (const std::string& name : skipped)
      actions.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
    skipped_ = std::move(actions);
    is_recording_ = is_on;
    gather_ = is_on ? gather : nullptr;
    level_ = is_on ? level : RecordContext::NEVER;
    most_ = std::max<std::size_t>(most, 1);
    if (!is_on || clears) rings_.clear(), annotations_.clear();
    for (std::deque<TraceEntry>& ring : rings_)
      while (ring.size() > most_) ring.pop_front();
    is_listening_ = is_on || !trackers_.empty();
  }

  void track(cca::AllocatorTraceTracker tracker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    is_listening_ = true;
  }

  // Tells trackers, and writes into the ring.
  void record(Action action, DeviceIndex device, const void* at, std::size_t bytes,
              cudaStream_t stream, MempoolId_t pool, Context context = nullptr,
              const std::optional<std::string>& text = std::nullopt) {
    if (!is_listening()) return;
    TraceEntry entry = make(action, device, at, bytes, stream, pool, std::move(context));
    const std::lock_guard<std::mutex> lock(mutex_);
    entry.user_metadata_ = text.value_or(user_metadata);
    for (const cca::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
    keep(std::move(entry));
  }
  // Tells trackers only: the ring already has the memory that this lies in.
  void tell(Action action, DeviceIndex device, const void* at, std::size_t bytes, MempoolId_t pool,
            Context context) {
    if (!is_listening()) return;
    const TraceEntry entry = make(action, device, at, bytes, nullptr, pool, std::move(context));
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const cca::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  }
  // Writes into the ring only: trackers were told already.
  void note(Action action, DeviceIndex device, const void* at, std::size_t bytes, MempoolId_t pool,
            Context context) {
    if (!is_listening()) return;
    TraceEntry entry = make(action, device, at, bytes, nullptr, pool, std::move(context));
    const std::lock_guard<std::mutex> lock(mutex_);
    keep(std::move(entry));
  }

  void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& pairs) {
    if (!is_recording()) return;
    c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto& [name, value] : pairs) entry.recordUserMetadata(name, value);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (annotations_.size() == most_) annotations_.pop_front();
    annotations_.push_back(std::move(entry));
  }

  // Oldest first, times in microseconds since 1970.
  void copy_to(cca::SnapshotInfo& snapshot) {
    const auto to_unix_ns = clock_.makeConverter();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t device = 0; device < std::min(rings_.size(), snapshot.device_traces.size());
         ++device) {
      for (const TraceEntry& entry : rings_[device]) {
        TraceEntry& copy = snapshot.device_traces[device].emplace_back(entry);
        copy.time_.t_ = to_unix_ns(copy.time_.approx_t_) / 1000;
      }
    }
    for (const auto& entry : annotations_) {
      auto& copy = snapshot.external_annotations.emplace_back(entry);
      copy.time_.t_ = to_unix_ns(copy.time_.approx_t_) / 1000;
    }
  }

 private:
  TraceEntry make(Action action, DeviceIndex device, const void* at, std::size_t bytes,
                  cudaStream_t stream, MempoolId_t pool, Context context) const {
    if (level_.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr;
    return {action,
            device,
            reinterpret_cast<std::size_t>(at),
            bytes,
            stream,
            pool,
            c10::getApproximateTime(),
            std::move(context),
            compile_contexts.empty() ? std::string() : compile_contexts.back()};
  }
  void keep(TraceEntry entry) {
    if (!is_recording() ||
        std::find(skipped_.begin(), skipped_.end(), entry.action_) != skipped_.end())
      return;
    const auto index = static_cast<std::size_t>(entry.device_);
    if (rings_.size() <= index) rings_.resize(index + 1);
    if (rings_[index].size() == most_) rings_[index].pop_front();
    rings_[index].push_back(std::move(entry));
  }

  std::mutex mutex_;
  std::atomic<bool> is_listening_{false};
  std::atomic<bool> is_recording_{false};
  std::atomic<cca::CreateContextFn> gather_{nullptr};
  std::atomic<RecordContext> level_{RecordContext::NEVER};
  std::size_t most_ = 1;
  c10::ApproximateClockToUnixTimeConverter clock_;  // more exact the longer ago it was made
  std::vector<std::deque<TraceEntry>> rings_;       // by device
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  std::vector<Action> skipped_;
  std::vector<cca::AllocatorTraceTracker> trackers_;
};

}  // namespace vpmm::torch_plugin
