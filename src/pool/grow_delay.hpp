// pool: how long a request may wait for memory that is on its way before the pool grows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm::pool {

// Note [Grow delay]
// What other streams freed is often complete sooner than new memory is mapped, and what a pool
// grows by it keeps. So before growth sets a record, the host looks for a moment, without the lock,
// whether pending memory becomes complete. No stream is put behind another, and a long kernel
// delays nobody by more than that moment. The delay is proportional to the share of mapped memory
// that it may spare: so whatever a program does, doubling its memory costs about kLongestNs *
// kWholeShare * ln 2, a quarter of a second, in all. However little is mapped, little is not worth
// a delay.
struct GrowDelay {
  // For a share of 1/kWholeShare of what is mapped, and for more. Halved: several streams of short
  // kernels hold more; doubled: a request that grows waits longer for kernels that are longer.
  static constexpr std::uint64_t kLongestNs = 12'000'000;
  static constexpr Bytes kWholeShare = 32;
  // The share is that of at least so much. Halved: small programs wait twice as long; doubled: they
  // hold more.
  static constexpr Bytes kLeastWhole = 128 * kMiB;
  static constexpr std::uint64_t kBetweenLooksNs =
      20'000;  // asked for; the system may take several times that

  // `spared`: of what would be created, what pending memory may give. Bytes.
  static std::uint64_t longest_ns(Bytes spared, Bytes mapped) {
    const double share = static_cast<double>(spared) /
                         static_cast<double>(std::max(mapped / kWholeShare, kLeastWhole));
    return static_cast<std::uint64_t>(std::min(share, 1.0) * static_cast<double>(kLongestNs));
  }
};

}  // namespace vpmm::pool
