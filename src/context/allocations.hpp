// context: which memory is a user's, and the way of a free.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "arena/arenas.hpp"
#include "base/address.hpp"
#include "context/captures.hpp"
#include "context/context.hpp"
#include "context/deferred.hpp"
#include "context/device.hpp"
#include "context/prover.hpp"
#include "context/shares.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

class Allocations {
 public:
  Allocations(Device& device, Captures& captures, arena::Arenas& arenas, Shares& shares,
              report::Recorder& recorder, Prover& prover)
      : device_(device),
        captures_(captures),
        arenas_(arenas),
        shares_(shares),
        recorder_(recorder),
        prover_(prover) {}

  // Of the live allocation around `ptr`.
  Result<AllocationInfo> query(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  // Work of `user` uses what starts at `ptr`, too.
  Result<void> record_use(DevicePtr ptr, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // The new allocation's free will come here, whoever makes it.
  void free_through_lock(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Result<void> free(MutexLock& lock, DevicePtr ptr, const pool::Stream& stream,
                    const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // What was freed, and kept for other processes, which have let go of it. They named no stream.
  void free_kept(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // The memory of that capture is free: its graph is gone.
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
  // Of what is not shared; nobody is told. False: no live allocation starts there.
  bool end(DevicePtr begin, const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool is_live(const region::Region& region) const VPMM_REQUIRES(pool_lock);
  std::optional<small::Allocation> find_live(const region::Region& page, DevicePtr ptr) const
      VPMM_REQUIRES(pool_lock);
  report::Recorder::Told what_to_tell(report::EventKind kind, DevicePtr begin) const
      VPMM_REQUIRES(pool_lock);
  // The live block of an arena around `ptr` that is a user's; null: none.
  const arena::Block* block_in_arena(DevicePtr ptr) const VPMM_REQUIRES(pool_lock);
  AddressRange live_around(const region::Region* region, DevicePtr ptr) const
      VPMM_REQUIRES(pool_lock);
  Error not_live(DevicePtr ptr, AddressRange around) VPMM_REQUIRES(pool_lock);
  void free_pages(region::Region* region, const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<void> free_block(MutexLock& lock, DevicePtr ptr, const pool::Stream& stream,
                          const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void observe_end(AddressRange range, const Prover::Uses& uses, const pool::Stream& stream,
                   const pool::Caller& caller) const VPMM_REQUIRES(pool_lock);

  Device& device_;
  Captures& captures_;
  arena::Arenas& arenas_;
  Shares& shares_;
  report::Recorder& recorder_;
  Prover& prover_;
  std::uint64_t mistakes_ VPMM_GUARDED_BY(pool_lock) = 0;  // of callers
  // --- without the lock ---
  DeferredList deferred_;
  std::atomic<std::uint64_t> served_beside_deferred_{0};  // requests, since the list was taken last
};

}  // namespace vpmm::context
