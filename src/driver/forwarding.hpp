// SPDX-License-Identifier: Apache-2.0
// driver: base of decorators: passes every call to another driver, with one hook before and after.
#pragma once

#include <cstdint>
#include <optional>

#include "driver/driver.hpp"

namespace vpmm::driver {

// `inner` must outlive this. As thread-safe as the hooks are.
class ForwardingDriver : public Driver {
 public:
  explicit ForwardingDriver(Driver& inner) : inner_(inner) {}

  const char* name() const override { return inner_.name(); }
  bool has(Call call) const override { return inner_.has(call); }
  std::uint64_t now_ns() override { return inner_.now_ns(); }
  void sleep_ns(std::uint64_t ns) override { inner_.sleep_ns(ns); }
  MemoryObserver* memory_observer() override { return inner_.memory_observer(); }

#define VPMM_DRIVER_METHOD(name, parameters, arguments) CuResult name parameters override;
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

 protected:
  // Returns a result in place of the inner call, or nullopt.
  virtual std::optional<CuResult> before(Call /*call*/) { return std::nullopt; }
  virtual bool is_timed(Call call) const { return is_memory_call(call); }
  // `duration_ns`: by now_ns() where is_timed(call), otherwise 0; other threads may have advanced a
  // virtual clock meanwhile. Not called after an answer of before().
  virtual void after(Call /*call*/, CuResult /*result*/, std::uint64_t /*duration_ns*/) {}

 private:
  template <typename F>
  CuResult forward(Call call, F&& call_inner);

  Driver& inner_;
};

}  // namespace vpmm::driver
