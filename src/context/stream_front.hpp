// context: which stream calls and what it has cached, without a lock.
//
// Note [What the fast path may skip]
// It makes no event, no wait and no mapping call, so nothing that other calls guard against can go wrong on it: a reset
// by others matters before an event is touched, a capture before work is queued. What it must know is which stream
// calls. A raw handle is asked for its id, for handles are used again, after asking whether it captures, for a
// capturing stream has no id; a bound stream has been asked before.
#pragma once

#include <atomic>
#include <utility>

#include "context/device.hpp"
#include "context/process_gate.hpp"
#include "context/recorder.hpp"
#include "context/stream_table.hpp"

namespace vpmm::context {

class StreamFront {
 public:
  using Client = small::SmallPool::Client;
  StreamFront(const Device& device, const Recorder& recorder)
      : driver_(device.inner), device_(device), recorder_(recorder) {}

  // Whether calls may be served from what their streams have cached.
  bool is_open() const { return is_open_.load(std::memory_order_relaxed) && !process_is_ending(); }
  Client client_of(driver::StreamHandle stream) const;
  // Whoever has changed what decides that says so.
  void refresh() VPMM_REQUIRES(pool_lock);
  // The call took the pool's lock, so it can do what others asked this stream for.
  void attend(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);

 private:
  static bool is_default(driver::StreamHandle stream) {
    return stream == driver::kNullStream || stream == driver::kLegacyStream || stream == driver::kPerThreadStream;
  }

  driver::Driver& driver_;
  const Device& device_;
  const Recorder& recorder_;
  std::atomic<bool> is_open_{false};
  StreamTable streams_;
};

inline StreamFront::Client StreamFront::client_of(driver::StreamHandle stream) const {
  if (!is_open()) return {};
  if (is_default(stream)) {
    // These belong to the context that is current, and their ids outlive a reset.
    driver::ContextHandle current{};
    driver::ContextId id{};
    const driver::ContextHandle primary = device_.primary.handle();
    if (driver_.ctx_get_current(current) != driver::CuResult::success || current != primary) return {};
    if (!device_.primary.has_ids() || driver_.ctx_get_id(primary, id) != driver::CuResult::success ||
        id != device_.primary.id())
      return {};
  }
  driver::CaptureStatus status{};
  driver::StreamId id{};
  if (driver_.stream_is_capturing(stream, status) != driver::CuResult::success || status != driver::CaptureStatus::none)
    return {};
  if (driver_.stream_get_id(stream, id) != driver::CuResult::success) return {};
  return {streams_.find(static_cast<std::uint64_t>(id)), id, stream};
}

inline void StreamFront::refresh() {
  const bool is_open = device_.small != nullptr && device_.primary.handle() != driver::ContextHandle{} &&
                       !device_.primary.is_poisoned() && !recorder_.wants_all_calls();
  // Only a change is written: every other thread reads it at every call.
  if (is_open_.load(std::memory_order_relaxed) != is_open) is_open_.store(is_open);
}

inline void StreamFront::attend(const pool::Caller& caller) {
  if (device_.small == nullptr || caller.timeline == nullptr || caller.standing != pool::Standing::ordinary) return;
  small::StreamCache& cache = device_.small->cache_of(*caller.timeline);
  {
    const small::CacheGuard guard(cache);
    cache.wants_attention.store(false, std::memory_order_relaxed);
    ++cache.activity;
    caller.timeline->wanted = std::exchange(cache.wants_event, false) || caller.timeline->wanted;
  }
  const std::uint64_t stream = cache.stream.load(std::memory_order_relaxed);
  if (stream != 0) streams_.note(stream, cache);
  const bool is_primary = caller.timeline->context_id == device_.primary.id();
  if (is_primary && caller.stream && *caller.stream != driver::kPerThreadStream)
    cache.handle.store(static_cast<std::uint64_t>(*caller.stream), std::memory_order_relaxed);
}

}  // namespace vpmm::context
