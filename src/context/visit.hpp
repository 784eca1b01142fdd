// context: one public call inside a device's context: opened, its CUDA context current, its lock held.
#pragma once

#include <optional>

#include "context/device_context.hpp"

namespace vpmm::context {

// The current context is changed before the lock is taken and put back after it is left. Check status() first: nothing
// is held when it is an error.
class DeviceContext::Visit {
 public:
  explicit Visit(DeviceContext& context);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  const Result<void>& status() const { return status_; }
  MutexLock& lock() { return *lock_; }
  // Who calls. The caller's timeline is not retired before the visit ends, also while the lock is dropped.
  Result<pool::Caller> identify(const Stream& stream, Bound* bound = nullptr);

 private:
  bool enter();

  DeviceContext& context_;
  bool is_inside_ = false;  // counted in visits_
  time::Timeline* pinned_ = nullptr;
  Result<void> status_;
  std::optional<driver::ContextScope> scope_;
  std::optional<MutexLock> lock_;
};

}  // namespace vpmm::context
