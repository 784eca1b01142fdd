// base: a function that somebody else keeps, as a parameter: no copy, and no memory for what it
// captured.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "base/mutex.hpp"

namespace vpmm {

template <typename Signature>
class FunctionRef;

// Requires: what it was made of outlives it.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  // Why the linter's rules do not hold here: it is implicit for lambdas as arguments
  // (explicit-constructor), the requires clause leaves copies and moves alone
  // (forwarding-overload), and only the address is kept (missing-std-forward).
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
           std::is_invocable_r_v<R, F&, Args...>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      FunctionRef(F&& f)  // NOLINT(cppcoreguidelines-missing-std-forward)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_(&call<std::remove_reference_t<F>>) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  // Which lock the function needs is checked where it is written, and that whoever calls it has it
  // is not.
  template <typename F>
  static R call(void* object, Args... args) VPMM_NO_THREAD_SAFETY_ANALYSIS {
    return (*static_cast<F*>(object))(std::forward<Args>(args)...);
  }

  void* object_;
  R (*call_)(void* object, Args... args);
};

}  // namespace vpmm
