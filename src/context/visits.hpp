// SPDX-License-Identifier: Apache-2.0
// context: the number of calls inside a device, and a reset that runs alone.
#pragma once

#include <condition_variable>
#include <cstdint>

#include "base/mutex.hpp"

namespace vpmm::context {

// Note [A reset has nobody beside it]
// vpmm_reset may come beside calls without a stream on other threads. It keeps new calls out, and
// waits for those in progress that dropped the lock.
class Visits {
 public:
  void wait_to_enter(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    ended_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return !is_resetting_; });
  }
  void begin() VPMM_REQUIRES(pool_lock) { ++count_; }
  void end() VPMM_REQUIRES(pool_lock) {
    --count_;
    if (is_resetting_) ended_.notify_all();
  }

  // Keeps calls out until end_reset().
  void begin_reset() VPMM_REQUIRES(pool_lock) { is_resetting_ = true; }
  // Waits until the caller's visit is the only one.
  void wait_alone(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    ended_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return count_ == 1; });
  }
  void end_reset() VPMM_REQUIRES(pool_lock) {
    is_resetting_ = false;
    ended_.notify_all();
  }

 private:
  std::uint64_t count_ VPMM_GUARDED_BY(pool_lock) = 0;  // in progress, with or without the lock
  bool is_resetting_ VPMM_GUARDED_BY(pool_lock) = false;
  std::condition_variable_any ended_;
};

}  // namespace vpmm::context
