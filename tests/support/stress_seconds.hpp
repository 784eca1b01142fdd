// SPDX-License-Identifier: Apache-2.0
// tests: how long the stress tests that repeat rounds go on.
#pragma once

#include <chrono>
#include <cstdlib>

namespace vpmm::test {

// VPMM_STRESS_SECONDS from now, or `otherwise`.
inline std::chrono::steady_clock::time_point end_of_stress(std::chrono::seconds otherwise) {
  const char* const asked = std::getenv("VPMM_STRESS_SECONDS");
  const std::chrono::seconds length =
      asked == nullptr ? otherwise : std::chrono::seconds(std::atoll(asked));
  return std::chrono::steady_clock::now() + length;
}

}  // namespace vpmm::test
