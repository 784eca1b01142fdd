// SPDX-License-Identifier: Apache-2.0
// context: proof that GPU work is complete, by events and waits of the host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>

#include "context/captures.hpp"
#include "context/device.hpp"
#include "context/footprint.hpp"
#include "context/peers.hpp"

namespace vpmm::context {

class Prover {
 public:
  Prover(Device& device, const Captures& captures, Peers& peers, Footprint& footprint)
      : device_(device), captures_(captures), peers_(peers), footprint_(footprint) {}

  // --- without waiting ---
  // Queries events of at most `most` timelines. Returns true if work is newly complete.
  Result<bool> learn(std::size_t most) VPMM_REQUIRES(pool_lock);
  // Phase 0 of every request: queries events, then settles the driver's pool and the pool.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Unmaps guarded memory that was freed and is complete, at most so many allocations.
  Result<void> settle_guarded(MutexLock& lock, std::size_t most) VPMM_REQUIRES(pool_lock);
  // Returns false during a capture: a context-wide event breaks every capture of the context.
  bool may_record_context_event() VPMM_REQUIRES(pool_lock);
  // Closes all timelines by events. Returns true if any was closed.
  bool prove_everything() VPMM_REQUIRES(pool_lock);
  // Same if enough any-stream memory was freed.
  void prove_if_due() VPMM_REQUIRES(pool_lock);
  bool knows_captures() const VPMM_REQUIRES(pool_lock) { return captures_.are_known(); }
  // Closes and queries all timelines. Returns true if work is newly complete.
  bool prove_now() VPMM_REQUIRES(pool_lock);

  // --- waiting, without the lock ---
  // Note [A wait for the context keeps captures from beginning]
  void begin_wait() VPMM_REQUIRES(pool_lock) { ++waits_; }
  void end_wait() VPMM_REQUIRES(pool_lock);
  void await_no_wait(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  driver::CuResult wait_for_contexts(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Waits for all work queued before. Returns true if work is newly complete.
  Result<bool> wait_for_everything(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Same, as a last resort without events. Returns false also during a capture or after an error.
  bool synchronize(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Waits until pending any-stream memory is below its bound.
  Result<void> bound_any_stream(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void count_host_wait() VPMM_REQUIRES(pool_lock) { ++host_waits_; }
  std::uint64_t host_waits() const VPMM_REQUIRES(pool_lock) { return host_waits_; }

 private:
  Result<void> wait_for(MutexLock& lock, std::shared_ptr<time::Event> proof)
      VPMM_REQUIRES(pool_lock);

  Device& device_;
  const Captures& captures_;
  Peers& peers_;
  Footprint& footprint_;
  std::uint64_t host_waits_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t waits_ VPMM_GUARDED_BY(pool_lock) = 0;  // waits for contexts in progress
  std::condition_variable_any wait_ended_;
};

}  // namespace vpmm::context
