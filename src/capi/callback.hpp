// SPDX-License-Identifier: Apache-2.0
// capi: callbacks of users, which may end the call that runs them with an error of their own.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/scope_exit.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

constexpr const char* kUnknownException = "an exception of unknown type was thrown";

// Thrown through the pool where a callback ended the call.
struct CallbackFailure {
  vpmm_status status = VPMM_OK;
  std::string text;
};

// Failure of the innermost callback that runs on this thread; null: none runs. Its status is
// VPMM_OK until vpmm_callback_fail. Note [Thread-local variables]
inline constinit thread_local CallbackFailure* callback_failure = nullptr;

// Runs an out-of-memory callback or a hook of a suspend.
template <typename Callback>
int run_callback(Callback&& callback) {
  CallbackFailure failure;
  int answer = 0;
  {
    CallbackFailure* const outer = std::exchange(callback_failure, &failure);
    const ScopeExit restore([&] { callback_failure = outer; });
    try {
      answer = callback();
    } catch (const std::exception&) {
      throw;
    } catch (...) {  // perhaps of another C++ runtime: no std::exception_ptr could hold it
      failure = {VPMM_ERROR_DRIVER_FAILED, kUnknownException};
    }
  }
  if (failure.status != VPMM_OK) throw CallbackFailure(std::move(failure));
  return answer;
}

}  // namespace vpmm::capi
