// SPDX-License-Identifier: Apache-2.0
// bench/harness: host time.
#pragma once

#include <chrono>
#include <cstdint>

namespace vpmm::bench {

using Clock = std::chrono::steady_clock;

inline std::uint64_t ns_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}
inline double seconds_since(Clock::time_point start) {
  return static_cast<double>(ns_since(start)) * 1e-9;
}

}  // namespace vpmm::bench
