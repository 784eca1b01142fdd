// python: giving the interpreter's lock away and taking it, also while the interpreter ends.
//
// Note [A thread that comes back too late]
// A daemon thread that wants the interpreter's lock when the interpreter has begun to end does not get it: before
// Python 3.14 it is ended by pthread_exit, which unwinds its stack through C++ that may not be left so, and the process
// aborts. So the unwinding stops here and the thread sleeps, as in newer Pythons, until the process is gone.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace vpmm::python {

// Runs `take`, which ends with the lock held, or sleeps for ever.
template <typename Take>
void take_lock(Take&& take) noexcept {
  try {
    take();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
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
