// SPDX-License-Identifier: Apache-2.0
// time: stamp: work that must have finished before a range of memory may be touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vpmm::time {

// Order of frees of one stream. Ids are never reused by a pool.
enum class TimelineId : std::uint64_t {};

// "Everything up to number `sequence` of this timeline."
struct StampPart {
  TimelineId timeline{};
  std::uint64_t sequence = 0;
  friend bool operator==(const StampPart&, const StampPart&) = default;
};

// Zero, one or two parts; all must be complete. No part: complete already, and of no timeline.
class Stamp {
 public:
  Stamp() = default;
  explicit Stamp(StampPart part) : parts_{part, {}}, count_(1) {}
  // Merges parts on one timeline to the later.
  Stamp(StampPart a, StampPart b) : parts_{a, b}, count_(2) {
    if (a.timeline != b.timeline) return;
    parts_[0].sequence = a.sequence > b.sequence ? a.sequence : b.sequence;
    parts_[1] = {};
    count_ = 1;
  }

  bool is_complete() const { return count_ == 0; }
  bool is_single() const { return count_ == 1; }
  bool is_only_on(TimelineId timeline) const {
    return count_ == 1 && parts_[0].timeline == timeline;
  }
  std::span<const StampPart> parts() const { return {parts_.data(), count_}; }
  friend bool operator==(const Stamp&, const Stamp&) = default;

  // The stamp without parts on `timeline` up to `sequence`.
  Stamp without(TimelineId timeline, std::uint64_t sequence) const {
    Stamp rest;
    for (const StampPart& part : parts())
      if (part.timeline != timeline || part.sequence > sequence) rest.parts_[rest.count_++] = part;
    return rest;
  }

 private:
  std::array<StampPart, 2> parts_{};
  std::size_t count_ = 0;
};

}  // namespace vpmm::time
