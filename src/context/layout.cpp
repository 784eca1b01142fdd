// context: drawing up what lies where.
#include "context/layout.hpp"

#include <algorithm>

#include "context/device_context.hpp"

namespace vpmm::context {

using region::Region;
using region::RegionState;

namespace {

// Between what is cut and what takes whole pages there is one border.
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

}  // namespace

Layout DeviceContext::layout() const {
  const PoolLock lock(mutex_);
  return drawn_layout();
}

// Frees that finalizers deferred are to come; until then what they free is allocated.
Layout DeviceContext::drawn_layout() const {
  Layout layout;
  if (device_.pool != nullptr) {
    device_.pool->for_each_place([&](AddressRange chunk) { layout.chunks.push_back(chunk); });
    device_.pool->for_each_region([&](const Region& region) VPMM_REQUIRES(pool_lock) {
      if (arenas_.has(region.range.begin))
        add_blocks_of_arena(region.range.begin, layout);
      else if (region.state != RegionState::hole && !small::is_cut(region))
        layout.blocks.push_back(block_of(region));
    });
    arenas_.for_each_external([&](DevicePtr begin)
                                  VPMM_REQUIRES(pool_lock) { add_blocks_of_arena(begin, layout); });
    layout.largest_small = largest_small(*device_.small, device_.page_size);
    device_.small->figures().for_each_part([&](const small::Part& part) VPMM_REQUIRES(pool_lock) {
      layout.blocks.push_back(block_of(part));
    });
  }
  if (device_.driver_pool != nullptr)
    device_.driver_pool->for_each_block(
        [&](const driver_pool::Block& block)
            VPMM_REQUIRES(pool_lock) { layout.blocks.push_back(block_of(block)); });
  std::sort(layout.chunks.begin(), layout.chunks.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  std::sort(layout.blocks.begin(), layout.blocks.end(),
            [](const Block& a, const Block& b) { return a.range.begin < b.range.begin; });
  return layout;
}

std::uint64_t DeviceContext::stream_id_of(std::optional<time::TimelineId> timeline) const {
  const std::optional<driver::StreamId> stream =
      timeline ? device_.timelines.stream_of(*timeline) : std::optional<driver::StreamId>();
  return stream ? static_cast<std::uint64_t>(*stream) : 0;
}

std::uint64_t DeviceContext::stream_id_of(const time::Stamp& stamp) const {
  const auto parts = stamp.parts();
  return parts.size() == 1 ? stream_id_of(parts.front().timeline) : 0;
}

// What its user freed is free, also where a stream keeps it, a captured graph or other processes.
Block DeviceContext::block_of(const Region& region) const {
  Block block;
  block.range = region.range;
  block.state = region.state;
  if (region.state == RegionState::free || region.state == RegionState::zombie) {
    block.is_complete = region.stamp.is_complete();
    block.stream_id = stream_id_of(region.stamp);
  }
  if (region.state != RegionState::allocated) return block;
  if (captures_.is_parked(&region) || shares_.is_kept(region.range.begin)) {
    block.state = RegionState::free;
    return block;
  }
  block.stream_id = stream_id_of(region.owner.timeline);
  if (small::is_cached(region))
    block.state = RegionState::free;
  else
    block.requested = device_.small->ownership().requested_of(region);
  if (block.state == RegionState::allocated) block.tag = recorder_.tags().of(block.range.begin);
  return block;
}

void DeviceContext::add_blocks_of_arena(DevicePtr stretch, Layout& layout) const {
  arenas_.for_each_block_around(
      stretch, [&](const arena::Block& part, bool is_pinned) VPMM_REQUIRES(pool_lock) {
        Block block;
        block.range = part.range;
        block.arena = static_cast<std::uint64_t>(arenas_.arena_of(stretch));
        const bool is_live = part.is_live && !shares_.is_kept(part.range.begin);
        block.state = is_live ? RegionState::allocated : RegionState::free;
        const time::Stamp stamp = device_.timelines.reduce(part.stamp);
        if (is_live) {
          block.requested = part.requested;
          block.stream_id = stream_id_of(part.timeline);
          block.tag = recorder_.tags().of(part.range.begin);
        } else if (!part.is_live) {
          block.is_complete = !is_pinned && stamp.is_complete();
          const bool serves_nobody = part.is_waiting && !stamp.is_complete();
          if (!block.is_complete && !serves_nobody)
            block.stream_id = arenas_.stream_id_of(part.key);
        }
        layout.blocks.push_back(block);
      });
}

Block DeviceContext::block_of(const small::Part& part) const {
  Block block;
  block.range = part.range;
  block.is_small = true;
  block.state = part.is_live ? RegionState::allocated : RegionState::free;
  if (part.is_live && shares_.is_kept(part.range.begin)) {
    block.state = RegionState::free;
    return block;
  }
  block.requested = part.requested;
  if (part.is_live) block.tag = recorder_.tags().of(part.range.begin);
  block.stream_id = part.timeline ? stream_id_of(part.timeline) : stream_id_of(part.stamp);
  block.is_complete = !part.is_live && !part.is_kept && part.stamp.is_complete();
  return block;
}

Block DeviceContext::block_of(const driver_pool::Block& of_driver) const {
  Block block;
  block.range = {of_driver.begin, of_driver.requested};
  block.state = RegionState::allocated;
  block.requested = of_driver.requested;
  block.stream_id = stream_id_of(of_driver.timeline);
  block.tag = recorder_.tags().of(of_driver.begin);
  return block;
}

}  // namespace vpmm::context
