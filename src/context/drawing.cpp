// SPDX-License-Identifier: Apache-2.0
// context: the layout and the snapshot of a pool.
#include "context/drawing.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace vpmm::context {

using region::Region;
using region::RegionState;

namespace {

// Searches the one border between sizes that are cut and sizes that take whole pages.
Bytes largest_small(const small::SmallPool& small, Bytes page_size) {
  using Server = small::Server;
  Bytes cut = 0;
  for (Bytes whole = page_size; whole - cut > 1;) {
    const Bytes middle = cut + (whole - cut) / 2;
    const Server server = small.serving().server_of(middle, small::kGrain);
    if (server == Server::blocks || server == Server::spans)
      cut = middle;
    else
      whole = middle;
  }
  return cut;
}

char kind_of(RegionState state) {
  switch (state) {
    case RegionState::hole: return '*';
    case RegionState::free: return '-';
    case RegionState::allocated: return ' ';
    case RegionState::zombie: return '~';
    case RegionState::in_flight: return '#';
  }
  return '?';
}

}  // namespace

report::Layout Drawing::layout() const {
  report::Layout layout;
  if (device_.pool != nullptr) {
    device_.pool->memory().chunks.for_each_chunk([&](const vm::Chunk& chunk) {
      if (!is_null(chunk.place)) layout.chunks.push_back({chunk.place, chunk.size});
    });
    device_.pool->memory().index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
      if (parts_.arenas.around(region.range.begin) != nullptr)
        add_blocks_of_arena(region.range.begin, layout);
      else if (region.state != RegionState::hole && !small::is_cut(region))
        layout.blocks.push_back(block_of(region));
    });
    parts_.arenas.external().for_each_stretch(
        [&](DevicePtr begin) VPMM_REQUIRES(pool_lock) { add_blocks_of_arena(begin, layout); });
    layout.largest_small = largest_small(*device_.small, device_.page_size);
    device_.small->figures().for_each_part(
        [&](const small::PagePart& part)
            VPMM_REQUIRES(pool_lock) { layout.blocks.push_back(block_of(part)); });
  }
  if (device_.driver_pool != nullptr)
    device_.driver_pool->for_each_block(
        [&](const driver_pool::PoolBlock& block)
            VPMM_REQUIRES(pool_lock) { layout.blocks.push_back(block_of(block)); });
  if (device_.guard != nullptr)
    device_.guard->for_each([&](const guard::Block& block) VPMM_REQUIRES(pool_lock) {
      if (block.stage == guard::Block::Stage::coming || block.stage == guard::Block::Stage::gone)
        return;
      layout.chunks.push_back(block.mapped);
      layout.blocks.push_back(block_of(block));
    });
  std::sort(layout.chunks.begin(), layout.chunks.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  std::sort(layout.blocks.begin(), layout.blocks.end(),
            [](const report::LayoutBlock& a, const report::LayoutBlock& b) {
              return a.range.begin < b.range.begin;
            });
  for (report::LayoutBlock& block : layout.blocks) {
    const report::Labels labels = parts_.recorder.tags().of(block.range.begin);
    block.tag = labels.tag;
    block.library = labels.library;
  }
  return layout;
}

std::uint64_t Drawing::stream_id_of(std::optional<time::TimelineId> timeline) const {
  const time::Timeline* const found = timeline ? device_.timelines.find(*timeline) : nullptr;
  return found != nullptr && found->stream ? static_cast<std::uint64_t>(*found->stream) : 0;
}

std::uint64_t Drawing::stream_id_of(const time::Stamp& stamp) const {
  const auto parts = stamp.parts();
  return parts.size() == 1 ? stream_id_of(parts.front().timeline) : 0;
}

// Memory freed by its user is free, also if a stream, a graph or another process keeps it.
report::LayoutBlock Drawing::block_of(const Region& region) const {
  report::LayoutBlock block;
  block.range = region.range;
  block.state = region.state;
  if (region.state == RegionState::free || region.state == RegionState::zombie) {
    block.is_complete = region.stamp.is_complete();
    block.stream_id = stream_id_of(region.stamp);
  }
  if (region.state != RegionState::allocated) return block;
  if (parts_.captures.is_parked(&region) || parts_.shares.is_kept(region.range.begin)) {
    block.state = RegionState::free;
    return block;
  }
  block.stream_id = stream_id_of(region.owner.timeline);
  if (small::is_cached(region))
    block.state = RegionState::free;
  else
    block.requested = device_.small->ownership().requested_of(region);
  return block;
}

report::LayoutBlock Drawing::block_of(const small::PagePart& part) const {
  report::LayoutBlock block;
  block.range = part.range;
  block.is_small = true;
  block.state = part.is_live ? RegionState::allocated : RegionState::free;
  if (part.is_live && parts_.shares.is_kept(part.range.begin)) {
    block.state = RegionState::free;
    return block;
  }
  block.requested = part.requested;
  block.stream_id = part.timeline ? stream_id_of(part.timeline) : stream_id_of(part.stamp);
  block.is_complete = !part.is_live && !part.is_kept && part.stamp.is_complete();
  return block;
}

report::LayoutBlock Drawing::block_of(const driver_pool::PoolBlock& of_driver) const {
  report::LayoutBlock block;
  block.range = {of_driver.begin, of_driver.requested};
  block.state = RegionState::allocated;
  block.requested = of_driver.requested;
  block.stream_id = stream_id_of(of_driver.timeline);
  return block;
}

// The pages of a freed block are a zombie: they serve nobody before they are unmapped.
report::LayoutBlock Drawing::block_of(const guard::Block& guarded) const {
  report::LayoutBlock block;
  block.range = guarded.mapped;
  block.state = RegionState::zombie;
  block.is_complete = guarded.stamp.is_complete();
  block.stream_id = stream_id_of(guarded.stamp);
  if (guarded.stage != guard::Block::Stage::live) return block;
  block.range = guarded.range;
  block.state = RegionState::allocated;
  block.is_complete = false;
  block.requested = guarded.range.size;
  block.stream_id = stream_id_of(guarded.timeline);
  return block;
}

void Drawing::add_blocks_of_arena(DevicePtr stretch, report::Layout& layout) const {
  parts_.arenas.for_each_block_around(
      stretch, [&](const arena::ArenaBlock& part, bool is_pinned) VPMM_REQUIRES(pool_lock) {
        report::LayoutBlock block;
        block.range = part.range;
        block.arena = static_cast<std::uint64_t>(parts_.arenas.around(stretch)->id);
        const bool is_live = part.is_live && !parts_.shares.is_kept(part.range.begin);
        block.state = is_live ? RegionState::allocated : RegionState::free;
        block.is_suspended = part.stretch->is_suspended;
        const time::Stamp stamp = device_.timelines.reduce(part.stamp);
        if (is_live) {
          block.requested = part.requested;
          block.stream_id = stream_id_of(part.timeline);
        } else if (!part.is_live) {
          block.is_complete = !is_pinned && stamp.is_complete();
          const bool serves_nobody = part.is_waiting && !stamp.is_complete();
          if (!block.is_complete && !serves_nobody) block.stream_id = arena::stream_id_of(part.key);
        }
        layout.blocks.push_back(block);
      });
}

// --- a snapshot

// Adds each block as a region.
void Drawing::add_blocks_of_arena(DevicePtr stretch, observe::PoolSnapshot& snapshot) const {
  parts_.arenas.for_each_block_around(stretch, [&](const arena::ArenaBlock& block,
                                                   bool is_pinned) VPMM_REQUIRES(pool_lock) {
    observe::RegionSnapshot picture;
    picture.range = block.range;
    picture.kind = kind_of(block.is_live ? RegionState::allocated : RegionState::free);
    if (block.stretch->is_suspended) picture.kind = '^';
    picture.requested = block.requested;
    const time::Stamp stamp = device_.timelines.reduce(block.stamp);
    picture.complete = block.is_live || (!is_pinned && stamp.is_complete());
    for (const time::StampPart& part : stamp.parts())
      picture.stamp += (picture.stamp.empty() ? "" : " and ") + device_.timelines.describe(part);
    if (block.is_live && block.timeline)
      picture.stamp = device_.timelines.describe_stream(*block.timeline);
    if (!block.is_live && is_pinned && picture.stamp.empty()) picture.stamp = "in a pinned arena";
    snapshot.regions.push_back(std::move(picture));
  });
}

observe::PoolSnapshot Drawing::snapshot() const {
  observe::PoolSnapshot snapshot;
  snapshot.device = device_.primary.device();
  snapshot.driver = device_.driver.name();
  snapshot.policy = device_.pool == nullptr ? "stream_ordered" : device_.pool->memory().tuning.name;
  snapshot.statistics = totals_.now();
  if (device_.pool == nullptr) return snapshot;
  snapshot.page_size = device_.page_size;
  const Vector<AddressRange>& reservations = device_.pool->memory().reservations;
  snapshot.reservations.assign(reservations.begin(), reservations.end());
  std::sort(snapshot.reservations.begin(), snapshot.reservations.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  const auto live_by_page = device_.small->figures().live_by_page();
  device_.pool->memory().index.for_each([&](const region::Region& region) VPMM_REQUIRES(pool_lock) {
    if (parts_.arenas.around(region.range.begin) != nullptr)
      return add_blocks_of_arena(region.range.begin, snapshot);
    observe::RegionSnapshot picture;
    picture.range = region.range;
    picture.kind = kind_of(region.state);
    picture.complete = region.stamp.is_complete();
    if (small::is_cached(region)) {
      picture.kind = kind_of(RegionState::free);
      picture.complete = false;  // unknown: no event was queried
    } else if (small::is_cut(region)) {
      const auto live = live_by_page.find(&region);
      picture.small_allocations = live == live_by_page.end() ? 0 : live->second.allocations;
      picture.requested = live == live_by_page.end() ? 0 : live->second.requested;
    } else {  // 0 of memory that is not allocated
      picture.requested = device_.small->ownership().requested_of(region);
    }
    for (const time::StampPart& part : region.stamp.parts())
      picture.stamp += (picture.stamp.empty() ? "" : " and ") + device_.timelines.describe(part);
    if (region.state == RegionState::allocated && region.owner.timeline)
      picture.stamp = device_.timelines.describe_stream(*region.owner.timeline);
    snapshot.regions.push_back(std::move(picture));
  });
  return snapshot;
}

std::vector<observe::LiveAllocation> Drawing::live_allocations() const {
  std::vector<observe::LiveAllocation> live;
  for (const report::LayoutBlock& block : layout().blocks) {
    if (block.state != region::RegionState::allocated) continue;
    observe::LiveAllocation allocation;
    allocation.address = block.range.begin;
    allocation.requested = block.requested;
    allocation.taken = block.range.size;
    allocation.arena = block.arena;
    allocation.tag = block.tag;
    allocation.library = block.library;
    if (block.stream_id != 0) {
      allocation.stream = block.stream_id;
      if (const auto handle = device_.timelines.handle_of(driver::StreamId{block.stream_id}))
        allocation.stream_handle = static_cast<std::uint64_t>(*handle);
    }
    live.push_back(allocation);
  }
  return live;
}

}  // namespace vpmm::context
