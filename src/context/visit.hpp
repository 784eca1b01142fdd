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
  const Result<void>& status() const { return status_; }
  MutexLock& lock() { return *lock_; }

 private:
  Result<void> status_;
  std::optional<driver::ContextScope> scope_;
  std::optional<MutexLock> lock_;
};

}  // namespace vpmm::context
