// SPDX-License-Identifier: Apache-2.0
// context: live allocations of users, and their frees.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "context/allocation_info.hpp"
#include "context/captures.hpp"
#include "context/deferred.hpp"
#include "context/device.hpp"
#include "context/host_copies.hpp"
#include "context/owners.hpp"
#include "context/prover.hpp"
#include "context/shares.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

class Allocations {
 public:
  Allocations(Device& device, Captures& captures, arena::Arenas& arenas, Shares& shares,
              HostCopies& host_copies, report::Recorder& recorder, Prover& prover)
      : device_(device),
        captures_(captures),
        arenas_(arenas),
        owners_(device, arenas),
        shares_(shares),
        host_copies_(host_copies),
        recorder_(recorder),
        prover_(prover) {}

  // The live allocation around `ptr`.
  Result<AllocationInfo> query(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // Adds `user` to the users of the allocation that starts at `ptr`.
  Result<void> record_use(DevicePtr ptr, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // Range of a new allocation for recordings and observers.
  AddressRange range_to_tell(DevicePtr begin, Bytes requested) const VPMM_REQUIRES(pool_lock);
  // Makes the free of a new allocation take the pool's lock.
  void free_through_lock(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Result<void> free(MutexLock& lock, DevicePtr ptr, const pool::Stream& stream,
                    const pool::Caller& caller) VPMM_REQUIRES(pool_lock) {
    return free(lock, owners_.of(ptr), ptr, stream, caller);
  }
  // Requires: `owner` is that of `ptr`, found under the same hold of the lock.
  Result<void> free(MutexLock& lock, const OwnedBy& owner, DevicePtr ptr,
                    const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // VPMM_FILL: fills the live allocation around `ptr` behind the work of the caller's stream; does
  // nothing without a stream that may be given work.
  Result<void> fill(DevicePtr ptr, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Frees, without a stream, memory that its user freed before, after its last holder let go.
  void free_kept(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // Frees the memory of a capture after the end of its graph.
  void release_capture(std::uint64_t capture) VPMM_REQUIRES(pool_lock);

  // --- deferred frees, of finalizers and destroyed graphs ---
  void defer(DevicePtr ptr) noexcept { deferred_.push(to_integer(ptr)); }
  // Provides for the deferred free of one more allocation. Throws std::bad_alloc.
  void provide() VPMM_REQUIRES(pool_lock) {
    deferred_.provide(device_.live_allocations() + arenas_.live() + 1);
  }
  bool has_deferred() const { return !deferred_.empty(); }
  // Tells if a request may be served before the deferred frees. A bounded number may.
  bool may_pass_deferred();
  // Carries them out. Returns true if any came from a finalizer.
  bool drain(MutexLock& lock) VPMM_REQUIRES(pool_lock);

  Error mistake(Error error) VPMM_REQUIRES(pool_lock);
  std::uint64_t mistakes() const VPMM_REQUIRES(pool_lock) { return mistakes_; }

 private:
  // Ends an allocation; listeners are not called. Returns false if no live allocation starts there.
  bool end(const OwnedBy& owner, DevicePtr begin, const pool::Stream& stream,
           const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool end_part(region::Region& page, DevicePtr begin, const pool::Stream& stream,
                const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool end_pages(region::Region& region, DevicePtr begin, const pool::Stream& stream,
                 const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool end_guarded(guard::Block& block, DevicePtr begin, const pool::Stream& stream,
                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The user's live allocation around `ptr`. Memory kept by caches, graphs or other processes has
  // no user.
  std::optional<AllocationInfo> live_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // Same, if it starts at `ptr`.
  std::optional<AllocationInfo> live_at(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
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
  const Owners owners_;
  Shares& shares_;
  HostCopies& host_copies_;
  report::Recorder& recorder_;
  Prover& prover_;
  std::uint64_t mistakes_ VPMM_GUARDED_BY(pool_lock) = 0;  // of callers
  // --- without the lock ---
  DeferredList deferred_;
  std::atomic<std::uint64_t> served_beside_deferred_{0};  // requests since the last drain()
};

}  // namespace vpmm::context
