// SPDX-License-Identifier: Apache-2.0
// tests: a driver that lets a test meet the calls it names.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "driver/forwarding.hpp"

namespace vpmm::test {

// What a hook gives that is no success is given to the caller instead of the call.
class HookedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void sleep_ns(std::uint64_t ns) override {
    ++sleeps;
    ForwardingDriver::sleep_ns(ns);
    if (on_sleep) std::exchange(on_sleep, {})();
  }
  std::map<driver::Call, std::function<driver::CuResult()>> on;
  std::function<void()> on_sleep;  // once, on the thread that slept
  std::map<driver::Call, std::uint64_t> counts;
  std::atomic<std::uint64_t> sleeps{0};

 private:
  std::optional<driver::CuResult> before(driver::Call call) override {
    {
      const std::lock_guard lock(mutex_);
      ++counts[call];
    }
    const auto hook = on.find(call);
    if (hook == on.end()) return std::nullopt;
    const driver::CuResult result = hook->second();
    return result == driver::CuResult::success ? std::nullopt : std::optional(result);
  }
  std::mutex mutex_;
};

}  // namespace vpmm::test
