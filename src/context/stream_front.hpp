// SPDX-License-Identifier: Apache-2.0
// context: the calling stream and its cache, found without a lock.
//
// Note [The fast path skips two checks]
// It makes no event, wait or mapping call, so it needs no check for a reset by others, which comes
// before an event is touched, and none for captures, before work is queued. It must know the
// calling stream: a raw handle may be reused, so the driver is asked for its id, and before that if
// it captures, as a capturing stream has no id. A bound stream is known.
#pragma once

#include <atomic>
#include <utility>

#include "context/device.hpp"
#include "context/stream_table.hpp"
#include "context/suspendable_tags.hpp"
#include "process/process_gate.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

class StreamFront {
 public:
  using Client = small::WarmCalls::FirstCache;
  StreamFront(const Device& device, const report::Recorder& recorder, const SuspendableTags& tags)
      : driver_(device.inner), device_(device), recorder_(recorder), tags_(tags) {}

  // State for one call: open for the stream's cache or not, and the log of a recording. One load
  // without a recording.
  struct Way {
    bool is_open = false;            // for frees
    bool serves = false;             // also requests
    report::CallLog* log = nullptr;  // null: no recording
    bool would_wait() const { return log != nullptr && log->would_wait(); }
  };
  Way way() const {
    const std::uintptr_t state = state_.load(std::memory_order_acquire);
    if (state == 0 || process::is_ending()) return {};
    return {(state & kOpen) != 0, (state & kServes) != 0,
            reinterpret_cast<report::CallLog*>(
                state & ~(kOpen | kServes))};  // NOLINT(performance-no-int-to-ptr)
  }
  Client client_of(const Way& way, driver::StreamHandle stream) const;
  // Call after a change of the primary context, listeners, recordings or entered tags.
  void refresh() VPMM_REQUIRES(pool_lock);
  // Takes requests for attention from the caller's cache, and notes the stream. Returns
  // before_it_was_forgotten if a forgotten stream calls again.
  enum class Seen { now, before_it_was_forgotten };
  Seen attend(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);

 private:
  static bool is_default(driver::StreamHandle stream) {
    return stream == driver::kNullStream || stream == driver::kLegacyStream ||
           stream == driver::kPerThreadStream;
  }

  driver::Driver& driver_;
  const Device& device_;
  const report::Recorder& recorder_;
  const SuspendableTags& tags_;
  static constexpr std::uintptr_t kOpen = 1;
  static constexpr std::uintptr_t kServes = 2;
  std::atomic<std::uintptr_t> state_{
      0};  // kOpen and kServes or 0, plus the address of the log, which lives as long as the pool
  StreamTable streams_;
};

inline StreamFront::Client StreamFront::client_of(const Way& way,
                                                  driver::StreamHandle stream) const {
  if (!way.is_open) return {};
  if (is_default(stream)) {
    // Default streams belong to the current context, and their ids outlive a reset.
    driver::ContextHandle current{};
    driver::ContextId id{};
    const driver::ContextHandle primary = device_.primary.handle();
    if (driver_.ctx_get_current(current) != driver::CuResult::success || current != primary)
      return {};
    if (!device_.primary.has_ids() ||
        driver_.ctx_get_id(primary, id) != driver::CuResult::success || id != device_.primary.id())
      return {};
  }
  driver::CaptureStatus status{};
  driver::StreamId id{};
  if (driver_.stream_is_capturing(stream, status) != driver::CuResult::success ||
      status != driver::CaptureStatus::none)
    return {};
  if (driver_.stream_get_id(stream, id) != driver::CuResult::success) return {};
  return {streams_.find(static_cast<std::uint64_t>(id)), id, stream};
}

inline void StreamFront::refresh() {
  const bool is_open = device_.small != nullptr &&
                       device_.primary.handle() != driver::ContextHandle{} &&
                       !device_.primary.is_poisoned() && !recorder_.wants_all_calls() &&
                       !tags_.scopes().has_any() && !device_.config.checks.fill_freed;
  const bool guards_all = device_.guard != nullptr && device_.guard->sampler().takes_all();
  const bool serves = is_open && !guards_all && !device_.config.checks.fill_new;
  const std::uintptr_t state = reinterpret_cast<std::uintptr_t>(recorder_.log()) |
                               (is_open ? kOpen : 0) | (serves ? kServes : 0);
  // Writes only a change: all threads read it at every call.
  if (state_.load(std::memory_order_relaxed) != state) state_.store(state);
}

inline StreamFront::Seen StreamFront::attend(const pool::Caller& caller) {
  if (device_.small == nullptr || caller.timeline == nullptr ||
      caller.standing != pool::Standing::ordinary)
    return Seen::now;
  small::StreamCache& cache = device_.small->caches().of(*caller.timeline);
  {
    const small::CacheGuard guard(cache);
    cache.wants_attention.store(false, std::memory_order_relaxed);
    ++cache.activity.locked_calls;
    caller.timeline->wanted = std::exchange(cache.events.is_due, false) || caller.timeline->wanted;
  }
  const std::uint64_t stream = cache.service.stream.load(std::memory_order_relaxed);
  const bool is_new = !std::exchange(caller.timeline->is_noted, true);
  const Seen seen =
      is_new && streams_.find(stream) != nullptr ? Seen::before_it_was_forgotten : Seen::now;
  if (stream != 0) streams_.note(stream, cache);
  const bool is_primary = caller.timeline->context.id == device_.primary.id();
  if (is_primary && caller.stream && *caller.stream != driver::kPerThreadStream)
    cache.service.handle.store(static_cast<std::uint64_t>(*caller.stream),
                               std::memory_order_relaxed);
  return seen;
}

}  // namespace vpmm::context
