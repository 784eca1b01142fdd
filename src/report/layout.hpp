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
  Bytes requested = 0;          // allocated: as asked for
  // Allocated: the stream that it was allocated on. Free: the one stream that may have it now. 0:
  // none, or several.
  std::uint64_t stream_id = 0;
  std::uint64_t arena = 0;  // 0: of no arena
  std::uint32_t tag = 0;
  bool is_complete = false;  // free, zombie: nobody uses it any more
  bool is_small = false;     // lies in a page that is cut for requests below a page
};

// By address. Chunks do not overlap, nor do blocks; where nothing is in flight, what is free or
// allocated lies in chunks, and fills them, but for memory of the driver's own pool and of external
// arenas, which has none.
struct Layout {
  Vector<LayoutBlock> blocks;
  Vector<AddressRange> chunks;
  Bytes largest_small =
      0;  // the largest request that is served from pages that are cut; 0: none is
};

}  // namespace vpmm::report
