// SPDX-License-Identifier: Apache-2.0
// context: the layout and the snapshot of a pool at one moment.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "context/parts.hpp"
#include "context/totals.hpp"
#include "observe/snapshot.hpp"
#include "observe/trace_writer.hpp"
#include "report/layout.hpp"

namespace vpmm::context {

class Drawing {
 public:
  Drawing(const Parts& parts, const Totals& totals)
      : parts_(parts), device_(parts.device), totals_(totals) {}

  // Deferred frees have not happened yet: their memory is allocated.
  report::Layout layout() const VPMM_REQUIRES(pool_lock);
  observe::PoolSnapshot snapshot() const VPMM_REQUIRES(pool_lock);
  // For the beginning of a recording.
  std::vector<observe::LiveAllocation> live_allocations() const VPMM_REQUIRES(pool_lock);

 private:
  // 0: none or several.
  std::uint64_t stream_id_of(std::optional<time::TimelineId> timeline) const
      VPMM_REQUIRES(pool_lock);
  std::uint64_t stream_id_of(const time::Stamp& stamp) const VPMM_REQUIRES(pool_lock);
  report::LayoutBlock block_of(const region::Region& region) const VPMM_REQUIRES(pool_lock);
  report::LayoutBlock block_of(const small::PagePart& part) const VPMM_REQUIRES(pool_lock);
  report::LayoutBlock block_of(const guard::Block& guarded) const VPMM_REQUIRES(pool_lock);
  report::LayoutBlock block_of(const driver_pool::PoolBlock& of_driver) const
      VPMM_REQUIRES(pool_lock);
  void add_blocks_of_arena(DevicePtr stretch, report::Layout& layout) const
      VPMM_REQUIRES(pool_lock);
  void add_blocks_of_arena(DevicePtr stretch, observe::PoolSnapshot& snapshot) const
      VPMM_REQUIRES(pool_lock);

  const Parts& parts_;
  const Device& device_;
  const Totals& totals_;
};

}  // namespace vpmm::context
