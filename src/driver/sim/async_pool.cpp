// driver/sim: blocks of the stand-in for the driver's pools.
#include "driver/sim/async_pool.hpp"

#include <algorithm>
#include <iterator>

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kBlockUnit = 512;
constexpr Bytes kSegmentUnit = 2 * kMiB;
// Free blocks of other streams that are looked at before the pool grows instead.
constexpr int kFitsTried = 256;

}  // namespace

AsyncPool::~AsyncPool() {
  for (const auto& [begin, size] : segments_) memory_.unplug({begin, size});
}

bool AsyncPool::complete(const Block& block) const {
  return block.freed_at.slot == kHostSlot || timeline_.complete({block.freed_at.slot, block.freed_at.n});
}

CuResult AsyncPool::allocate(Bytes size, Slot slot, AddressRange& range) {
  if (size == 0) return CuResult::invalid_value;
  if (size > 64 * kTiB) return CuResult::out_of_memory;
  size = round_up(size, kBlockUnit);
  auto block = find_fit(size, slot);
  if (block == blocks_.end()) {
    const CuResult result = grow(size, block);
    if (result != CuResult::success) return result;
  }
  take(block, size, slot);
  range = {block->first, size};
  return CuResult::success;
}

AsyncPool::Blocks::iterator AsyncPool::find_fit(Bytes size, Slot slot) {
  int tried = 0;
  for (auto fit = by_size_.lower_bound({size, DevicePtr{}}); fit != by_size_.end() && tried < kFitsTried; ++fit) {
    const auto block = blocks_.find(fit->second);
    if (block->second.freed_at.slot == slot || complete(block->second)) return block;
    ++tried;
  }
  return blocks_.end();
}

CuResult AsyncPool::grow(Bytes size, Blocks::iterator& block) {
  AddressRange segment;
  const Bytes segment_size = round_up(size, std::max(kSegmentUnit, memory_.granularity()));
  CuResult result = memory_.plug(segment_size, device_, Ownership::none, segment);
  if (result == CuResult::out_of_memory) {
    trim_to(0);
    result = memory_.plug(segment_size, device_, Ownership::none, segment);
  }
  if (result != CuResult::success) return result;
  segments_.emplace(segment.begin, segment.size);
  reserved_ += segment.size;
  reserved_high_ = std::max(reserved_high_, reserved_);
  block = blocks_.emplace(segment.begin, Block{segment.size, segment.begin, true, {}, {}}).first;
  by_size_.emplace(block->second.size, block->first);
  return CuResult::success;
}

void AsyncPool::take(Blocks::iterator block, Bytes size, Slot slot) {
  by_size_.erase({block->second.size, block->first});
  if (slot == kHostSlot) {
    timeline_.learn(block->second.freed_clock);
  } else {
    timeline_.join(slot, block->second.freed_clock);
  }
  if (block->second.size > size) {
    Block rest = block->second;
    rest.size -= size;
    block->second.size = size;
    const auto at = blocks_.emplace(block->first + size, std::move(rest)).first;
    by_size_.emplace(at->second.size, at->first);
  }
  block->second.is_free = false;
  used_ += size;
  used_high_ = std::max(used_high_, used_);
  ++live_;
}

AddressRange AsyncPool::find(DevicePtr ptr) const {
  const auto block = blocks_.find(ptr);
  if (block == blocks_.end() || block->second.is_free) return {};
  return {ptr, block->second.size};
}

void AsyncPool::free(DevicePtr ptr, const Position& at, const VectorClock& clock) {
  const auto block = blocks_.find(ptr);
  used_ -= block->second.size;
  --live_;
  block->second.is_free = true;
  block->second.freed_at = at;
  block->second.freed_clock = clock;
  put(block);
}

// Merges a block that became free with its free neighbours.
void AsyncPool::put(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next != blocks_.end() && next->second.is_free) {
    by_size_.erase({next->second.size, next->first});
    if (!absorb(block, next)) by_size_.emplace(next->second.size, next->first);
  }
  if (block != blocks_.begin()) {
    const auto previous = std::prev(block);
    if (previous->second.is_free) {
      by_size_.erase({previous->second.size, previous->first});
      if (absorb(previous, block)) {
        block = previous;
      } else {
        by_size_.emplace(previous->second.size, previous->first);
      }
    }
  }
  by_size_.emplace(block->second.size, block->first);
}

// One place in one stream must stand for both blocks: the same stream's later one, or any complete one.
bool AsyncPool::absorb(Blocks::iterator left, Blocks::iterator right) {
  Block& a = left->second;
  const Block& b = right->second;
  if (a.segment != b.segment) return false;
  if (a.freed_at.slot != b.freed_at.slot && !(complete(a) && complete(b))) return false;
  a.size += b.size;
  a.freed_clock.join(b.freed_clock);
  if (a.freed_at.slot == b.freed_at.slot) a.freed_at.n = std::max(a.freed_at.n, b.freed_at.n);
  blocks_.erase(right);
  return true;
}

// Neighbours of different streams merge here, once both are complete.
void AsyncPool::trim_to(Bytes bytes_to_keep) {
  if (reserved_ <= bytes_to_keep) return;
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    if (!block->second.is_free) continue;
    by_size_.erase({block->second.size, block->first});
    for (auto next = std::next(block); next != blocks_.end() && next->second.is_free; next = std::next(block)) {
      const std::pair key{next->second.size, next->first};
      if (!absorb(block, next)) break;
      by_size_.erase(key);
    }
    by_size_.emplace(block->second.size, block->first);
  }
  for (auto segment = segments_.begin(); segment != segments_.end() && reserved_ > bytes_to_keep;) {
    const auto block = blocks_.find(segment->first);
    if (!block->second.is_free || block->second.size != segment->second || !complete(block->second)) {
      ++segment;
      continue;
    }
    by_size_.erase({block->second.size, block->first});
    blocks_.erase(block);
    memory_.unplug({segment->first, segment->second});
    reserved_ -= segment->second;
    segment = segments_.erase(segment);
  }
}

CuResult AsyncPool::set_attribute(MemPoolAttribute attribute, std::uint64_t value) {
  switch (attribute) {
    case MemPoolAttribute::reuse_allow_internal_dependencies: internal_dependencies_ = value; return CuResult::success;
    case MemPoolAttribute::release_threshold: release_threshold_ = value; return CuResult::success;
    case MemPoolAttribute::reserved_mem_high:
      if (value != 0) return CuResult::invalid_value;
      reserved_high_ = reserved_;
      return CuResult::success;
    case MemPoolAttribute::used_mem_high:
      if (value != 0) return CuResult::invalid_value;
      used_high_ = used_;
      return CuResult::success;
    case MemPoolAttribute::reserved_mem_current:
    case MemPoolAttribute::used_mem_current: break;
  }
  return CuResult::invalid_value;
}

CuResult AsyncPool::get_attribute(MemPoolAttribute attribute, std::uint64_t& value) const {
  switch (attribute) {
    case MemPoolAttribute::reuse_allow_internal_dependencies: value = internal_dependencies_; return CuResult::success;
    case MemPoolAttribute::release_threshold: value = release_threshold_; return CuResult::success;
    case MemPoolAttribute::reserved_mem_current: value = reserved_; return CuResult::success;
    case MemPoolAttribute::reserved_mem_high: value = reserved_high_; return CuResult::success;
    case MemPoolAttribute::used_mem_current: value = used_; return CuResult::success;
    case MemPoolAttribute::used_mem_high: value = used_high_; return CuResult::success;
  }
  return CuResult::invalid_value;
}

}  // namespace vpmm::driver::sim
