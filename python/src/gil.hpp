// SPDX-License-Identifier: Apache-2.0
// python: releases and takes the GIL, also while the interpreter exits.
//
// Note [A thread that comes back too late]
// A daemon thread that wants the GIL after the interpreter has begun to exit does not get it.
// Before Python 3.14 pthread_exit ends the thread and unwinds its stack through C++ frames that do
// not allow it, and the process aborts. So the unwinding stops in the first frame, which allows it,
// and the thread sleeps, as in newer Pythons, until the process is gone. A destructor stops it,
// because no handler of libc++'s is called for it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace vpmm::python {

// Runs `take`, which returns with the lock held, or sleeps forever. Its callers may not be unwound.
template <typename Take>
[[gnu::noinline]] void take_lock(Take&& take) {
  struct Sleep {
    bool has_lock = false;
    ~Sleep() {
      while (!has_lock) pause();
    }
  } sleep;
  take();
  sleep.has_lock = true;
}

class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() {
    take_lock([this] { PyEval_RestoreThread(state_); });
  }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

class WithLock {
 public:
  WithLock() {
    take_lock([this] { state_ = PyGILState_Ensure(); });
  }
  ~WithLock() { PyGILState_Release(state_); }
  WithLock(const WithLock&) = delete;
  WithLock& operator=(const WithLock&) = delete;

 private:
  PyGILState_STATE state_{};
};

}  // namespace vpmm::python
