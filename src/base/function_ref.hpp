// base: a function that somebody else keeps, as a parameter: no copy, and no memory for what it captured.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace vpmm {

template <typename Signature>
class FunctionRef;

// Requires: what it was made of outlives it.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, Args...>)
      // NOLINTNEXTLINE(google-explicit-constructor): implicit, for lambdas as arguments
      FunctionRef(F&& f)  // NOLINT(cppcoreguidelines-missing-std-forward): only its address is kept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void* object, Args... args);
};

}  // namespace vpmm
