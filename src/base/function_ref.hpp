// SPDX-License-Identifier: Apache-2.0
// base: parameter that refers to a function: no copy, no memory for captures.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "base/mutex.hpp"

namespace vpmm {

template <typename Signature>
class FunctionRef;

// Requires: the function outlives the reference.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  // Exempt from the linter's rules: implicit for lambdas as arguments (explicit-constructor),
  // limited by the requires clause to neither copy nor move (forwarding-overload), keeps only the
  // address (missing-std-forward).
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
           std::is_invocable_r_v<R, F&, Args...>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      FunctionRef(F&& f)  // NOLINT(cppcoreguidelines-missing-std-forward)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_(&call<std::remove_reference_t<F>>) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  // The analysis checks the function's lock at its definition; it cannot check the caller's.
  template <typename F>
  static R call(void* object, Args... args) VPMM_NO_THREAD_SAFETY_ANALYSIS {
    return (*static_cast<F*>(object))(std::forward<Args>(args)...);
  }

  void* object_;
  R (*call_)(void* object, Args... args);
};

}  // namespace vpmm
