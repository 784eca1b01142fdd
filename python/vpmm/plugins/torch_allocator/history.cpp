// SPDX-License-Identifier: Apache-2.0
// torch_allocator: writes events into a ring for each device, and tells trackers of them.
#include "history.hpp"

#include <algorithm>

namespace vpmm::torch_plugin {

Context History::stack(RecordContext level) const {
  if (level_.load(std::memory_order_acquire) < level) return nullptr;
  return gather_.load(std::memory_order_relaxed)();
}

void History::start(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
                    bool clears, const std::vector<std::string>& skipped) {
  const MutexLock lock(mutex_);
  TORCH_CHECK(level == RecordContext::NEVER || gather != nullptr,
              "stacks are asked for without a way to take them");
  std::vector<Action> actions;
  for (const std::string& name : skipped)
    actions.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
  skipped_ = std::move(actions);
  is_recording_ = is_on;
  if (gather != nullptr) gather_ = gather;  // a thread that saw the last level may still call it
  level_ = is_on ? level : RecordContext::NEVER;
  most_ = std::max<std::size_t>(most, 1);
  if (!is_on || clears) {
    rings_.clear();
    annotations_.clear();
  }
  for (std::deque<TraceEntry>& ring : rings_)
    while (ring.size() > most_) ring.pop_front();
  is_listening_ = is_on || !trackers_.empty();
}

void History::track(cca::AllocatorTraceTracker tracker) {
  const MutexLock lock(mutex_);
  trackers_.push_back(std::move(tracker));
  is_listening_ = true;
}

void History::observe_shortages(cca::OutOfMemoryObserver observer) {
  const MutexLock lock(mutex_);
  observers_.push_back(std::move(observer));
}

void History::observe_rejections(RejectionObserver observer) {
  const MutexLock lock(mutex_);
  rejection_observers_.push_back(std::move(observer));
}

void History::record(const Event& event, Audience audience,
                     const std::optional<std::string>& text) {
  if (!is_listening()) return;
  const bool has_stack = level_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
  TraceEntry entry(event.action, event.device, address(event.at), event.bytes, event.stream,
                   event.pool, c10::getApproximateTime(), has_stack ? event.stack : nullptr,
                   compile_contexts.empty() ? std::string() : compile_contexts.back());
  entry.user_metadata_ = text.value_or(user_metadata);
  const MutexLock lock(mutex_);
  if (audience != Audience::RING)
    for (const cca::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  if (audience != Audience::TRACKERS) keep(std::move(entry));
}

void History::keep(TraceEntry entry) {
  if (!is_recording() ||
      std::find(skipped_.begin(), skipped_.end(), entry.action_) != skipped_.end())
    return;
  const auto index = static_cast<std::size_t>(entry.device_);
  if (rings_.size() <= index) rings_.resize(index + 1);
  if (rings_[index].size() == most_) rings_[index].pop_front();
  rings_[index].push_back(std::move(entry));
}

void History::tell_of_shortage(DeviceIndex device, std::size_t bytes, std::size_t allowed,
                               std::size_t free) {
  std::vector<cca::OutOfMemoryObserver> observers;
  {
    const MutexLock lock(mutex_);
    observers = observers_;
  }
  for (const cca::OutOfMemoryObserver& observer : observers) observer(device, bytes, allowed, free);
}

void History::tell_of_rejection(DeviceIndex device, std::size_t bytes, std::size_t allocated,
                                std::size_t total) {
  std::vector<RejectionObserver> observers;
  {
    const MutexLock lock(mutex_);
    observers = rejection_observers_;
  }
  for (const RejectionObserver& observer : observers) observer(device, bytes, allocated, total);
}

void History::annotate(DeviceIndex device,
                       const std::vector<std::pair<std::string, std::string>>& pairs) {
  c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [name, value] : pairs) entry.recordUserMetadata(name, value);
  const MutexLock lock(mutex_);
  if (annotations_.size() == most_) annotations_.pop_front();
  annotations_.push_back(std::move(entry));
}

void History::copy_to(cca::SnapshotInfo& snapshot) {
  const auto to_unix_ns = clock_.makeConverter();
  const auto copy = [&](const auto& from, auto& to) {
    for (const auto& entry : from) {
      auto& time = to.emplace_back(entry).time_;
      time.t_ = to_unix_ns(time.approx_t_) / 1000;
    }
  };
  const MutexLock lock(mutex_);
  const std::size_t devices = std::min(rings_.size(), snapshot.device_traces.size());
  for (std::size_t i = 0; i < devices; ++i) copy(rings_[i], snapshot.device_traces[i]);
  copy(annotations_, snapshot.external_annotations);
}

Call::Call(const History& history, RecordContext level) {
  if (C10_LIKELY(!history.is_listening())) return;
  stack_ = history.stack(level);
  outer_ = std::exchange(current_, this);
  is_on_ = true;
}

Call::~Call() {
  if (C10_UNLIKELY(is_on_)) current_ = outer_;
}

void Call::rethrow() const {
  if (C10_UNLIKELY(thrown_ != nullptr)) std::rethrow_exception(thrown_);
}

void Call::note_exception() noexcept {
  if (current_ == nullptr) return warn_of(std::current_exception());
  if (current_->thrown_ == nullptr) current_->thrown_ = std::current_exception();
}

void Call::warn_of(const std::exception_ptr& thrown) noexcept {
  if (C10_LIKELY(thrown == nullptr)) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    TORCH_WARN("VPMM: a tracker of memory events failed: ", error.what());
  } catch (...) {
    TORCH_WARN("VPMM: a tracker of memory events failed");
  }
}

}  // namespace vpmm::torch_plugin
