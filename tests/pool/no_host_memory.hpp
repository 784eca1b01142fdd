// SPDX-License-Identifier: Apache-2.0
// pool tests: a process without host memory, whose reserve is promised to other calls.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <optional>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"

namespace vpmm::pool {

// Other calls have been promised all that there is, but for half a KiB.
class NoHostMemory {
 public:
  NoHostMemory() {
    fault::HostFaults::arm(1, fault::HostFaults::Repeat::from_then_on);
    const HostPromise rest(512);
    std::size_t bytes = std::size_t{1} << 30;
    for (std::optional<HostPromise>& promise : promises_)
      for (; !promise && bytes > 0;) {
        promise.emplace(bytes);
        if (promise->is_kept()) break;
        promise.reset();
        bytes /= 2;
      }
    EXPECT_EQ(bytes, 0u);
  }
  ~NoHostMemory() { fault::HostFaults::disarm(); }
  NoHostMemory(const NoHostMemory&) = delete;
  NoHostMemory& operator=(const NoHostMemory&) = delete;

 private:
  fault::InsidePool inside_;
  std::array<std::optional<HostPromise>, 100> promises_;
};

}  // namespace vpmm::pool
