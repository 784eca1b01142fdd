// SPDX-License-Identifier: Apache-2.0
// base: starts the library's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
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

// Stack of a thread: the system's usual one, or 512 KiB, for work without recursion or callbacks.
enum class ThreadStack { usual, small };

// Starts a detached thread with a name for debuggers (15 characters at most) and all signals
// blocked. host_out_of_memory: cannot be started. A forked child has no such thread.
template <typename Work>
Result<void> start_quiet_thread(const char* name, Work work,
                                ThreadStack stack = ThreadStack::usual) {
  struct Start {
    const char* name;
    Work work;
    static void* run(void* given) noexcept {
      const std::unique_ptr<Start> start(static_cast<Start*>(given));
      pthread_setname_np(pthread_self(), start->name);
      start->work();
      return nullptr;
    }
  };
  constexpr std::size_t kSmallStack = std::size_t{512} << 10;
  const QuietThreads quiet;
  std::unique_ptr<Start> start;
  try {
    start.reset(new Start{name, std::move(work)});
  } catch (const std::exception& exception) {
    return Error{ErrorCode::host_out_of_memory,
                 message_of("the thread `{}` cannot be started: {}", name, exception.what())};
  }
  pthread_attr_t attributes;
  int failed = pthread_attr_init(&attributes);
  if (failed == 0) {
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread{};
    if (stack == ThreadStack::small) pthread_attr_setstacksize(&attributes, kSmallStack);
    failed = pthread_create(&thread, &attributes, &Start::run, start.get());
    pthread_attr_destroy(&attributes);
  }
  if (failed == 0) {
    static_cast<void>(start.release());  // the thread's
    return {};
  }
  return Error{ErrorCode::host_out_of_memory,
               message_of("the thread `{}` cannot be started: {}", name, std::strerror(failed))};
}

}  // namespace vpmm
