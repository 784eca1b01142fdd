// context: which memory is a user's, and the way of a free.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "context/allocation_info.hpp"
#include "context/captures.hpp"
#include "context/deferred.hpp"
#include "context/device.hpp"
#include "context/owners.hpp"
#include "context/prover.hpp"
#include "context/shares.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

class Allocations {
 public:
  Allocations(Device& device, Captures& captures, arena::Arenas& arenas, const Owners& owners,
              Shares& shares, report::Recorder& recorder, Prover& prover)
      : device_(device),
        captures_(captures),
        arenas_(arenas),
        owners_(owners),
        shares_(shares),
        recorder_(recorder),
        prover_(prover) {}

  // Describes the live allocation around `ptr`.
  Result<AllocationInfo> query(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // Work of `user` uses what starts at `ptr`, too.
  Result<void> record_use(DevicePtr ptr, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // Memory of a new allocation as recordings and observers are told of it.
  AddressRange range_to_tell(DevicePtr begin, Bytes requested) const VPMM_REQUIRES(pool_lock);
  // Makes the free of a new allocation take the pool's lock.
  void free_through_lock(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Result<void> free(MutexLock& lock, DevicePtr ptr, const pool::Stream& stream,
                    const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Frees memory that its user freed before, and that other processes have let go of now, without a
  // stream.
  void free_kept(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // Frees the memory of a capture whose graph is gone.
  void release_capture(std::uint64_t capture) VPMM_REQUIRES(pool_lock);

  // --- frees that wait for a call through the lock: of finalizers, and of graphs that are gone ---
  void defer(DevicePtr ptr) noexcept { deferred_.push(to_integer(ptr)); }
  // For one allocation more than there is: whoever frees it needs no memory for that. Throws
  // std::bad_alloc.
  void provide() VPMM_REQUIRES(pool_lock) {
    deferred_.provide(device_.live_allocations() + arenas_.live() + 1);
  }
  bool has_deferred() const { return !deferred_.empty(); }
  // Whether a request may be served beside those that wait; not for ever.
  bool may_pass_deferred();
  // Carries them out. True: finalizers' were among them.
  bool drain(MutexLock& lock) VPMM_REQUIRES(pool_lock);

  Error mistake(Error error) VPMM_REQUIRES(pool_lock);
  std::uint64_t mistakes() const VPMM_REQUIRES(pool_lock) { return mistakes_; }

 private:
  // Ends an allocation without telling listeners. False: no live allocation starts there.
  bool end(const OwnedBy& owner, DevicePtr begin, const pool::Stream& stream,
           const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool end_part(region::Region& page, DevicePtr begin, const pool::Stream& stream,
                const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool end_pages(region::Region& region, DevicePtr begin, const pool::Stream& stream,
                 const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The user's live allocation around `ptr`. Caches, graphs and other processes keep memory that is
  // no user's.
  std::optional<AllocationInfo> live_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  std::optional<small::Allocation> find_live(const region::Region& page, DevicePtr ptr) const
      VPMM_REQUIRES(pool_lock);
  report::Recorder::Told what_to_tell(report::EventKind kind, DevicePtr begin) const
      VPMM_REQUIRES(pool_lock);
  Error not_live(DevicePtr ptr) VPMM_REQUIRES(pool_lock);
  Result<void> free_block(MutexLock& lock, driver_pool::PoolBlock* block,
                          const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  void observe_end(AddressRange range, const pool::Stamper::Uses& uses, const pool::Stream& stream,
                   const pool::Caller& caller) const VPMM_REQUIRES(pool_lock);

  Device& device_;
  Captures& captures_;
  arena::Arenas& arenas_;
  const Owners& owners_;
  Shares& shares_;
  report::Recorder& recorder_;
  Prover& prover_;
  std::uint64_t mistakes_ VPMM_GUARDED_BY(pool_lock) = 0;  // of callers
  // --- without the lock ---
  DeferredList deferred_;
  std::atomic<std::uint64_t> served_beside_deferred_{0};  // requests, since the list was taken last
};

}  // namespace vpmm::context
