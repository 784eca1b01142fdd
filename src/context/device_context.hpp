// context: the Context of a device: its parts, and the public calls over them, behind one lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "context/allocations.hpp"
#include "context/arenas.hpp"
#include "context/captures.hpp"
#include "context/context.hpp"
#include "context/device.hpp"
#include "context/footprint.hpp"
#include "context/peers.hpp"
#include "context/prover.hpp"
#include "context/recorder.hpp"
#include "context/router.hpp"
#include "context/shares.hpp"
#include "context/slow_path.hpp"
#include "context/stream_front.hpp"
#include "context/streams_kept.hpp"
#include "context/visits.hpp"

namespace vpmm::context {

// What a pool prints when it ends.
enum class AtEnd { nothing, summary };

// Lock order: mutex_ (pool_lock) first, then one cache's (cache_lock); the mapper's leaf mutex and
// the driver's own below mutex_. The order of a call is always gate, current context, lock, so that
// the driver is never asked to change contexts under the lock.
class DeviceContext final : public Context {
 public:
  // `at_end`: VPMM_STATS.
  DeviceContext(driver::Driver& driver, driver::DeviceOrdinal device, const Config& config,
                const DeviceTraits& traits, AtEnd at_end = AtEnd::nothing);
  ~DeviceContext() override;
  void prepare();

  Result<DevicePtr> allocate(const Request& request) override;
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment) override;
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment, driver::StreamHandle stream) override;
  Result<void> allocate_many(std::span<const Bytes> bytes, Stream stream,
                             std::span<DevicePtr> out) override;
  Result<void> deallocate(DevicePtr ptr, Stream stream) override;
  bool deallocate_if_ready(DevicePtr ptr, driver::StreamHandle stream) override;
  Result<void> deallocate_many(std::span<const DevicePtr> pointers, Stream stream) override;
  Result<std::unique_ptr<BoundStream>> bind(driver::StreamHandle stream) override;
  void deallocate_deferred(DevicePtr ptr) noexcept override;
  Result<void> record_use(DevicePtr ptr, driver::StreamHandle stream) override;
  Result<void> make_wait(driver::StreamHandle waiting, driver::StreamHandle first) override;
  Result<ArenaId> create_arena(const ArenaOptions& options) override;
  Result<DevicePtr> allocate_in_arena(const Request& request) override;
  Result<DevicePtr> allocate_at(ArenaId arena, AddressRange place, Stream stream) override;
  Result<void> pin_arena(ArenaId arena) override;
  Result<void> add_to_arena(ArenaId arena, AddressRange memory) override;
  Result<AddressRange> take_from_arena(ArenaId arena) override;
  Result<Bytes> trim_arena(ArenaId arena) override;
  Result<Vector<DevicePtr>> live_in_arena(ArenaId arena) const override;
  Result<void> release_arena(ArenaId arena) override;
  Result<void> capture_begin() override;
  Result<void> capture_end() override;
  Result<void> capture_release(driver::CaptureId id) override;
  void defer_cleanup_begin() override;
  Result<void> defer_cleanup_end() override;
  Result<AllocationInfo> query(DevicePtr ptr) const override;
  Result<Bytes> trim(Bytes bytes_to_keep) override;
  Result<void> preallocate(Bytes bytes) override;
  void set_capacity(std::optional<Bytes> bytes) override;
  std::optional<Bytes> capacity() const override;
  void set_out_of_memory_callback(OutOfMemoryCallback callback) override {
    out_of_memory_.set(std::move(callback));
  }
  std::uint64_t add_out_of_memory_callback(OutOfMemoryCallback callback) override {
    return out_of_memory_.add(std::move(callback));
  }
  Result<void> remove_out_of_memory_callback(std::uint64_t id) override;
  std::uint64_t add_event_callback(EventKinds kinds, EventCallback callback) override;
  Result<void> remove_event_callback(std::uint64_t id) override;
  Result<void> synchronize() override;
  Result<void> wait_for_work() override;
  bool is_capturing() override;
  Result<void> reset() override;
  Result<void> set_peer_access(driver::DeviceOrdinal peer) override;
  Result<driver::MemInfo> memory_info() override;
  observe::Statistics statistics() const override;
  void reset_peaks() override;
  void summarize() const noexcept override;
  observe::PoolSnapshot snapshot() const override;
  Layout layout() const override;
  const Config& config() const override { return device_.config; }
  driver::DeviceOrdinal device() const override { return device_.primary.device(); }
  driver::Driver& driver() override { return device_.inner; }
  std::string validate() const override;
  Result<SharedRange> share(AddressRange range) override;
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) override;
  void end_lease(ShareId id, Holder holder) override;
  Result<void> start_recording(const std::string& path, const RecordOptions& options) override;
  Result<void> stop_recording() override;
  void mark(const std::string& text) override;

 private:
  class Visit;  // one public call: context made current, lock held
  class Bound;
  // entering.cpp
  Result<void> check_alive();
  Result<void> open() VPMM_REQUIRES(pool_lock);
  void forget_dead(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  void forget_work_of(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  Result<void> forget_dead_others() VPMM_REQUIRES(pool_lock);
  void leave(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool look_for_idle_streams() VPMM_REQUIRES(pool_lock);
  bool is_forgotten(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  void learn_if_much_is_pending() VPMM_REQUIRES(pool_lock);
  void keep_bounds(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void bound_any_stream(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // What is done once the call's own work is: where it fails for want of host memory, the next call
  // catches up.
  template <typename F>
  static void afterwards(F&& work) noexcept VPMM_REQUIRES(pool_lock) {
    try {
      std::forward<F>(work)();
    } catch (...) {  // NOLINT(bugprone-empty-catch): nobody is to be told
    }
  }
  // fast_path.cpp
  using Freed = small::WarmCalls::Freed;
  using Way = StreamFront::Way;
  DevicePtr try_allocate(const Way& way, const StreamFront::Client& client, Bytes bytes,
                         Bytes alignment);
  DevicePtr take_pages_if_ready(Bytes bytes, Bytes alignment);
  Freed try_free(const Way& way, const StreamFront::Client& client, DevicePtr ptr);
  Freed try_free(const Way& way, DevicePtr ptr, driver::StreamHandle stream);
  [[gnu::noinline]] void record(CallLog& log, const StreamFront::Client& client, DevicePtr begin,
                                Bytes bytes);
  [[gnu::noinline]] Freed free_and_record(CallLog& log, const StreamFront::Client& client,
                                          DevicePtr ptr);
  bool is_freed(Freed freed, const Stream& stream, const time::TimelineId* bound);
  void record_due_event(const Stream& stream, const time::TimelineId* bound) noexcept;
  void free_surely(DevicePtr ptr, Stream stream) noexcept;
  // device_context.cpp; `bound`: of a bound stream, else null
  Result<DevicePtr> allocate_slowly(const Request& request, const time::TimelineId* bound);
  Result<DevicePtr> allocate_or_tell(const Request& request, const time::TimelineId* bound);
  // `by`: out, of whom, once that is known.
  Result<DevicePtr> allocate_or_call_back(const Request& request, const time::TimelineId* bound,
                                          CallLog::By& by);
  Result<DevicePtr> allocate_once(const Request& request, const time::TimelineId* bound,
                                  CallLog::By& by);
  bool lacks_gpu_memory(const Request& request) const;
  Result<void> deallocate_slowly(DevicePtr ptr, const Stream& stream,
                                 const time::TimelineId* bound);
  Error mistake(Error error);
  // shortage.cpp
  void explain_shortage(const Request& request, Error& error) noexcept;
  Shortage look_at_shortage(const Request& request, const std::string& reason) const
      VPMM_REQUIRES(pool_lock);
  void add_holders(Shortage& shortage) const VPMM_REQUIRES(pool_lock);
  void add_pending(Shortage& shortage) const VPMM_REQUIRES(pool_lock);
  // layout.cpp
  Layout drawn_layout() const VPMM_REQUIRES(pool_lock);
  std::uint64_t stream_id_of(std::optional<time::TimelineId> timeline) const
      VPMM_REQUIRES(pool_lock);
  std::uint64_t stream_id_of(const time::Stamp& stamp) const VPMM_REQUIRES(pool_lock);
  Block block_of(const region::Region& region) const VPMM_REQUIRES(pool_lock);
  Block block_of(const small::Part& part) const VPMM_REQUIRES(pool_lock);
  Block block_of(const driver_pool::Block& of_driver) const VPMM_REQUIRES(pool_lock);
  void add_blocks_of_arena(DevicePtr stretch, Layout& layout) const VPMM_REQUIRES(pool_lock);
  // recording.cpp
  observe::RecordingHeader header() const;
  Result<void> begin_recording(const std::shared_ptr<observe::TraceWriter>& writer,
                               std::uint64_t now_ns);
  std::vector<observe::LiveAllocation> live_allocations() const VPMM_REQUIRES(pool_lock);
  void sample_figures() VPMM_REQUIRES(pool_lock);
  // observing.cpp
  Bytes missing_on_gpu(Bytes bytes) VPMM_REQUIRES(pool_lock);
  Bytes movable_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes ask_for_idle(Bytes bytes);
  Result<void> preallocate_mapped(Bytes bytes);
  void trim_above_threshold(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  observe::Statistics figures() const VPMM_REQUIRES(pool_lock);
  void add_blocks_of_arena(DevicePtr stretch, observe::PoolSnapshot& snapshot) const
      VPMM_REQUIRES(pool_lock);

  alignas(kCacheLine) mutable Mutex mutex_;
  Device device_;
  // --- read by every call, without the lock, like the end of device_ ---
  StreamFront front_;
  Captures captures_;
  // --- under mutex_: each knows those above it ---
  alignas(kCacheLine) Peers peers_;
  Recorder recorder_;
  Footprint footprint_;
  Prover prover_;
  Arenas arenas_;
  Shares shares_;
  Allocations allocations_;
  SlowPath slow_path_;
  Router router_;
  Visits visits_;
  StreamsKept streams_kept_;
  bool sees_unproven_ VPMM_GUARDED_BY(pool_lock) = false;  // frees, when it looked for idle streams
  bool has_noticed_reset_ VPMM_GUARDED_BY(pool_lock) =
      false;  // by others, and no event stands yet for what was cached
  std::uint64_t failed_allocations_ VPMM_GUARDED_BY(pool_lock) = 0;
  OutOfMemoryCallbacks out_of_memory_;  // has a lock of its own
  const bool has_summary_;
  Mutex starting_recordings_;  // before mutex_, for a file may take long to open
};

}  // namespace vpmm::context
