// base: a mutex that clang's thread-safety analysis understands.
#pragma once

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

namespace vpmm {

// Tells the processor that this thread waits for another.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whoever finds it taken tries for a few microseconds before it sleeps: what is done under it takes less, and to be
// woken takes more.
class VPMM_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() VPMM_THREAD_ATTRIBUTE(acquire_capability()) {
    for (int tries = 0; tries < kTries; ++tries) {
      if (mutex_.try_lock()) return;
      for (int i = 0; i < kPauses; ++i) spin_pause();
    }
    mutex_.lock();
  }
  void unlock() VPMM_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() VPMM_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  static constexpr int kTries = 40;
  static constexpr int kPauses = 4;
  std::mutex mutex_;
};

// Holds a Mutex for a scope; unlock() and lock() leave and re-enter it inside the scope.
class VPMM_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) VPMM_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  // Takes over one that try_lock() took.
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

  // The same for functions that were handed a held lock to leave meanwhile; the analysis sees one function at a time
  // and cannot follow that.
  void leave() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { unlock(); }
  void enter() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { lock(); }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

}  // namespace vpmm
