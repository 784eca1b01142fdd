// SPDX-License-Identifier: Apache-2.0
// small: the live allocation at an address in a page that is cut.
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "small/stream_cache.hpp"

namespace vpmm::small {

// A block or span, live at the time of the lookup.
struct Allocation {
  AddressRange range;
  Bytes requested = 0;
  std::optional<time::TimelineId>
      timeline;  // of the allocating stream; nullopt: any-stream, or its context is gone
  StreamCache* cache = nullptr;
  Slab* slab = nullptr;  // null: a span
  Segment* segment = nullptr;
  std::uint64_t index = 0;  // of the block in the slab, or of the span's first unit in the segment
};

// Segment of `cache` around `p`; null if the unit belongs to another cache or to none.
Segment* segment_at(const PageRun& run, DevicePtr p, const StreamCache& cache)
    VPMM_REQUIRES(cache_lock);

}  // namespace vpmm::small
