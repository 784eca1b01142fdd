// context: which GPU work is over, and how that becomes known: events, waits of the host, what a
// free waits for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>

#include "context/captures.hpp"
#include "context/device.hpp"
#include "context/peers.hpp"

namespace vpmm::context {

class Prover {
 public:
  Prover(Device& device, const Captures& captures, Peers& peers)
      : device_(device), captures_(captures), peers_(peers) {}

  // --- without waiting ---
  // Asks the events of at most so many timelines. True: something is complete that was not known to
  // be.
  Result<bool> learn(std::size_t most) VPMM_REQUIRES(pool_lock);
  // Phase 0 of every request: what is complete, then zombies, then frees that waited for it.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // A context-wide event breaks every capture of the context, so it is not for times of capture.
  bool may_record_context_event() VPMM_REQUIRES(pool_lock);
  // Closes everything by events. True: something was closed.
  bool prove_everything() VPMM_REQUIRES(pool_lock);
  // The same where enough of what has no stream was freed.
  void prove_if_due() VPMM_REQUIRES(pool_lock);
  bool knows_captures() const VPMM_REQUIRES(pool_lock) { return captures_.are_known(); }
  // True: something became complete, because the GPU has kept pace.
  bool prove_now() VPMM_REQUIRES(pool_lock);

  // --- waiting, without the lock ---
  // Note [A wait for the context keeps captures from beginning]
  void begin_wait() VPMM_REQUIRES(pool_lock) { ++waits_; }
  void end_wait() VPMM_REQUIRES(pool_lock);
  void await_no_wait(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  driver::CuResult wait_for_contexts(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // For everything that was queued before. True: something is complete by that.
  Result<bool> wait_for_everything(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // The last resort where events cannot prove. False while anybody captures.
  bool synchronize(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Until what is pending for any stream is little enough.
  Result<void> bound_any_stream(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void count_host_wait() VPMM_REQUIRES(pool_lock) { ++host_waits_; }
  std::uint64_t host_waits() const VPMM_REQUIRES(pool_lock) { return host_waits_; }

 private:
  Result<void> wait_for(MutexLock& lock, std::shared_ptr<time::Event> proof)
      VPMM_REQUIRES(pool_lock);

  Device& device_;
  const Captures& captures_;
  Peers& peers_;
  std::uint64_t host_waits_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t waits_ VPMM_GUARDED_BY(pool_lock) = 0;  // for contexts, in progress
  std::condition_variable_any wait_ended_;
};

}  // namespace vpmm::context
