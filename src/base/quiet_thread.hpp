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
#include "base/scope_exit.hpp"

namespace vpmm {

// Starts a detached thread with a name for debuggers (15 characters at most); blocks all signals,
// which are for the program's own threads. host_out_of_memory: cannot be started. A forked child
// has no such thread.
template <typename Work>
Result<void> start_quiet_thread(const char* name, Work work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const ScopeExit unblock([&] { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
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
