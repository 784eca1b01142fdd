// SPDX-License-Identifier: Apache-2.0
// base: a mutex, and the roles of locks for clang's thread-safety analysis.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define VPMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define VPMM_THREAD_ATTRIBUTE(x)
#endif
#define VPMM_GUARDED_BY(m) VPMM_THREAD_ATTRIBUTE(guarded_by(m))
#define VPMM_REQUIRES(...) VPMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define VPMM_EXCLUDES(...) VPMM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define VPMM_ACQUIRE(...) VPMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define VPMM_RELEASE(...) VPMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define VPMM_SCOPED_LOCK VPMM_THREAD_ATTRIBUTE(scoped_lockable)
// Needs a reason beside it.
#define VPMM_NO_THREAD_SAFETY_ANALYSIS VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace vpmm {

// Note [Locks by their roles]
// Data guarded by one lock is spread over classes without the lock: a pool's timelines, regions and
// chunks do not know their context. So the analysis is told of roles. A guard takes the lock's
// role, and code that needs the lock names the role. That it is the lock of this very pool, or
// stream, is not analysed. Order: the pool's first, then one cache's.
struct VPMM_THREAD_ATTRIBUTE(capability("role")) LockRole {};
inline LockRole pool_lock;   // of a device's context, for all data of the device
inline LockRole cache_lock;  // of one stream's cache (small::StreamCache)

// Tells the processor that this thread waits for another.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Retries for a few microseconds before it sleeps: critical sections are shorter, and a wake-up
// takes longer.
class VPMM_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() VPMM_THREAD_ATTRIBUTE(acquire_capability()) {
    bool is_mine = mutex_.try_lock();
    for (int tries = 1; tries < kTries && !is_mine; ++tries) {
      for (int i = 0; i < kPauses; ++i) spin_pause();
      is_mine = mutex_.try_lock();
    }
    if (!is_mine) mutex_.lock();
    is_taken_.store(true, std::memory_order_relaxed);
  }
  void unlock() VPMM_THREAD_ATTRIBUTE(release_capability()) {
    is_taken_.store(false, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool try_lock() VPMM_THREAD_ATTRIBUTE(try_acquire_capability(true)) {
    const bool is_mine = mutex_.try_lock();
    if (is_mine) is_taken_.store(true, std::memory_order_relaxed);
    return is_mine;
  }
  // Approximate, for callers that would rather skip the work than wait. Any thread.
  bool is_taken() const { return is_taken_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kTries = 40;
  static constexpr int kPauses = 4;
  std::mutex mutex_;
  std::atomic<bool> is_taken_{false};
};

// Holds a Mutex for a scope; unlock() and lock() leave and re-enter it inside the scope.
class VPMM_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) VPMM_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  // Takes over a mutex locked by try_lock().
  MutexLock(Mutex& mutex, std::adopt_lock_t /*is_held*/) VPMM_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() VPMM_THREAD_ATTRIBUTE(release_capability()) {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() VPMM_THREAD_ATTRIBUTE(release_capability()) {
    mutex_.unlock();
    held_ = false;
  }
  void lock() VPMM_THREAD_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }

  // Same for functions that were handed a held lock; the analysis sees one function at a time and
  // cannot follow that.
  void leave() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { unlock(); }
  void enter() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { lock(); }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Holds the mutex of a device's context. Only such a guard takes a role, so its bodies are not
// analysed.
class VPMM_SCOPED_LOCK PoolLock : public MutexLock {
 public:
  explicit PoolLock(Mutex& mutex) VPMM_ACQUIRE(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS
      : MutexLock(mutex) {}
  PoolLock(Mutex& mutex, std::adopt_lock_t is_held) VPMM_REQUIRES(mutex)
      VPMM_ACQUIRE(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS : MutexLock(mutex, is_held) {}
  ~PoolLock() VPMM_RELEASE() {}
  PoolLock(const PoolLock&) = delete;
  PoolLock& operator=(const PoolLock&) = delete;
};

// Leaves a lock that the function was handed, with its role, for a scope.
class VPMM_SCOPED_LOCK Unlocked {
 public:
  explicit Unlocked(MutexLock& lock) VPMM_RELEASE(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS
      : lock_(lock) {
    lock_.leave();
  }
  ~Unlocked() VPMM_RELEASE() VPMM_NO_THREAD_SAFETY_ANALYSIS { lock_.enter(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  MutexLock& lock_;
};

}  // namespace vpmm
