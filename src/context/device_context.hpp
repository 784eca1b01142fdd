// context: the Context of a device: composition of timelines, pool, driver pool and captures behind one lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "context/callers.hpp"
#include "context/captures.hpp"
#include "context/context.hpp"
#include "context/deferred.hpp"
#include "context/peers.hpp"
#include "context/primary_context.hpp"
#include "context/shares.hpp"
#include "context/stream_table.hpp"
#include "context/visits.hpp"
#include "driver/context_scope.hpp"
#include "driver/recording.hpp"
#include "driver_pool/driver_pool.hpp"
#include "observe/trace_file.hpp"
#include "pool/pool.hpp"
#include "region/page_unit.hpp"
#include "small/small_pool.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

Error not_inside(DevicePtr ptr);  // any live allocation

constexpr Bytes kAddressSpace = Bytes{1} << 47;  // no request can be larger

// What the device can do, asked once.
struct DeviceTraits {
  bool has_vmm = false;
  bool has_memory_pools = false;
  Bytes granularity = 2 * kMiB;
  driver::ChunkProperties chunk;
};

// Lock order: mutex_ (pool_lock) first, then one cache's (cache_lock); the mapper's leaf mutex and the driver's own
// below mutex_. The order of a call is always gate, current context, lock, so that the driver is never asked to change
// contexts under the lock.
class DeviceContext final : public Context {
 public:
  DeviceContext(driver::Driver& driver, driver::DeviceOrdinal device, const Config& config, const DeviceTraits& traits);
  ~DeviceContext() override;
  void prepare();

  Result<DevicePtr> allocate(const Request& request) override;
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment) override;
  Result<void> allocate_many(std::span<const Bytes> bytes, Stream stream, std::span<DevicePtr> out) override;
  Result<void> deallocate(DevicePtr ptr, Stream stream) override;
  Result<void> deallocate_many(std::span<const DevicePtr> pointers, Stream stream) override;
  Result<std::unique_ptr<BoundStream>> bind(driver::StreamHandle stream) override;
  void deallocate_deferred(DevicePtr ptr) noexcept override;
  Result<void> record_use(DevicePtr ptr, driver::StreamHandle stream) override;
  Result<void> capture_begin() override;
  Result<void> capture_end() override;
  Result<void> capture_release(driver::CaptureId id) override;
  void defer_cleanup_begin() override;
  Result<void> defer_cleanup_end() override;
  Result<AllocationInfo> query(DevicePtr ptr) const override;
  Result<Bytes> trim(Bytes bytes_to_keep) override;
  Result<void> preallocate(Bytes bytes) override;
  void set_capacity(std::optional<Bytes> bytes) override;
  void set_out_of_memory_callback(OutOfMemoryCallback callback) override;
  Result<void> synchronize() override;
  Result<void> wait_for_work() override;
  bool is_capturing() override;
  Result<void> reset() override;
  Result<void> set_peer_access(driver::DeviceOrdinal peer) override;
  Result<driver::MemInfo> memory_info() override;
  observe::Statistics statistics() const override;
  void reset_peaks() override;
  observe::PoolSnapshot snapshot() const override;
  const Config& config() const override { return config_; }
  driver::DeviceOrdinal device() const override { return primary_.device(); }
  driver::Driver& driver() override { return inner_driver_; }
  std::string validate() const override;
  Result<SharedRange> share(AddressRange range) override;
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) override;
  void end_lease(ShareId id, Holder holder) override;
  Result<void> start_recording(const std::string& path) override;
  Result<void> stop_recording() override;

 private:
  class Visit;  // one public call: context made current, lock held
  class Bound;
  // fast_path.cpp
  using Client = small::SmallPool::Client;
  using Freed = small::SmallPool::Freed;
  Client client_of(driver::StreamHandle stream) const;
  DevicePtr try_allocate(const Client& client, Bytes bytes, Bytes alignment);
  DevicePtr take_pages_if_ready(Bytes bytes, Bytes alignment);
  Freed try_free(const Client& client, DevicePtr ptr);
  bool is_freed(Freed freed, const Stream& stream, const time::TimelineId* bound);
  void record_due_event(const Stream& stream, const time::TimelineId* bound) noexcept;
  void refresh_fast_path() VPMM_REQUIRES(pool_lock);
  void run_pending_requests(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // entering.cpp
  Result<void> open() VPMM_REQUIRES(pool_lock);
  Result<void> check_alive();
  void leave(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // What is done once the call's own work is: where it fails for want of host memory, the next call catches up.
  template <typename F>
  static void afterwards(F&& work) noexcept VPMM_REQUIRES(pool_lock) {
    try {
      std::forward<F>(work)();
    } catch (...) {  // NOLINT(bugprone-empty-catch): nobody is to be told
    }
  }
  void forget_dead(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  void forget_work_of(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  Result<void> forget_dead_others() VPMM_REQUIRES(pool_lock);
  // allocating
  Result<DevicePtr> allocate_slowly(const Request& request, const time::TimelineId* bound);
  void free_surely(DevicePtr ptr, Stream stream) noexcept;
  Result<void> deallocate_slowly(DevicePtr ptr, const Stream& stream, const time::TimelineId* bound);
  Result<DevicePtr> allocate_or_call_back(const Request& request, const time::TimelineId* bound);
  Result<DevicePtr> allocate_once(const Request& request, const time::TimelineId* bound);
  Result<DevicePtr> route(MutexLock& lock, const Request& request, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_stream_ordered(MutexLock& lock, const Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_pages(MutexLock& lock, const Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_small(MutexLock& lock, const Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // slow_path.cpp
  Result<pool::Placed> place(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<pool::Placed> attempt(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller,
                               pool::Effort effort) VPMM_REQUIRES(pool_lock);
  void prepare_growth(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<void> wait_until(MutexLock& lock, std::uint64_t until_ns) VPMM_REQUIRES(pool_lock);
  bool flush(const pool::Caller& caller, Bytes size, pool::Effort effort) VPMM_REQUIRES(pool_lock);
  bool shrink_caches(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  enum class Urgency { usual, at_once };
  void want_proof(const pool::Caller& caller, Urgency urgency) VPMM_REQUIRES(pool_lock);
  struct ShortageStep;
  static const ShortageStep kShortage[];
  Result<bool> await_returning(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<bool> collect_idle(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<bool> make_room(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<bool> give_back_caches(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<bool> may_queue_waits(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<bool> wait_on_host(MutexLock& lock, const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Bytes missing_on_gpu(Bytes bytes) VPMM_REQUIRES(pool_lock);
  Bytes ask_for_idle(Bytes bytes);
  Result<void> preallocate_mapped(Bytes bytes);
  Result<void> offset_growth(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  bool is_over_capacity() const VPMM_REQUIRES(pool_lock);
  Result<void> keep_capacity(MutexLock& lock, DevicePtr begin, const Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<void> preallocate_once(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void announce_allocation(DevicePtr begin, const Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock);
  // freeing
  Result<void> free_one(MutexLock& lock, DevicePtr ptr, const Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<void> free_block(MutexLock& lock, DevicePtr ptr, const Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  void record_free(DevicePtr ptr, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void free_pages(region::Region* region, const Stream& stream, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<void> free_stream_ordered(MutexLock& lock, driver_pool::Block* block, const Stream& stream,
                                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void free_small(const small::Allocation& ended, const Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool is_live(const region::Region* region) const VPMM_REQUIRES(pool_lock);
  AddressRange live_around(const region::Region& region, DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  struct Uses {
    std::optional<time::TimelineId> owner;
    const Vector<time::TimelineId>& others;
    Bytes bytes;
  };
  time::Stamp stamp_of(const Uses& uses, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void announce_deallocation(AddressRange range, const Uses& uses, const Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Error mistake(Error error);
  Error not_live(DevicePtr ptr, AddressRange around) VPMM_REQUIRES(pool_lock);
  bool drain_deferred(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void release_capture(std::uint64_t capture) VPMM_REQUIRES(pool_lock);
  Result<void> bound_any_stream(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  Result<void> trim_above_threshold(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // sharing.cpp
  bool mark_used_everywhere(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  void free_shared(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  bool keep_for_holders(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  bool is_kept_for_holders(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  Result<AllocationInfo> look_up(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // The live small allocation around `ptr` that is a user's.
  std::optional<small::Allocation> find_live(const region::Region& page, DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // proof.cpp
  bool may_record_context_event() VPMM_REQUIRES(pool_lock);
  bool prove_everything() VPMM_REQUIRES(pool_lock);
  bool prove_now() VPMM_REQUIRES(pool_lock);
  // Asks the events of at most so many timelines. True: something is complete that was not known to be.
  Result<bool> learn(std::size_t most) VPMM_REQUIRES(pool_lock);
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  bool learn_for_miss() VPMM_REQUIRES(pool_lock);
  time::Timeline& all_streams() VPMM_REQUIRES(pool_lock);
  bool is_proof_due() VPMM_REQUIRES(pool_lock);
  bool trim_driver_pool(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  driver::CuResult wait_for_contexts(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  bool synchronize_contexts(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  Result<void> wait_for(MutexLock& lock, std::shared_ptr<time::Event> proof) VPMM_REQUIRES(pool_lock);
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void note_peaks(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void note_peaks(Bytes peak_requested) VPMM_REQUIRES(pool_lock);
  bool flush_caches() VPMM_REQUIRES(pool_lock);
  observe::Statistics figures() const VPMM_REQUIRES(pool_lock);

  driver::Driver& inner_driver_;
  const Config config_;
  driver::MemoryObserver* const observer_;
  const Bytes page_size_;  // of the pool, if there is one

  alignas(kCacheLine) mutable Mutex mutex_;
  mutable driver::RecordingDriver driver_;  // over inner_driver_: counts for statistics
  time::Timelines timelines_ VPMM_GUARDED_BY(pool_lock);
  // --- read by every call, without the lock; on lines of their own, for what is around them changes all the time ---
  alignas(kCacheLine) std::unique_ptr<pool::Pool> pool_;  // null: no VMM, or switched off
  // Null like pool_; with VPMM_SMALL=stream_ordered it serves whole pages only.
  std::unique_ptr<small::SmallPool> small_;
  mutable std::unique_ptr<driver_pool::DriverPool> driver_pool_;  // null: not there, or not needed
  PrimaryContext primary_;
  std::atomic<bool> is_fast_{false};  // calls may be served from what their streams have cached
  StreamTable streams_;
  // --- all below under mutex_ ---
  alignas(kCacheLine) Captures captures_;
  Peers peers_;
  Callers callers_;
  Shares shares_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t cleanup_holds_ VPMM_GUARDED_BY(pool_lock) = 0;  // Note [Cleaning up can be put off]
  bool has_noticed_reset_ VPMM_GUARDED_BY(pool_lock) = false;  // by others, and no event stands yet for what was cached
  Visits visits_;
  std::uint64_t context_waits_ VPMM_GUARDED_BY(pool_lock) = 0;  // in progress, with the lock dropped
  std::condition_variable_any context_wait_ended_;
  Bytes driver_pool_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;    // what the driver's pool held when last asked
  std::optional<Bytes> capacity_ VPMM_GUARDED_BY(pool_lock);  // most bytes of pool and driver pool together
  std::uint64_t pauses_ VPMM_GUARDED_BY(pool_lock) = 0;       // requests that waited before the pool would have grown
  std::uint64_t misses_ VPMM_GUARDED_BY(pool_lock) = 0;       // requests that nothing idle fitted
  bool has_preallocated_ VPMM_GUARDED_BY(pool_lock) = false;
  OutOfMemoryCallback out_of_memory_ VPMM_GUARDED_BY(pool_lock);
  Bytes peak_mapped_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes peak_live_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes peak_of_pool_ VPMM_GUARDED_BY(pool_lock) = 0;  // of peak_live_, what the pool serves
  std::uint64_t failed_allocations_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t caller_mistakes_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t host_waits_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::shared_ptr<observe::TraceWriter> recording_ VPMM_GUARDED_BY(pool_lock);
  // --- lock-free ---
  DeferredList deferred_;
  std::atomic<std::uint64_t> served_beside_deferred_{0};  // requests, since the list was taken last
};

}  // namespace vpmm::context
