// SPDX-License-Identifier: Apache-2.0
// pool tests: a process without host memory, whose reserve is promised to other calls.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <new>
#include <optional>
#include <utility>

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

// Neither the process nor its reserve has any left.
class NoReserve {
 public:
  NoReserve() {
    fault::HostFaults::arm(1, fault::HostFaults::Repeat::from_then_on);
    for (std::size_t bytes = std::size_t{4} << 20; bytes >= kLeast; bytes /= 2)
      while (void* const memory = host_reserve::take(bytes, alignof(Taken)))
        last_ = new (memory) Taken{last_};
    EXPECT_EQ(host_reserve::take(kLeast, alignof(Taken)), nullptr);
  }
  ~NoReserve() {
    while (last_ != nullptr)
      host_reserve::give_back(std::exchange(last_, last_->before), alignof(Taken));
    fault::HostFaults::disarm();
  }
  NoReserve(const NoReserve&) = delete;
  NoReserve& operator=(const NoReserve&) = delete;

 private:
  struct Taken {
    Taken* before = nullptr;
  };
  static constexpr std::size_t kLeast = 16;

  fault::InsidePool inside_;
  Taken* last_ = nullptr;
};

}  // namespace vpmm::pool
