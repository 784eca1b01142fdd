// SPDX-License-Identifier: Apache-2.0
// report: events of a pool for its recording, its listeners and the driver's observer of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "driver/recording.hpp"
#include "observe/trace_writer.hpp"
#include "pool/mapping_observer.hpp"
#include "pool/request.hpp"
#include "report/call_log.hpp"
#include "report/events.hpp"
#include "report/tags.hpp"

namespace vpmm::report {

// Note [Listeners are told under the lock]
// Events are reported at their place, under the pool's lock: listeners get them in true order, and
// none of an undone step. Chunks are reported as they enter and leave the table of mappings, so
// before the allocation that needed them. A listener is removed under the lock, so it gets no call
// afterwards.
class Recorder final : public pool::MappingObserver {
 public:
  Recorder(driver::RecordingDriver& driver, driver::DeviceOrdinal device)
      : driver_(driver), device_(device), observer_(driver.memory_observer()) {}
  ~Recorder() { driver_.set_observer(nullptr); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // --- a recording ---
  std::shared_ptr<observe::TraceWriter> writer() const VPMM_REQUIRES(pool_lock) { return writer_; }
  bool is_recording() const VPMM_REQUIRES(pool_lock) { return writer_ != nullptr; }
  // Receives the events of calls; lives as long as the recorder. Null: no recording.
  CallLog* log() const VPMM_REQUIRES(pool_lock) {
    return writer_ == nullptr ? nullptr : log_.get();
  }
  // The log for the next recording. Requires: no recording.
  CallLog& provide_log() VPMM_REQUIRES(pool_lock);
  void start(std::shared_ptr<observe::TraceWriter> writer) VPMM_REQUIRES(pool_lock);
  std::shared_ptr<observe::TraceWriter> stop() VPMM_REQUIRES(pool_lock);

  // --- listeners ---
  // Returns the listener's number, unique in the pool for ever.
  std::uint64_t add_listener(EventKinds kinds, EventCallback callback) VPMM_REQUIRES(pool_lock);
  // Returns false if the number is unknown.
  bool remove_listener(std::uint64_t id) VPMM_REQUIRES(pool_lock);
  bool wants(EventKind kind) const VPMM_REQUIRES(pool_lock) {
    return (wanted_ & bit_of(kind)) != 0;
  }
  // Tells if every allocation and free must take the pool's lock.
  bool wants_all_calls() const VPMM_REQUIRES(pool_lock) {
    return wants(EventKind::allocate) || wants(EventKind::free);
  }

  // Tells if the pool must report its chunks, by on_map() and on_unmap().
  bool wants_mappings() const VPMM_REQUIRES(pool_lock) {
    return wants(EventKind::map) || wants(EventKind::unmap) || is_recording();
  }

  // --- events ---
  // Tells if allocated() reads more of the range than its begin.
  bool wants_ranges() const VPMM_REQUIRES(pool_lock) {
    return observer_ != nullptr || is_recording();
  }
  // `range`: memory of the allocation; empty in an external arena, which has no observer.
  void allocated(AddressRange range, DevicePtr begin, const pool::Request& request,
                 const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Size and arena of an allocation, for listeners.
  struct Told {
    Bytes requested = 0;
    pool::ArenaId arena{};
  };
  Labels freed(DevicePtr ptr, const Told& told, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Reverts freed() after the driver refused the free. `stream`: the allocation's; null: any.
  void free_failed(AddressRange range, const pool::Stream& stream, const Labels& labels,
                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Claims the place of a free in the recording. Call before the memory can serve another request;
  // record_free() follows if the free succeeds.
  CallLog::Claim claim_free() const VPMM_REQUIRES(pool_lock);
  void record_free(CallLog::Claim place, DevicePtr ptr, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  void used(DevicePtr ptr, const Told& told, const pool::Caller& caller,
            driver::StreamHandle stream) VPMM_REQUIRES(pool_lock);
  // arena_grow or arena_shrink.
  void arena_changed(EventKind kind, AddressRange stretch, pool::ArenaId arena)
      VPMM_REQUIRES(pool_lock);
  // suspend or resume.
  void arena_resides(EventKind kind, Bytes bytes, std::uint32_t tag, pool::ArenaId arena)
      VPMM_REQUIRES(pool_lock);
  void failed(const pool::Request& request, const Error& error, const CallLog::By& by)
      VPMM_REQUIRES(pool_lock);
  void trimmed(Bytes released) VPMM_REQUIRES(pool_lock);
  // Reports a call's wait for memory.
  void paused(std::uint64_t ns) VPMM_REQUIRES(pool_lock);
  // Tells if a sample of the figures is due; then the next is due after 10 ms.
  bool is_sample_due() VPMM_REQUIRES(pool_lock);
  void sample(Bytes mapped, Bytes pending, Bytes free) VPMM_REQUIRES(pool_lock);
  void on_map(AddressRange chunk, DevicePtr before) noexcept override VPMM_REQUIRES(pool_lock);
  void on_unmap(AddressRange chunk, Fate fate) noexcept override VPMM_REQUIRES(pool_lock);
  const Tags& tags() const VPMM_REQUIRES(pool_lock) { return tags_; }
  // Drops the tags of allocations that ended with their CUDA context.
  void forget_unless(FunctionRef<bool(DevicePtr)> is_live) VPMM_REQUIRES(pool_lock) {
    tags_.forget_unless(is_live);
  }
  // Report to the driver's observer only. `last`: stream of the last use; nullopt: any.
  void observe_begin(AddressRange range, const pool::Stream& stream) const;
  void observe_end(AddressRange range, const pool::Stream& last) const;

 private:
  struct Listener {
    std::uint64_t id = 0;
    EventKinds kinds = 0;
    EventCallback callback;
  };
  void listen() VPMM_REQUIRES(pool_lock);
  void tell(ReportedEvent event) noexcept VPMM_REQUIRES(pool_lock);

  driver::RecordingDriver& driver_;
  const driver::DeviceOrdinal device_;
  driver::MemoryObserver* const observer_;
  std::shared_ptr<observe::TraceWriter> writer_ VPMM_GUARDED_BY(pool_lock);  // null: no recording
  std::unique_ptr<CallLog> log_ VPMM_GUARDED_BY(pool_lock);  // null: no recording so far
  Vector<std::unique_ptr<CallLog>> given_up_
      VPMM_GUARDED_BY(pool_lock);  // logs of recordings with hanging files
  std::uint64_t sampled_ns_ VPMM_GUARDED_BY(pool_lock) = 0;
  Tags tags_ VPMM_GUARDED_BY(pool_lock);
  EventKinds wanted_ VPMM_GUARDED_BY(pool_lock) = 0;  // by any listener
  std::uint64_t last_listener_ VPMM_GUARDED_BY(pool_lock) = 0;
  Vector<Listener> listeners_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::report
