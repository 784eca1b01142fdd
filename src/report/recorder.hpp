// report: who is told of what happens: a recording, listeners for events, the driver's observer of
// memory; and what is known of allocations for them.
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
// Events are told where they happen, under the pool's lock, so listeners hear them in the order in
// which they are true, and none that was undone. Chunks are told of as they enter and leave the
// table of mappings, so before the allocation that they were mapped for. Whoever takes a listener
// away takes the lock, so nobody calls it afterwards.
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
  // Takes the events of calls. Null: nothing is recorded. Lives as long as the recorder.
  CallLog* log() const VPMM_REQUIRES(pool_lock) {
    return writer_ == nullptr ? nullptr : log_.get();
  }
  // The channel for the next recording. Requires: nothing is recorded.
  CallLog& provide_log() VPMM_REQUIRES(pool_lock);
  void start(std::shared_ptr<observe::TraceWriter> writer) VPMM_REQUIRES(pool_lock);
  std::shared_ptr<observe::TraceWriter> stop() VPMM_REQUIRES(pool_lock);

  // --- listeners ---
  // The number of this one, which no other of the pool ever has.
  std::uint64_t add_listener(EventKinds kinds, EventCallback callback) VPMM_REQUIRES(pool_lock);
  // False: there is none with this number.
  bool remove_listener(std::uint64_t id) VPMM_REQUIRES(pool_lock);
  bool wants(EventKind kind) const VPMM_REQUIRES(pool_lock) {
    return (wanted_ & bit_of(kind)) != 0;
  }
  // Whether every allocation and every free has to come through the pool's lock.
  bool wants_all_calls() const VPMM_REQUIRES(pool_lock) {
    return wants(EventKind::allocate) || wants(EventKind::free);
  }

  // Whether the pool is to tell of its chunks, by on_map() and on_unmap().
  bool wants_mappings() const VPMM_REQUIRES(pool_lock) {
    return wants(EventKind::map) || wants(EventKind::unmap) || is_recording();
  }

  // --- events ---
  // Whether allocated() reads the range of the allocation, beyond its begin.
  bool wants_ranges() const VPMM_REQUIRES(pool_lock) {
    return observer_ != nullptr || is_recording();
  }
  // `range`: memory of the allocation. Empty: of an external arena, which no observer is told of.
  void allocated(AddressRange range, DevicePtr begin, const pool::Request& request,
                 const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The size and arena of an allocation, for listeners that ask for its events.
  struct Told {
    Bytes requested = 0;
    pool::ArenaId arena{};
  };
  // Returns its tag.
  std::uint32_t freed(DevicePtr ptr, const Told& told, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Reverts freed() after the driver refused the free.
  void free_failed(AddressRange range, std::uint32_t tag, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // In the recording: claimed before the memory can be anybody else's, and written down if it is
  // freed.
  CallLog::Claim claim_free() const VPMM_REQUIRES(pool_lock);
  void record_free(CallLog::Claim place, DevicePtr ptr, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  void used(DevicePtr ptr, const Told& told, const pool::Caller& caller,
            driver::StreamHandle stream) VPMM_REQUIRES(pool_lock);
  // arena_grow or arena_shrink.
  void arena_changed(EventKind kind, AddressRange stretch, pool::ArenaId arena)
      VPMM_REQUIRES(pool_lock);
  void failed(const pool::Request& request, const Error& error, const CallLog::By& by)
      VPMM_REQUIRES(pool_lock);
  void trimmed(Bytes released) VPMM_REQUIRES(pool_lock);
  // A call waited for the GPU.
  void paused(std::uint64_t ns) VPMM_REQUIRES(pool_lock);
  // Whether a picture of the figures is due. True: the next is not before 10 ms.
  bool is_sample_due() VPMM_REQUIRES(pool_lock);
  void sample(Bytes mapped, Bytes pending, Bytes free) VPMM_REQUIRES(pool_lock);
  void on_map(AddressRange chunk, DevicePtr before) noexcept override VPMM_REQUIRES(pool_lock);
  void on_unmap(AddressRange chunk, Fate fate) noexcept override VPMM_REQUIRES(pool_lock);
  const Tags& tags() const VPMM_REQUIRES(pool_lock) { return tags_; }
  // Drops the tags of allocations that ended without a free: with their CUDA context.
  void forget_unless(FunctionRef<bool(DevicePtr)> is_live) VPMM_REQUIRES(pool_lock) {
    tags_.forget_unless(is_live);
  }
  // To the driver's observer alone. `last`: the last stream that uses the memory; none: any.
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
  std::shared_ptr<observe::TraceWriter> writer_
      VPMM_GUARDED_BY(pool_lock);                            // null: nothing is recorded
  std::unique_ptr<CallLog> log_ VPMM_GUARDED_BY(pool_lock);  // null: nothing was ever recorded
  Vector<std::unique_ptr<CallLog>> given_up_
      VPMM_GUARDED_BY(pool_lock);  // their files take no bytes
  std::uint64_t sampled_ns_ VPMM_GUARDED_BY(pool_lock) = 0;
  Tags tags_ VPMM_GUARDED_BY(pool_lock);
  EventKinds wanted_ VPMM_GUARDED_BY(pool_lock) = 0;  // by any listener
  std::uint64_t last_listener_ VPMM_GUARDED_BY(pool_lock) = 0;
  Vector<Listener> listeners_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::report
