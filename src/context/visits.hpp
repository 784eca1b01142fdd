// context: how many calls are inside a device, and a reset that has nobody beside it.
#pragma once

#include <condition_variable>
#include <cstdint>

#include "base/mutex.hpp"

namespace vpmm::context {

// Note [A reset has nobody beside it]
// vpmm_reset may come beside calls of other threads that use no stream. It waits until those that
// dropped the lock have ended, and keeps others out meanwhile.
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

  // Until end_reset() nobody enters.
  void begin_reset() VPMM_REQUIRES(pool_lock) { is_resetting_ = true; }
  // Until there is one visit only, the caller's.
  void wait_alone(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    ended_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return count_ == 1; });
  }
  void end_reset() VPMM_REQUIRES(pool_lock) {
    is_resetting_ = false;
    ended_.notify_all();
  }

 private:
  std::uint64_t count_ VPMM_GUARDED_BY(pool_lock) =
      0;  // in progress, perhaps with the lock dropped
  bool is_resetting_ VPMM_GUARDED_BY(pool_lock) = false;
  std::condition_variable_any ended_;
};

}  // namespace vpmm::context
