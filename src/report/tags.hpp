// SPDX-License-Identifier: Apache-2.0
// report: tags of allocations, and their names.
#pragma once

#include <cstdint>
#include <string>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"

namespace vpmm::report {

// Tags of live allocations. Frees of tagged allocations take the pool's lock, so that no tag
// outlives its allocation; others have no cost.
class Tags {
 public:
  bool empty() const VPMM_REQUIRES(pool_lock) { return tagged_.empty(); }
  // Requires: the allocation has none.
  void add(DevicePtr begin, Bytes requested, std::uint32_t tag) VPMM_REQUIRES(pool_lock) {
    tagged_[begin] = {tag, requested};
  }
  // 0: none.
  std::uint32_t of(DevicePtr begin) const VPMM_REQUIRES(pool_lock) {
    const auto found = tagged_.find(begin);
    return found == tagged_.end() ? 0 : found->second.tag;
  }
  // Same; removes the tag.
  std::uint32_t take(DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    const std::uint32_t tag = of(begin);
    if (tag != 0) tagged_.erase(begin);
    return tag;
  }
  // Keeps tags with `is_live(begin)`.
  void forget_unless(FunctionRef<bool(DevicePtr begin)> is_live) VPMM_REQUIRES(pool_lock) {
    std::erase_if(tagged_, [&](const auto& entry) { return !is_live(entry.first); });
  }

 private:
  struct Tagged {
    std::uint32_t tag = 0;
    Bytes requested = 0;
  };
  Map<DevicePtr, Tagged> tagged_ VPMM_GUARDED_BY(pool_lock);
};

// Names of the process; their texts live for ever. "": none. Any thread.
void set_tag_name(std::uint32_t tag, const char* name);
const char* tag_name(std::uint32_t tag);
// The lowest tag with this name; without one, a new tag gets it. Requires: the name is not empty.
std::uint32_t tag_with_name(const char* name);

}  // namespace vpmm::report
