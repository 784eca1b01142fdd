// SPDX-License-Identifier: Apache-2.0
// context: entry into a device and exit, and detection of a dead CUDA context.
#pragma once

#include <atomic>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "context/parts.hpp"
#include "context/streams_kept.hpp"
#include "context/totals.hpp"
#include "context/visits.hpp"
#include "driver/context_scope.hpp"

namespace vpmm::context {

class Entrance {
 public:
  Entrance(Parts& parts, Totals& totals) : parts_(parts), device_(parts.device), totals_(totals) {}

  // Opens the device's CUDA context at first use, and after a reset by others.
  Result<void> check_alive();
  Result<void> open() VPMM_REQUIRES(pool_lock);
  // Completes work of dead contexts other than the primary one.
  Result<void> forget_dead_others() VPMM_REQUIRES(pool_lock);

  // --- at the start of a call ---
  // Note [A hit needs no visit]
  // Tells what the last visit left; without the lock.
  bool is_visit_due() const { return is_visit_due_.load(std::memory_order_relaxed); }
  // The timeline of the caller if its call may go without a visit. Null: a visit is due.
  time::Timeline* timeline_without_visit(const StreamFront::Client& client)
      VPMM_REQUIRES(pool_lock);
  // While caches are bounded: proves frees if more is pending than in use.
  void learn_if_much_is_pending() VPMM_REQUIRES(pool_lock);
  // --- at the end of a call ---
  // Closes the caller's timeline if due: its stream is certainly alive.
  void leave(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // VPMM_RELEASE_THRESHOLD, and the bound of memory pending for any stream.
  void keep_bounds(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void bound_any_stream(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void trim_above_threshold(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Runs after the call's own work. An exception for want of host memory is dropped: the next call
  // catches up.
  template <typename F>
  static void afterwards(F&& work) noexcept VPMM_REQUIRES(pool_lock) {
    try {
      std::forward<F>(work)();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the call itself has succeeded
    }
  }

 private:
  friend class Visit;
  void forget_dead(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  void forget_work_of(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  bool look_for_idle_streams() VPMM_REQUIRES(pool_lock);
  bool is_forgotten(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  bool is_quiet() const VPMM_REQUIRES(pool_lock);

  Parts& parts_;
  Device& device_;
  Totals& totals_;
  Visits visits_;
  StreamsKept streams_kept_;
  std::atomic<bool> is_visit_due_{true};
  // The last look for idle streams found frees without an event.
  bool sees_unproven_ VPMM_GUARDED_BY(pool_lock) = false;
  // A reset by others was noticed, and no event covers the cached memory yet.
  bool has_noticed_reset_ VPMM_GUARDED_BY(pool_lock) = false;
};

// One public call on a device, with its CUDA context current and its lock held. Sets the current
// context before the lock, and restores it after. Check status() first: after an error the lock may
// be released, although the analysis assumes that it is held.
class VPMM_SCOPED_LOCK Visit {
 public:
  explicit Visit(Entrance& entrance) VPMM_ACQUIRE(pool_lock);
  ~Visit() VPMM_RELEASE();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  const Result<void>& status() const { return status_; }
  MutexLock& lock() { return *lock_; }
  // Identifies the caller, and keeps its timeline until the visit ends, also while the lock is
  // dropped.
  Result<pool::Caller> identify(const pool::Stream& stream, const time::TimelineId* bound = nullptr)
      VPMM_REQUIRES(pool_lock);
  // Note [A reset has nobody beside it]
  void begin_reset() VPMM_REQUIRES(pool_lock);
  void end_reset() VPMM_REQUIRES(pool_lock) { entrance_.visits_.end_reset(); }

 private:
  // Returns with or without the lock, which the analysis cannot follow.
  bool enter() VPMM_NO_THREAD_SAFETY_ANALYSIS;

  Entrance& entrance_;
  Parts& parts_;
  bool is_inside_ = false;  // counted by Visits
  time::Timeline* pinned_ = nullptr;
  Result<void> status_;
  std::optional<driver::ContextScope> scope_;
  std::optional<PoolLock> lock_;
  std::optional<HostPromise> promise_;
};

}  // namespace vpmm::context
