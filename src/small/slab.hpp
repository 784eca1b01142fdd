// small: what is kept beside the memory about a page that small requests are cut from.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/address.hpp"
#include "region/region.hpp"
#include "small/size_class.hpp"

namespace vpmm::small {

class Shard;
struct Extent;

// What this room keeps about an allocation of the pool: the arena in it, or the shard that keeps it. A shard writes it
// under its own lock, while whoever has the pool's may look.
inline void* holder_of(const region::Region& region) {
  return std::atomic_ref<void*>(const_cast<void*&>(region.holder)).load(std::memory_order_relaxed);
}
inline void set_holder(region::Region& region, void* holder) {
  std::atomic_ref<void*>(region.holder).store(holder, std::memory_order_relaxed);
}

// One page of the pool. `owners` names, for every unit, the slab around it, or else the extent; the first bit tells
// which: set for an extent. Written under the lock of the shard that has the extent, read under any by whoever has
// something live in the unit, which cannot change meanwhile.
struct Arena {
  AddressRange range;
  region::Region* page = nullptr;                 // its allocation in the pool
  std::uint64_t occupied = 0;                     // extents in it
  std::atomic<std::uintptr_t>* owners = nullptr;  // by unit
  std::uint32_t* runs = nullptr;                  // by unit: of a live run that begins there, what its user asked for

  std::uint64_t unit_of(DevicePtr p) const { return (p - range.begin) / kUnit; }
  void set_owner(std::uint64_t first, std::uint64_t units, std::uintptr_t owner) {
    for (std::uint64_t unit = first; unit < first + units; ++unit) owners[unit].store(owner, std::memory_order_relaxed);
  }
};
constexpr std::uintptr_t kExtentTag = 1;
constexpr std::uint32_t kUsedElsewhere = std::uint32_t{1} << 31;  // in Arena::runs: record_use named another stream

// Equal blocks cut from units of one extent. Belongs to one shard, whose lock guards all that changes; shard and shape
// change only while it holds no live block.
// live = not free and not waiting
struct alignas(64) Slab {
  // What every call touches, on one line.
  std::uint64_t free = 0;            // bit i: block i may be given to the shard's stream
  std::uint64_t waiting = 0;         // freed, and its stamp is not complete
  std::uint64_t used_elsewhere = 0;  // live, and record_use named another stream
  DevicePtr begin{};
  Shard* shard = nullptr;
  Slab* previous = nullptr;  // in one of the shard's lists
  Slab* next = nullptr;
  std::uint64_t slab_class = 0;
  // The next line, with the first blocks' slack.
  std::uint64_t number = 0;  // latest that a free of a block here carries; 0: none
  Extent* extent = nullptr;
  std::array<std::uint16_t, kMostBlocks> slack{};  // block size less what the user asked for

  const SlabShape& shape() const { return kShapes[slab_class]; }
  std::uint64_t index_of(DevicePtr p) const { return shape().index_of(p - begin); }
  DevicePtr block(std::uint64_t index) const { return begin + index * shape().block; }
  Bytes bytes() const { return shape().units * kUnit; }
  Bytes requested(std::uint64_t index) const { return shape().block - slack[index]; }
  bool is_live(std::uint64_t index) const {
    return index < shape().blocks && ((free | waiting) >> index & std::uint64_t{1}) == 0;
  }
  bool is_empty() const { return free == shape().all(); }
};

// Slabs in a row, in no order.
struct SlabList {
  Slab* first = nullptr;

  void push(Slab* slab) {
    slab->previous = nullptr;
    slab->next = first;
    if (first != nullptr) first->previous = slab;
    first = slab;
  }
  void remove(Slab* slab) {
    (slab->previous == nullptr ? first : slab->previous->next) = slab->next;
    if (slab->next != nullptr) slab->next->previous = slab->previous;
    slab->previous = slab->next = nullptr;
  }
};

}  // namespace vpmm::small
