// SPDX-License-Identifier: Apache-2.0
// base: starts the library's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <thread>
#include <utility>

#include "base/message.hpp"
#include "base/result.hpp"

namespace vpmm {

// Threads that the caller starts during its life block all signals, which are for the program's own
// threads.
class QuietThreads {
 public:
  QuietThreads() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~QuietThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  QuietThreads(const QuietThreads&) = delete;
  QuietThreads& operator=(const QuietThreads&) = delete;

 private:
  sigset_t before_{};
};

// Starts a detached thread with a name for debuggers (15 characters at most) and all signals
// blocked. host_out_of_memory: cannot be started. A forked child
// has no such thread.
template <typename Work>
Result<void> start_quiet_thread(const char* name, Work work) {
  const QuietThreads quiet;
  try {
    std::thread([name, work = std::move(work)] {
      pthread_setname_np(pthread_self(), name);
      work();
    }).detach();
    return {};
  } catch (const std::exception& exception) {
    return Error{ErrorCode::host_out_of_memory,
                 message_of("the thread `{}` cannot be started: {}", name, exception.what())};
  }
}

}  // namespace vpmm
