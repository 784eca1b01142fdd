// SPDX-License-Identifier: Apache-2.0
// bench/harness: many short times, and what they come to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "harness/samples.hpp"

namespace vpmm::bench {

class Latencies {
 public:
  void add(std::uint64_t ns) { ns_.push_back(ns); }
  void add(const Latencies& other) { ns_.insert(ns_.end(), other.ns_.begin(), other.ns_.end()); }

  // Prints median, 99th percentile, worst and sum.
  void report(const Samples& samples, const std::string& name, int threads, int repeat) {
    if (ns_.empty()) return;
    std::sort(ns_.begin(), ns_.end());
    const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-3; };
    samples.add({name, "allocate p50", "us", us(ns_[ns_.size() / 2]), repeat, threads});
    samples.add(
        {name, "allocate p99", "us", us(ns_[(ns_.size() - 1) * 99 / 100]), repeat, threads});
    samples.add({name, "allocate worst", "us", us(ns_.back()), repeat, threads});
    const auto sum = std::accumulate(ns_.begin(), ns_.end(), std::uint64_t{0});
    samples.add({name, "allocate sum", "ms", us(sum) * 1e-3, repeat, threads});
  }

 private:
  std::vector<std::uint64_t> ns_;
};

}  // namespace vpmm::bench
