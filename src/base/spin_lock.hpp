// SPDX-License-Identifier: Apache-2.0
// base: a lock for critical sections of a few dozen instructions.
#pragma once

#include <atomic>
#include <thread>

#include "base/mutex.hpp"

namespace vpmm {

// One atomic exchange to take, one store to leave. A long wait yields, so that a holder that lost
// its processor gets it back. Not recursive.
class VPMM_THREAD_ATTRIBUTE(capability("mutex")) SpinLock {
 public:
  void lock() noexcept VPMM_THREAD_ATTRIBUTE(acquire_capability()) {
    if (!held_.exchange(true, std::memory_order_acquire)) return;
    wait();
  }
  void unlock() noexcept VPMM_THREAD_ATTRIBUTE(release_capability()) {
    held_.store(false, std::memory_order_release);
  }

 private:
  static constexpr int kSpins = 128;

  void wait() noexcept {
    for (int spins = 0;; ++spins) {
      if (!held_.load(std::memory_order_relaxed) &&
          !held_.exchange(true, std::memory_order_acquire))
        return;
      if (spins < kSpins) {
        spin_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::atomic<bool> held_{false};
};

class VPMM_SCOPED_LOCK SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) noexcept VPMM_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() VPMM_RELEASE() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace vpmm
