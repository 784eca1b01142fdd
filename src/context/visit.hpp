// context: one public call inside a device's context: opened, its CUDA context current, its lock
// held.
#pragma once

#include <optional>

#include "base/host_memory.hpp"
#include "context/device_context.hpp"
#include "driver/context_scope.hpp"

namespace vpmm::context {

// The current context is changed before the lock is taken and put back after it is left. Check
// status() first: nothing is held when it is an error. The analysis takes it to be held all the
// same.
class VPMM_SCOPED_LOCK DeviceContext::Visit {
 public:
  explicit Visit(DeviceContext& context) VPMM_ACQUIRE(pool_lock);
  ~Visit() VPMM_RELEASE();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  const Result<void>& status() const { return status_; }
  MutexLock& lock() { return *lock_; }
  // Who calls. The caller's timeline is not retired before the visit ends, also while the lock is
  // dropped.
  Result<pool::Caller> identify(const pool::Stream& stream, const time::TimelineId* bound = nullptr)
      VPMM_REQUIRES(pool_lock);

 private:
  // The lock may be held or not when it returns, which the analysis cannot follow.
  bool enter() VPMM_NO_THREAD_SAFETY_ANALYSIS;

  DeviceContext& context_;
  bool is_inside_ = false;  // counted by Visits
  time::Timeline* pinned_ = nullptr;
  Result<void> status_;
  std::optional<driver::ContextScope> scope_;
  std::optional<PoolLock> lock_;
  std::optional<HostPromise> promise_;
};

}  // namespace vpmm::context
