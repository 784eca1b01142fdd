// pool tests: a pool that may have 40 pages: by its own limit, or on a GPU that other processes hold half of.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {

using driver::Call;
using driver::CuResult;

constexpr Bytes kPages = 40;  // all that there is

enum class Limit { capacity, others };

inline std::string to_string(Limit limit) { return limit == Limit::capacity ? "capacity" : "others"; }
inline void PrintTo(Limit limit, std::ostream* out) { *out << to_string(limit); }
inline auto every_limit() { return testing::Values(Limit::capacity, Limit::others); }
inline std::string name_of_limit(const testing::TestParamInfo<Limit>& tested) { return to_string(tested.param); }

// Calls that a test wants to meet; what is no success is given to the pool instead of the call.
class HookedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void sleep_ns(std::uint64_t ns) override {
    ForwardingDriver::sleep_ns(ns);
    if (on_sleep) std::exchange(on_sleep, {})();
  }
  std::map<Call, std::function<CuResult()>> on;
  std::function<void()> on_sleep;  // once
  std::map<Call, std::uint64_t> counts;

 private:
  std::optional<CuResult> before(Call call) override {
    {
      const std::lock_guard lock(mutex_);
      ++counts[call];
    }
    const auto hook = on.find(call);
    if (hook == on.end()) return std::nullopt;
    const CuResult result = hook->second();
    return result == CuResult::success ? std::nullopt : std::optional(result);
  }
  std::mutex mutex_;
};

class LimitedPool : public PoolFixture<HookedDriver> {
 protected:
  explicit LimitedPool(Limit limit) : PoolFixture(options(limit)) {
    if (limit == Limit::capacity) config.capacity = kPages * kPage;
  }
  static driver::sim::SimOptions options(Limit limit) {
    driver::sim::SimOptions options;
    options.capacity = 2 * kPages * kPage;
    if (limit == Limit::others) options.used_by_others = kPages * kPage;
    return options;
  }
  // All pages are mapped, half of them idle and none next to another. Gives those that live.
  Vector<DevicePtr> take_every_other_page() {
    Vector<DevicePtr> live;
    for (Bytes i = 0; i < kPages; ++i) live.push_back(take(1, a));
    for (std::size_t i = 0; i < live.size(); ++i) {
      give_back(live[i]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return live;
  }
};

}  // namespace vpmm::pool
