// SPDX-License-Identifier: Apache-2.0
// tests: a process that has no memory for a while.
#pragma once

#include <array>
#include <optional>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"

namespace vpmm::fault {

// While it lives, the process has no memory; without the reserve, calls have none either.
class NoMemory {
 public:
  enum class Reserve { left, promised };
  explicit NoMemory(Reserve reserve) {
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    if (reserve == Reserve::left) return;
    for (std::optional<HostPromise>& part : promised_)
      if (part.emplace(); !part->is_kept()) return;
  }
  ~NoMemory() { HostFaults::disarm(); }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

 private:
  InsidePool inside_;
  std::array<std::optional<HostPromise>, 64> promised_;
};

}  // namespace vpmm::fault
