// SPDX-License-Identifier: Apache-2.0
// small: the live blocks and spans of a segment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "small/stream_cache.hpp"

namespace vpmm::small {

struct LivePart {
  AddressRange range;
  Bytes requested = 0;  // by its user
  AddressRange whole;   // the slab around it, or the request itself
};

// Copies of live parts that are read under one hold of a cache's lock: of one slab, or of spans.
class LiveParts {
 public:
  // Returns the unit where the next hold goes on.
  std::uint64_t read(const Segment& segment, std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    count_ = 0;
    if (segment.is_free()) return segment.units;
    const std::uint64_t end = std::min<std::uint64_t>(segment.units, unit + kUnitsAtOnce);
    while (unit < end) {
      const PageRun& run = *segment.run;
      if (const Slab* const slab = content_in(run.contents[run.unit_of(segment.at(unit))]).slab())
        return count_ != 0 ? unit : read(segment, unit, *slab);
      if (!segment.has_span_at(unit)) {
        ++unit;
        continue;
      }
      const Bytes requested = segment.requested(unit);
      const std::uint64_t units = span_units(requested);
      const DevicePtr begin = segment.at(unit);
      parts_[count_++] = {{begin, units * kUnit}, requested, {begin, requested}};
      unit += units;
    }
    return unit;
  }
  const LivePart* begin() const { return parts_.data(); }
  const LivePart* end() const { return parts_.data() + count_; }

 private:
  static constexpr std::uint64_t kUnitsAtOnce = 64;
  static_assert(kUnitsAtOnce <= kMostBlocks,
                "a span has a unit at least, so there is room for all");

  // Skips units read in earlier holds: the slab may have been cut around them since.
  std::uint64_t read(const Segment& segment, std::uint64_t unit, const Slab& slab)
      VPMM_REQUIRES(cache_lock) {
    const AddressRange whole{slab.begin, slab.bytes()};
    for (std::uint64_t i = 0; i < slab.blocks; ++i)
      if (slab.is_live(i) && slab.block(i) >= segment.at(unit))
        parts_[count_++] = {{slab.block(i), slab.block_bytes()}, slab.requested(i), whole};
    return segment.unit_of(whole.end() - 1) + 1;
  }

  std::array<LivePart, kMostBlocks> parts_;
  std::size_t count_ = 0;
};

// Calls `visit` for each live part, by address, without the lock of the cache, so `visit` may
// allocate. While other threads call, each part was live at some time during the call.
template <typename Visit>
void for_each_live(const Segment& segment, Visit&& visit) VPMM_REQUIRES(pool_lock) {
  StreamCache* const cache = segment.cache();
  if (cache == nullptr) return;
  LiveParts parts;
  for (std::uint64_t unit = 0; unit < segment.units;) {
    {
      const CacheGuard guard(*cache);
      unit = parts.read(segment, unit);
    }
    for (const LivePart& part : parts) visit(part);
  }
}

}  // namespace vpmm::small
