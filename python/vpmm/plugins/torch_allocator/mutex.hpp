// SPDX-License-Identifier: Apache-2.0
// torch_allocator: a mutex for clang's thread-safety analysis: a wheel has no src/base/mutex.hpp.
#pragma once

#include <mutex>

#if defined(__clang__)
#define VPMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define VPMM_THREAD_ATTRIBUTE(x)
#endif
#define VPMM_GUARDED_BY(m) VPMM_THREAD_ATTRIBUTE(guarded_by(m))
#define VPMM_REQUIRES(...) VPMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define VPMM_ACQUIRE(...) VPMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define VPMM_RELEASE(...) VPMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

namespace vpmm::torch_plugin {

// Note [Order of locks]
// Blocks, then Segments; History and PrivatePools alone. Events arrive under the pool's own lock
// and take Segments, then History. So no function of the pool is called under any of these, but
// under the locks of what happens once: Pool's opening, PrivatePool's making, Blocks' sharing.
class VPMM_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() VPMM_ACQUIRE() { mutex_.lock(); }
  void unlock() VPMM_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class VPMM_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) VPMM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() VPMM_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace vpmm::torch_plugin
