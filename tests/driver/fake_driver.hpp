// SPDX-License-Identifier: Apache-2.0
// tests/driver: a driver that does nothing, remembers what it was asked and answers what it was
// told.
#pragma once

#include <atomic>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

#include "driver/driver.hpp"

namespace vpmm::driver {

class FakeDriver final : public Driver {
 public:
  const char* name() const override { return "fake"; }
  bool has(Call call) const override { return call != missing; }
  std::uint64_t now_ns() override { return clock_ns; }
  void sleep_ns(std::uint64_t ns) override { clock_ns += ns; }

// std::tie names the arguments, which are of no interest here, so that none counts as unused.
#define VPMM_DRIVER_METHOD(name, parameters, arguments) \
  CuResult name parameters override {                   \
    (void)std::tie arguments;                           \
    return remember(Call::name);                        \
  }
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

  Call missing = Call::ctx_record_event;
  CuResult answer = CuResult::success;
  std::uint64_t ns_per_call = 100;
  std::atomic<std::uint64_t> clock_ns{0};
  std::vector<Call> calls;  // filled when `remembering`, which is for one thread only
  bool remembering = true;

 private:
  CuResult remember(Call call) {
    clock_ns += ns_per_call;
    if (remembering) calls.push_back(call);
    return answer;
  }
};

template <typename... A>
CuResult call_method(Driver& driver, CuResult (Driver::*method)(A...)) {
  std::tuple<std::remove_cv_t<std::remove_reference_t<A>>...> values{};
  return std::apply([&](auto&... value) { return (driver.*method)(static_cast<A>(value)...); },
                    values);
}

// Makes `call` with arguments of no meaning.
inline CuResult invoke(Driver& driver, Call call) {
  switch (call) {
#define VPMM_DRIVER_CALL(name, kind) \
  case Call::name:                   \
    return call_method(driver, &Driver::name);
#include "driver/calls.def"
#undef VPMM_DRIVER_CALL
  }
  return CuResult::unknown;
}

inline std::vector<Call> every_call() {
  std::vector<Call> calls;
  for (std::size_t i = 0; i < kCallCount; ++i) calls.push_back(static_cast<Call>(i));
  return calls;
}

}  // namespace vpmm::driver
