// SPDX-License-Identifier: Apache-2.0
// capi: what lies where in a pool.
#include "report/layout.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include "capi/call.hpp"
#include "capi/versioned_struct.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;
using region::RegionState;

namespace {

constexpr std::size_t kFirstVersion = offsetof(vpmm_layout, owner) + sizeof(void*);

struct LayoutOwner {
  std::vector<vpmm_block> blocks;
  std::vector<vpmm_chunk> chunks;
};

static_assert(mirrors(RegionState::hole, VPMM_REGION_HOLE));
static_assert(mirrors(RegionState::free, VPMM_REGION_FREE));
static_assert(mirrors(RegionState::allocated, VPMM_REGION_ALLOCATED));
static_assert(mirrors(RegionState::zombie, VPMM_REGION_ZOMBIE));
static_assert(mirrors(RegionState::in_flight, VPMM_REGION_IN_FLIGHT));

vpmm_block to_struct(const report::LayoutBlock& block) {
  vpmm_block out{};
  out.begin = to_pointer(block.range.begin);
  out.bytes = block.range.size;
  out.requested = block.requested;
  out.stream_id = block.stream_id;
  out.arena = block.arena;
  out.tag = block.tag;
  out.state = static_cast<std::uint8_t>(block.is_suspended ? static_cast<int>(VPMM_REGION_SUSPENDED)
                                                           : static_cast<int>(block.state));
  out.complete = block.is_complete;
  out.is_small = block.is_small;
  return out;
}

std::unique_ptr<LayoutOwner> to_structs(const report::Layout& layout) {
  auto owner = std::make_unique<LayoutOwner>();
  for (const report::LayoutBlock& block : layout.blocks) owner->blocks.push_back(to_struct(block));
  for (const AddressRange& chunk : layout.chunks)
    owner->chunks.push_back({to_pointer(chunk.begin), chunk.size});
  return owner;
}

}  // namespace

vpmm_status vpmm_layout_take(vpmm_pool* pool, vpmm_layout* layout) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(layout, "layout"));
    VPMM_TRY(check_size(layout->size, kFirstVersion, "vpmm_layout"));
    const report::Layout drawn = context.reports().layout();
    std::unique_ptr<LayoutOwner> owner = to_structs(drawn);
    vpmm_layout taken{};
    taken.blocks = owner->blocks.data();
    taken.block_count = owner->blocks.size();
    taken.chunks = owner->chunks.data();
    taken.chunk_count = owner->chunks.size();
    taken.owner = owner.release();
    taken.largest_small = drawn.largest_small;
    copy_out(taken, layout);
    return {};
  });
}

void vpmm_layout_release(vpmm_layout* layout) {
  if (layout == nullptr) return;
  delete static_cast<LayoutOwner*>(layout->owner);
  layout->blocks = nullptr;
  layout->chunks = nullptr;
  layout->block_count = layout->chunk_count = 0;
  layout->owner = nullptr;
}
