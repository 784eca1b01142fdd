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

// Tags of live allocations, and the requested bytes of each. Frees of tagged allocations take the
// pool's lock, so that no tag outlives its allocation; others have no cost.
class Tags {
 public:
  bool empty() const VPMM_REQUIRES(pool_lock) { return tagged_.empty(); }
  // Requires: the allocation has none.
  void add(DevicePtr begin, Bytes requested, std::uint32_t tag) VPMM_REQUIRES(pool_lock) {
    Bytes& live = live_[tag];
    tagged_[begin] = {tag, requested};
    live += requested;
  }
  // 0: none.
  std::uint32_t of(DevicePtr begin) const VPMM_REQUIRES(pool_lock) {
    const auto found = tagged_.find(begin);
    return found == tagged_.end() ? 0 : found->second.tag;
  }
  // Same; removes the tag.
  std::uint32_t take(DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    const auto found = tagged_.find(begin);
    if (found == tagged_.end()) return 0;
    const Tagged ended = found->second;
    tagged_.erase(found);
    lessen(ended);
    return ended.tag;
  }
  // Requested bytes of its live allocations.
  Bytes live(std::uint32_t tag) const VPMM_REQUIRES(pool_lock) {
    const auto found = live_.find(tag);
    return found == live_.end() ? 0 : found->second;
  }
  // Of live allocations, ascending.
  Vector<std::uint32_t> all() const VPMM_REQUIRES(pool_lock) {
    Vector<std::uint32_t> tags;
    for (const auto& [tag, bytes] : live_) tags.push_back(tag);
    return tags;
  }
  // Keeps tags with `is_live(begin)`.
  void forget_unless(FunctionRef<bool(DevicePtr begin)> is_live) VPMM_REQUIRES(pool_lock) {
    std::erase_if(tagged_, [&](const auto& entry) VPMM_REQUIRES(pool_lock) {
      if (is_live(entry.first)) return false;
      lessen(entry.second);
      return true;
    });
  }

 private:
  struct Tagged {
    std::uint32_t tag = 0;
    Bytes requested = 0;
  };
  void lessen(const Tagged& ended) VPMM_REQUIRES(pool_lock) {
    const auto of_tag = live_.find(ended.tag);
    if (of_tag == live_.end()) return;
    of_tag->second -= ended.requested;
    if (of_tag->second == 0) live_.erase(of_tag);
  }

  Map<DevicePtr, Tagged> tagged_ VPMM_GUARDED_BY(pool_lock);
  Map<std::uint32_t, Bytes> live_ VPMM_GUARDED_BY(pool_lock);
};

// Names of the process; their texts live for ever. "": none. Any thread.
void set_tag_name(std::uint32_t tag, const char* name);
const char* tag_name(std::uint32_t tag);
// For messages: "the tag "cache"", "tag 7".
std::string described_tag(std::uint32_t tag);
// The lowest tag with this name; without one, a new tag gets it. Requires: the name is not empty.
std::uint32_t tag_with_name(const char* name);

}  // namespace vpmm::report
