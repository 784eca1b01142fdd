// SPDX-License-Identifier: Apache-2.0
// driver/sim: blocks of the stand-in for the driver's pools.
#include "driver/sim/async_pool.hpp"

#include <algorithm>
#include <iterator>

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kBlockUnit = 512;
constexpr Bytes kPage = 2 * kMiB;
constexpr Bytes kAddressSpace = 512 * kGiB;
constexpr Bytes kLargeBlock = 1024 * kKiB;
// Free blocks of other streams tried before the pool grows.
constexpr int kFitsTried = 256;

}  // namespace

AsyncPool::~AsyncPool() {
  if (space_.empty()) return;
  AddressRange run{};  // adjacent blocks
  for (const auto& [begin, block] : blocks_) {
    if (begin != run.end()) {
      unback(run);
      run = {begin, 0};
    }
    run.size += block.size;
  }
  unback(run);
  memory_.free_reservation(space_, SimMemory::ReservedFor::driver);
}

bool AsyncPool::complete(const AsyncBlock& block) const {
  return block.freed_at.slot == kHostSlot ||
         timeline_.complete({block.freed_at.slot, block.freed_at.n});
}

CuResult AsyncPool::allocate(Bytes size, Slot slot, AddressRange& range) {
  if (size == 0) return CuResult::invalid_value;
  if (size > 64 * kTiB) return CuResult::out_of_memory;
  size = round_up(size, kBlockUnit);
  auto block = find_fit(size, slot);
  if (block == blocks_.end()) {
    const CuResult result = grow(size, slot, block);
    if (result != CuResult::success) return result;
  }
  take(block, size, slot);
  range = {block->first, size};
  return CuResult::success;
}

AsyncPool::AsyncBlocks::iterator AsyncPool::find_fit(Bytes size, Slot slot) {
  int tried = 0;
  const AddressRange home = home_of(size);
  for (auto fit = by_size_.lower_bound({size, DevicePtr{}});
       fit != by_size_.end() && tried < kFitsTried; ++fit) {
    if (!home.contains(fit->second)) continue;
    const auto block = blocks_.find(fit->second);
    if (usable(block->second, slot)) return block;
    ++tried;
  }
  return blocks_.end();
}

// Gives blocks below half a page, often long-lived, a half of the space of their own: among large
// ones each would keep a page.
AddressRange AsyncPool::home_of(Bytes size) const {
  const Bytes half = space_.size / 2;
  return {size < kLargeBlock ? space_.begin : space_.begin + half, half};
}

Bytes AsyncPool::page() const { return std::max(kPage, memory_.granularity()); }

CuResult AsyncPool::grow(Bytes size, Slot slot, AsyncBlocks::iterator& block) {
  Growth growth;
  CuResult result = find_growth(size, slot, growth);
  if (result != CuResult::success) return result;
  result = back(growth.pages);
  if (result == CuResult::out_of_memory && reserved_ > 0) {
    trim_to(0);
    result = find_growth(size, slot, growth);
    if (result == CuResult::success) result = back(growth.pages);
  }
  if (result != CuResult::success) return result;
  if (growth.tail == blocks_.end()) {
    block = blocks_.emplace(growth.pages.begin, AsyncBlock{growth.pages.size, true, {}, {}}).first;
  } else {
    // The new pages are unused, so as free as the tail before them.
    block = growth.tail;
    by_size_.erase({block->second.size, block->first});
    block->second.size += growth.pages.size;
  }
  by_size_.emplace(block->second.size, block->first);
  return CuResult::success;
}

// Takes the fewest pages; the lowest address among equals.
CuResult AsyncPool::find_growth(Bytes size, Slot slot, Growth& growth) {
  if (space_.empty()) {
    space_.size = kAddressSpace;
    const CuResult result = memory_.reserve(space_.size, page(), DevicePtr{},
                                            SimMemory::ReservedFor::driver, space_.begin);
    if (result != CuResult::success) {
      space_ = {};
      return result;
    }
  }
  growth = {{}, blocks_.end()};
  auto tail = blocks_.end();
  const AddressRange home = home_of(size);
  DevicePtr gap = home.begin;
  const auto consider = [&](DevicePtr gap_end) {
    const Bytes begun = tail == blocks_.end() ? 0 : tail->second.size;
    const Bytes lacking = begun >= size ? page() : round_up(size - begun, page());
    if (lacking > gap_end - gap || (!growth.pages.empty() && lacking >= growth.pages.size)) return;
    growth = {{gap, lacking}, tail};
  };
  const auto end = blocks_.lower_bound(home.end());
  for (auto block = blocks_.lower_bound(home.begin); block != end; ++block) {
    if (gap < block->first) consider(block->first);
    gap = block->first + block->second.size;
    tail = block->second.is_free && usable(block->second, slot) ? block : blocks_.end();
  }
  if (gap < home.end()) consider(home.end());
  return growth.pages.empty() ? CuResult::out_of_memory : CuResult::success;
}

CuResult AsyncPool::back(AddressRange pages) {
  for (Bytes done = 0; done < pages.size; done += page()) {
    const CuResult result =
        memory_.plug_at({pages.begin + done, page()}, device_, TouchRight::none);
    if (result == CuResult::success) continue;
    for (Bytes undone = 0; undone < done; undone += page())
      memory_.unplug_at({pages.begin + undone, page()});
    return result;
  }
  reserved_ += pages.size;
  reserved_high_ = std::max(reserved_high_, reserved_);
  return CuResult::success;
}

void AsyncPool::unback(AddressRange pages) {
  for (Bytes done = 0; done < pages.size; done += page())
    memory_.unplug_at({pages.begin + done, page()});
  reserved_ -= pages.size;
}

void AsyncPool::take(AsyncBlocks::iterator block, Bytes size, Slot slot) {
  by_size_.erase({block->second.size, block->first});
  if (slot == kHostSlot) {
    timeline_.learn(block->second.freed_clock);
  } else {
    timeline_.join(slot, block->second.freed_clock);
  }
  if (block->second.size > size) {
    AsyncBlock rest = block->second;
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

AddressRange AsyncPool::find_around(DevicePtr inside) const {
  const auto after = blocks_.upper_bound(inside);
  if (after == blocks_.begin()) return {};
  const AddressRange block = find(std::prev(after)->first);
  return block.contains(inside) ? block : AddressRange{};
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

void AsyncPool::put(AsyncBlocks::iterator block) {
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

// Merges two blocks if one place in one stream can stand for both: the later one of the same
// stream, or any if both are complete.
bool AsyncPool::absorb(AsyncBlocks::iterator left, AsyncBlocks::iterator right) {
  AsyncBlock& a = left->second;
  const AsyncBlock& b = right->second;
  if (left->first + a.size != right->first) return false;  // pages without backing lie between
  if (a.freed_at.slot != b.freed_at.slot && !(complete(a) && complete(b))) return false;
  a.size += b.size;
  a.freed_clock.join(b.freed_clock);
  if (a.freed_at.slot == b.freed_at.slot) a.freed_at.n = std::max(a.freed_at.n, b.freed_at.n);
  blocks_.erase(right);
  return true;
}

// Merges neighbours of different streams once both are complete.
void AsyncPool::merge_complete() {
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    if (!block->second.is_free) continue;
    by_size_.erase({block->second.size, block->first});
    for (auto next = std::next(block); next != blocks_.end() && next->second.is_free;
         next = std::next(block)) {
      const std::pair key{next->second.size, next->first};
      if (!absorb(block, next)) break;
      by_size_.erase(key);
    }
    by_size_.emplace(block->second.size, block->first);
  }
}

// Takes the backing from whole pages inside complete free blocks. Keeps at least `bytes_to_keep`.
void AsyncPool::trim_to(Bytes bytes_to_keep) {
  const Bytes keep = round_up(std::min(bytes_to_keep, reserved_), page());
  if (reserved_ <= keep) return;
  merge_complete();
  for (auto block = blocks_.begin(); block != blocks_.end() && reserved_ > keep;) {
    const auto here = block++;
    if (!here->second.is_free || !complete(here->second)) continue;
    const DevicePtr end = here->first + here->second.size;
    const DevicePtr from = align_up(here->first, page());
    const DevicePtr to{round_down(to_integer(end), page())};
    if (from >= to) continue;
    const AddressRange pages{from, std::min(to - from, reserved_ - keep)};
    AsyncBlock rest = here->second;
    by_size_.erase({rest.size, here->first});
    if (pages.end() < end) {
      rest.size = end - pages.end();
      blocks_.emplace(pages.end(), rest);
      by_size_.emplace(rest.size, pages.end());
    }
    if (here->first < from) {
      here->second.size = from - here->first;
      by_size_.emplace(here->second.size, here->first);
    } else {
      blocks_.erase(here);
    }
    unback(pages);
  }
}

CuResult AsyncPool::set_attribute(MemPoolAttribute attribute, std::uint64_t value) {
  switch (attribute) {
    case MemPoolAttribute::reuse_allow_internal_dependencies:
      internal_dependencies_ = value;
      return CuResult::success;
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
    case MemPoolAttribute::reuse_allow_internal_dependencies:
      value = internal_dependencies_;
      return CuResult::success;
    case MemPoolAttribute::release_threshold: value = release_threshold_; return CuResult::success;
    case MemPoolAttribute::reserved_mem_current: value = reserved_; return CuResult::success;
    case MemPoolAttribute::reserved_mem_high: value = reserved_high_; return CuResult::success;
    case MemPoolAttribute::used_mem_current: value = used_; return CuResult::success;
    case MemPoolAttribute::used_mem_high: value = used_high_; return CuResult::success;
  }
  return CuResult::invalid_value;
}

}  // namespace vpmm::driver::sim
