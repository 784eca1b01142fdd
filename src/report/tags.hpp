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

// Names of an allocation. 0: none. `library`: the tag with the name of the library that asked.
struct Labels {
  std::uint32_t tag = 0;
  std::uint32_t library = 0;
};

// Labels of live allocations with a tag, and the requested bytes of each tag and library. Frees of
// tagged allocations take the pool's lock, so that no tag outlives its allocation; others have no
// cost. docs/decisions/0024 has the reason.
class Tags {
 public:
  bool empty() const VPMM_REQUIRES(pool_lock) { return tagged_.empty(); }
  // Requires: the allocation has none, and `labels` has a tag.
  void add(DevicePtr begin, Bytes requested, const Labels& labels) VPMM_REQUIRES(pool_lock) {
    Bytes& of_tag = of_tag_[labels.tag];
    Bytes* const of_library = labels.library == 0 ? nullptr : &of_library_[labels.library];
    tagged_[begin] = {labels, requested};
    of_tag += requested;
    if (of_library != nullptr) *of_library += requested;
  }
  Labels of(DevicePtr begin) const VPMM_REQUIRES(pool_lock) {
    const auto found = tagged_.find(begin);
    return found == tagged_.end() ? Labels{} : found->second.labels;
  }
  // Same; removes them.
  Labels take(DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    const auto found = tagged_.find(begin);
    if (found == tagged_.end()) return {};
    const Tagged ended = found->second;
    tagged_.erase(found);
    lessen(ended);
    return ended.labels;
  }
  // Requested bytes of live allocations, by tag and by library, without zeros.
  using Sums = Map<std::uint32_t, Bytes>;
  const Sums& by_tag() const VPMM_REQUIRES(pool_lock) { return of_tag_; }
  const Sums& by_library() const VPMM_REQUIRES(pool_lock) { return of_library_; }
  static Bytes of(const Sums& sums, std::uint32_t label) {
    const auto found = sums.find(label);
    return found == sums.end() ? 0 : found->second;
  }
  // Keeps labels with `is_live(begin)`.
  void forget_unless(FunctionRef<bool(DevicePtr begin)> is_live) VPMM_REQUIRES(pool_lock) {
    std::erase_if(tagged_, [&](const auto& entry) VPMM_REQUIRES(pool_lock) {
      if (is_live(entry.first)) return false;
      lessen(entry.second);
      return true;
    });
  }

 private:
  struct Tagged {
    Labels labels;
    Bytes requested = 0;
  };
  void lessen(const Tagged& ended) VPMM_REQUIRES(pool_lock) {
    lessen(of_tag_, ended.labels.tag, ended.requested);
    if (ended.labels.library != 0) lessen(of_library_, ended.labels.library, ended.requested);
  }
  // Requires: the sum is there, so that no memory is needed.
  static void lessen(Sums& sums, std::uint32_t label, Bytes bytes) {
    Bytes& left = sums[label];
    left -= bytes;
    if (left == 0) sums.erase(label);
  }

  Map<DevicePtr, Tagged> tagged_ VPMM_GUARDED_BY(pool_lock);
  Sums of_tag_ VPMM_GUARDED_BY(pool_lock);
  Sums of_library_ VPMM_GUARDED_BY(pool_lock);
};

// Names of the process; their texts live for ever. "": none. Any thread.
void set_tag_name(std::uint32_t tag, const char* name);
const char* tag_name(std::uint32_t tag);
// For messages: "the tag "cache"", "tag 7".
std::string described_tag(std::uint32_t tag);
// The lowest tag with this name; without one, a new tag gets it. Requires: the name is not empty.
std::uint32_t tag_with_name(const char* name);

// A library of the process asked for its tag; false: it has none, though its memory could be told
// apart.
void note_library(const char* library, bool is_tagged);
// Those without a tag in alphabetical order, as "cupy, torch". "": none, or no other library asked.
std::string untagged_libraries();

}  // namespace vpmm::report
