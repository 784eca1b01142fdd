// SPDX-License-Identifier: Apache-2.0
// vm: chunks, their mappings, and the used part of each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/page_unit.hpp"
#include "base/zeroed_array.hpp"
#include "driver/types.hpp"

namespace vpmm::vm {

// One cuMemCreate handle. Lives until its handle is released and its last mapping is gone.
struct Chunk : FromHostMemory {
  driver::ChunkHandle handle{};
  Bytes size = 0;
  std::uint32_t mappings = 0;  // one in use, and one per zombie
  bool handle_held = true;     // false: released, alive only through its mappings
  DevicePtr place{};           // mapping in use, others are zombies; null: none
  DevicePtr left{};            // previous place; null: new
  Bytes partly_used = 0;       // bytes of allocations that use only a part of it
};

// A chunk at an address. Mappings are whole chunks and never overlap.
struct Mapping {
  DevicePtr at{};
  Chunk* chunk = nullptr;  // null: not mapped
  AddressRange range() const { return {at, chunk->size}; }
  DevicePtr end() const { return at + chunk->size; }
};

// Pure bookkeeping.
//
// Note [Trapped memory]
// An allocation may begin and end anywhere in a chunk, so a chunk may be used in part. Its idle
// part serves requests that fit there, but cannot move: it is trapped. Only the chunks at the two
// ends of an allocation can be used in part, so an allocation or a free looks at these alone.
//
// Invariants: chunk_bytes() = sum of chunk sizes; mapping_count() = sum of their mappings;
// trapped_bytes() = sum of size - partly_used over chunks with partly_used > 0.
class ChunkTable {
 public:
  explicit ChunkTable(Bytes page_size) : unit_(page_size) {}

  // Adds address space, in whole pages, for later mappings. Throws std::bad_alloc.
  void cover(AddressRange reservation) VPMM_REQUIRES(pool_lock);
  // Makes room for `count` more chunks, so that adding them does not rehash.
  void provide(std::size_t count) VPMM_REQUIRES(pool_lock);
  Chunk* add(driver::ChunkHandle handle, Bytes size) VPMM_REQUIRES(pool_lock);
  void map(Chunk* chunk, DevicePtr at) VPMM_REQUIRES(pool_lock);
  // Forgets the mappings inside `range`, which must hold whole mappings only; a chunk without
  // handle goes with its last one.
  void unmap(AddressRange range) VPMM_REQUIRES(pool_lock);
  // Notes the release of the handle; the chunk goes with its last mapping.
  void handle_released(Chunk* chunk) VPMM_REQUIRES(pool_lock);

  // Count `range`, fully mapped, as one allocation, or as one no longer. Note [Trapped memory]
  void begin_use(AddressRange range) VPMM_REQUIRES(pool_lock) {
    change_use(range, &ChunkTable::more);
  }
  void end_use(AddressRange range) VPMM_REQUIRES(pool_lock) {
    change_use(range, &ChunkTable::less);
  }
  Bytes trapped_bytes() const VPMM_REQUIRES(pool_lock) { return trapped_bytes_; }

  // Mapping around `p`; empty if none.
  Mapping around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  // Begin of the first whole mapping at or behind `p`; end of the last one at or before `p`.
  // Requires: the byte at `p`, or before it, is mapped.
  DevicePtr first_border(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  DevicePtr last_border(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  Vector<Mapping> inside(AddressRange range) const VPMM_REQUIRES(pool_lock);
  // Visits the mappings inside `range`, by address, until `visit` returns false.
  void for_each_inside(AddressRange range, FunctionRef<bool(const Mapping&)> visit) const
      VPMM_REQUIRES(pool_lock);
  void for_each_around(AddressRange range, FunctionRef<void(const Mapping&)> visit) const
      VPMM_REQUIRES(pool_lock);

  Bytes chunk_bytes() const VPMM_REQUIRES(pool_lock) { return chunk_bytes_; }
  std::uint64_t chunk_count() const VPMM_REQUIRES(pool_lock) { return chunks_.size(); }
  std::uint64_t mapping_count() const VPMM_REQUIRES(pool_lock) { return mapping_count_; }
  void for_each_chunk(FunctionRef<void(Chunk&)> visit) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct Table {
    AddressRange range;
    ZeroedArray<Mapping> pages;
  };

  Mapping* page_of(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  void set(AddressRange range, const Mapping& mapping) VPMM_REQUIRES(pool_lock);
  void forget(Chunk* chunk) VPMM_REQUIRES(pool_lock);
  void change_use(AddressRange range, void (ChunkTable::*change)(Chunk&, Bytes))
      VPMM_REQUIRES(pool_lock);
  void more(Chunk& chunk, Bytes bytes) VPMM_REQUIRES(pool_lock);
  void less(Chunk& chunk, Bytes bytes) VPMM_REQUIRES(pool_lock);

  PageUnit unit_;
  Vector<Table> tables_ VPMM_GUARDED_BY(pool_lock);
  HashMap<const Chunk*, std::unique_ptr<Chunk>> chunks_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t mapping_count_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes chunk_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes trapped_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::vm
