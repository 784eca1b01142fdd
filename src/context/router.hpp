// SPDX-License-Identifier: Apache-2.0
// context: the choice of a server for a request.
#pragma once

#include "context/captures.hpp"
#include "context/device.hpp"
#include "context/footprint.hpp"
#include "context/prover.hpp"
#include "context/slow_path.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

class Router {
 public:
  Router(Device& device, Captures& captures, Footprint& footprint, report::Recorder& recorder,
         Prover& prover, arena::Arenas& arenas, Allocations& allocations)
      : device_(device),
        captures_(captures),
        footprint_(footprint),
        recorder_(recorder),
        prover_(prover),
        slow_path_(device, footprint, recorder, prover, arenas, allocations) {}

  Result<DevicePtr> allocate(MutexLock& lock, const pool::Request& request,
                             const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Aligns requests of up to a page to pages, so that none spans two chunks and keeps both from
  // moving.
  pool::PageRequest pages_for(const pool::Request& request) const;
  // VPMM_PAGES, at the first allocation; only a broken context is an error.
  Result<void> preallocate_once(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Lets the caller's stream free the whole pages at `begin` by itself.
  void enlist(DevicePtr begin, Bytes bytes, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool has_preallocated() const VPMM_REQUIRES(pool_lock) { return has_preallocated_; }
  SlowPath& slow_path() { return slow_path_; }

 private:
  Result<DevicePtr> allocate_guarded(MutexLock& lock, const pool::Request& request,
                                     const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_unguarded(MutexLock& lock, const pool::Request& request,
                                       const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<void> check_alignment(Bytes alignment) const;
  Result<DevicePtr> allocate_in_arena(MutexLock& lock, const pool::Request& request,
                                      const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_pages(MutexLock& lock, const pool::Request& request,
                                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_one_chunk(MutexLock& lock, const pool::Request& request,
                                       const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> allocate_stream_ordered(MutexLock& lock, const pool::Request& request,
                                            const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<void> keep_capacity(MutexLock& lock, DevicePtr begin, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  Device& device_;
  Captures& captures_;
  Footprint& footprint_;
  report::Recorder& recorder_;
  Prover& prover_;
  SlowPath slow_path_;
  bool has_preallocated_ VPMM_GUARDED_BY(pool_lock) = false;
};

}  // namespace vpmm::context
