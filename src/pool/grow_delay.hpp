// SPDX-License-Identifier: Apache-2.0
// pool: longest time for which a request waits for pending memory before the pool grows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm::pool {

// Note [Grow delay]
// Memory freed by other streams is often complete sooner than new memory is mapped, and growth is
// kept. So before growth sets a record, the host polls for a moment, without the lock, for pending
// memory to complete. No stream is put behind another, and a long kernel costs at most that moment.
// The delay is proportional to the share of mapped memory that it may spare: doubling a program's
// memory costs about kLongestNs * kWholeShare * ln 2, a quarter of a second, in all. Little is not
// worth a delay, however little is mapped (kLeastWhole).
struct GrowDelay {
  // Delay for a share of 1/kWholeShare of mapped memory and more. Halved: several streams of short
  // kernels hold more; doubled: a request that grows waits longer for longer kernels.
  static constexpr std::uint64_t kLongestNs = 12'000'000;
  static constexpr Bytes kWholeShare = 32;
  // Least denominator of the share. Halved: small programs wait twice as long; doubled: they hold
  // more.
  static constexpr Bytes kLeastWhole = 128 * kMiB;
  static constexpr std::uint64_t kBetweenLooksNs =
      20'000;  // requested; the system may take several times that

  // Delay in nanoseconds. `spared`: bytes of growth that pending memory may replace.
  static std::uint64_t longest_ns(Bytes spared, Bytes mapped) {
    const double share = static_cast<double>(spared) /
                         static_cast<double>(std::max(mapped / kWholeShare, kLeastWhole));
    return static_cast<std::uint64_t>(std::min(share, 1.0) * static_cast<double>(kLongestNs));
  }
};

}  // namespace vpmm::pool
