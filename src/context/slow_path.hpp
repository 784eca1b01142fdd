// SPDX-License-Identifier: Apache-2.0
// context: requests beyond their stream's cache, and the steps of a shortage.
#pragma once

#include <cstdint>

#include "base/function_ref.hpp"
#include "context/allocations.hpp"
#include "context/device.hpp"
#include "context/footprint.hpp"
#include "context/prover.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

// All calls require a pool.
class SlowPath {
 public:
  SlowPath(Device& device, Footprint& footprint, report::Recorder& recorder, Prover& prover,
           arena::Arenas& arenas, Allocations& allocations)
      : device_(device),
        footprint_(footprint),
        recorder_(recorder),
        prover_(prover),
        arenas_(arenas),
        allocations_(allocations) {}

  // May drop the lock.
  struct Job {
    MutexLock& lock;
    const pool::PageRequest& request;
    const pool::Caller& caller;
    bool is_for_parts = false;  // a page to cut, not for a user
  };
  Result<pool::Placed> place(const Job& job) VPMM_REQUIRES(pool_lock);
  // Below a page.
  Result<DevicePtr> allocate_small(MutexLock& lock, Bytes bytes, Bytes alignment,
                                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Adds a stretch to the arena if it has no room.
  Result<DevicePtr> allocate_in_arena(MutexLock& lock, const pool::Request& request,
                                      const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  std::uint64_t pauses() const VPMM_REQUIRES(pool_lock) { return pauses_; }

 private:
  Result<pool::Placed> attempt(const Job& job, pool::Effort effort) VPMM_REQUIRES(pool_lock);
  Result<pool::Placed> place_stretch(MutexLock& lock, const pool::Request& request)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> await_block(MutexLock& lock, const pool::Request& request,
                                const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool flush(const Job& job, pool::Effort effort) VPMM_REQUIRES(pool_lock);
  void prepare_growth(const Job& job) VPMM_REQUIRES(pool_lock);
  enum class Urgency { usual, at_once };
  void want_proof(const pool::Caller& caller, Urgency urgency) VPMM_REQUIRES(pool_lock);
  Result<void> wait_until(MutexLock& lock, std::uint64_t until_ns) VPMM_REQUIRES(pool_lock);

  struct ShortageStep;
  static const ShortageStep kShortage[];
  Result<bool> await_returning(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> collect_idle(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> make_room(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> give_back_caches(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> may_queue_waits(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> wait_on_host(const Job& job) VPMM_REQUIRES(pool_lock);
  Result<bool> wait_for_work(MutexLock& lock, const pool::Caller& caller,
                             FunctionRef<bool()> is_enough) VPMM_REQUIRES(pool_lock);

  Device& device_;
  Footprint& footprint_;
  report::Recorder& recorder_;
  Prover& prover_;
  arena::Arenas& arenas_;
  Allocations& allocations_;
  std::uint64_t pauses_ VPMM_GUARDED_BY(pool_lock) = 0;  // requests that waited instead of growth
  std::uint64_t misses_ VPMM_GUARDED_BY(pool_lock) = 0;  // requests without fitting idle memory
};

}  // namespace vpmm::context
