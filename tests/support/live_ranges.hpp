// SPDX-License-Identifier: Apache-2.0
// tests: which memory is live, kept without asking the pool, to find memory that was handed out
// twice.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/address.hpp"

namespace vpmm::test {

// Thread-safe. A range is added when its allocation has returned and removed before its free is
// called, so that at no time two ranges of a correct pool overlap.
class LiveRanges {
 public:
  // Empty: added. Otherwise `range` overlaps a live one; the text names both.
  [[nodiscard]] std::string add(AddressRange range);
  void remove(DevicePtr begin);

 private:
  std::mutex mutex_;
  std::map<DevicePtr, AddressRange> live_;  // by begin; no two overlap
};

}  // namespace vpmm::test
