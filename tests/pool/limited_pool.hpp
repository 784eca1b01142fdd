// SPDX-License-Identifier: Apache-2.0
// pool tests: a pool that may have 40 pages: by its own limit, or on a GPU that other processes
// hold half of.
#pragma once

#include <ostream>
#include <string>

#include "pool/pool_fixture.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::pool {

using driver::Call;
using driver::CuResult;
using test::HookedDriver;

constexpr Bytes kPages = 40;  // all that there is

enum class Limit { capacity, others };

inline std::string to_string(Limit limit) {
  return limit == Limit::capacity ? "capacity" : "others";
}
inline void PrintTo(Limit limit, std::ostream* out) { *out << to_string(limit); }
inline auto every_limit() { return ::testing::Values(Limit::capacity, Limit::others); }
inline std::string name_of_limit(const ::testing::TestParamInfo<Limit>& tested) {
  return to_string(tested.param);
}

class LimitedPool : public PoolFixture<HookedDriver> {
 protected:
  explicit LimitedPool(Limit limit) : PoolFixture(options(limit)) {
    if (limit == Limit::capacity) config.limits.capacity = kPages * kPage;
  }
  static driver::sim::SimOptions options(Limit limit) {
    driver::sim::SimOptions options;
    options.capacity = 2 * kPages * kPage;
    if (limit == Limit::others) options.used_by_others = kPages * kPage;
    return options;
  }
  // All pages are mapped, half of them idle and none next to another.
  void take_every_other_page() {
    Vector<DevicePtr> all;
    for (Bytes i = 0; i < kPages; ++i) all.push_back(take(1, a));
    for (std::size_t i = 0; i < all.size(); i += 2) give_back(all[i]);
  }
};

}  // namespace vpmm::pool
