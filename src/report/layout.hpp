// SPDX-License-Identifier: Apache-2.0
// report: the blocks and chunks of a pool at one moment.
#pragma once

#include <cstdint>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"

namespace vpmm::report {

struct LayoutBlock {
  AddressRange range;
  region::RegionState state{};  // never a hole
  Bytes requested = 0;          // of an allocated block
  // Allocated: the allocating stream. Free: the only stream that may have it now. 0: none or
  // several.
  std::uint64_t stream_id = 0;
  std::uint64_t arena = 0;  // 0: none
  std::uint32_t tag = 0;
  std::uint32_t library = 0;  // its tag
  bool is_complete = false;   // free, zombie: unused by all streams
  bool is_small = false;      // in a page cut for requests below a page
  bool is_suspended = false;  // has no physical memory; such blocks fill no chunk
};

// By address, without overlaps. Without memory in flight, the free and allocated blocks fill the
// chunks, except for memory of the driver's pool and of external arenas, which has no chunks.
struct Layout {
  Vector<LayoutBlock> blocks;
  Vector<AddressRange> chunks;
  Bytes largest_small = 0;  // largest request served from cut pages; 0: none
};

}  // namespace vpmm::report
