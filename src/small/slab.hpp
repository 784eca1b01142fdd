// small: equal blocks in a row, and what is kept beside them.
#pragma once

#include <array>
#include <cstdint>

#include "base/address.hpp"
#include "small/size_class.hpp"

namespace vpmm::small {

class Shard;
struct Extent;

// Equal blocks cut from units of one extent. Belongs to one shard, whose lock guards all that changes; shard and size
// change only while it holds no live block.
// live = not free and not waiting
struct alignas(64) Slab {
  // What every call touches, on one line.
  std::uint64_t free = 0;     // bit i: block i may be given to the shard's stream
  std::uint64_t waiting = 0;  // freed, and its stamp is not complete
  DevicePtr begin{};
  Shard* shard = nullptr;
  Slab* previous = nullptr;  // in one of the shard's lists
  Slab* next = nullptr;
  std::uint64_t number = 0;  // latest that a free of a block here carries; 0: none
  std::uint16_t slab_class = 0;
  std::uint16_t units = 0;
  std::uint16_t blocks = 0;
  bool has_uses = false;  // some block is in used_elsewhere
  // The next lines.
  std::array<std::uint16_t, kMostBlocks> slack{};  // block size less what the user asked for
  std::uint64_t used_elsewhere = 0;                // live, and record_use named another stream
  Extent* extent = nullptr;

  Bytes block_bytes() const { return kShapes[slab_class].block; }
  std::uint64_t index_of(DevicePtr p) const { return kShapes[slab_class].index_of(p - begin); }
  DevicePtr block(std::uint64_t index) const { return begin + index * block_bytes(); }
  std::uint64_t all() const { return ~std::uint64_t{0} >> (kMostBlocks - blocks); }
  Bytes bytes() const { return units * kUnit; }
  Bytes requested(std::uint64_t index) const { return block_bytes() - slack[index]; }
  bool is_live(std::uint64_t index) const {
    return index < blocks && ((free | waiting) >> index & std::uint64_t{1}) == 0;
  }
  bool is_empty() const { return free == all(); }
  bool is_used_elsewhere(std::uint64_t index) const { return has_uses && (used_elsewhere >> index & 1) != 0; }
  void set_used_elsewhere(std::uint64_t index, bool is_used) {
    const std::uint64_t bit = std::uint64_t{1} << index;
    used_elsewhere = is_used ? used_elsewhere | bit : used_elsewhere & ~bit;
    has_uses = used_elsewhere != 0;
  }
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
