// vm: which chunks exist and where each is mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "driver/types.hpp"

namespace vpmm::vm {

// One cuMemCreate handle. It exists until its handle is released and its last mapping gone.
struct Chunk : FromHostMemory {
  driver::ChunkHandle handle{};
  Bytes size = 0;
  std::uint32_t mappings = 0;  // one where it is used, and one for each zombie of it
  bool handle_held = true;     // false: released, alive only through its mappings
  DevicePtr place{};           // its mapping that counts, others are zombies; null: none of them
  DevicePtr left{};            // the mapping that counted before; null: it is new
};

// A chunk at an address. Mappings are whole chunks and never overlap.
struct Mapping {
  DevicePtr at{};
  Chunk* chunk = nullptr;
  AddressRange range() const { return {at, chunk->size}; }
};

// Pure bookkeeping.
// Invariants: chunk_bytes() is the sum of the sizes of all chunks; mapping_count() is the sum of their mappings.
class ChunkTable {
 public:
  // Makes room for so many more, so that adding them moves nothing.
  void provide(std::size_t count) VPMM_REQUIRES(pool_lock);
  Chunk* add(driver::ChunkHandle handle, Bytes size) VPMM_REQUIRES(pool_lock);
  void map(Chunk* chunk, DevicePtr at) VPMM_REQUIRES(pool_lock);
  // Forgets the mappings inside `range`, which must hold whole mappings only; a chunk without handle goes with its
  // last.
  void unmap(AddressRange range) VPMM_REQUIRES(pool_lock);
  // The handle was given back to the driver; the chunk goes when no mapping is left.
  void handle_released(Chunk* chunk) VPMM_REQUIRES(pool_lock);

  // The whole mappings that lie inside `range`, by address.
  Vector<Mapping> inside(AddressRange range) const VPMM_REQUIRES(pool_lock);
  // Visits them in order until `visit` returns false.
  void for_each_inside(AddressRange range, FunctionRef<bool(const Mapping&)> visit) const VPMM_REQUIRES(pool_lock);
  // The same from the last to the first.
  void for_each_inside_backwards(AddressRange range, FunctionRef<bool(const Mapping&)> visit) const
      VPMM_REQUIRES(pool_lock);
  // Visits every mapping that overlaps `range`, by address.
  void for_each_around(AddressRange range, FunctionRef<void(const Mapping&)> visit) const VPMM_REQUIRES(pool_lock);

  Bytes chunk_bytes() const VPMM_REQUIRES(pool_lock) { return chunk_bytes_; }
  std::uint64_t chunk_count() const VPMM_REQUIRES(pool_lock) { return chunks_.size(); }
  std::uint64_t mapping_count() const VPMM_REQUIRES(pool_lock) { return mappings_.size(); }
  void for_each_chunk(FunctionRef<void(Chunk&)> visit) const VPMM_REQUIRES(pool_lock);
  void for_each_mapping(FunctionRef<void(const Mapping&)> visit) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  void forget(Chunk* chunk) VPMM_REQUIRES(pool_lock);

  using Mappings = Map<DevicePtr, Chunk*>;
  using Places = HashMap<std::uint64_t, Mappings::iterator>;
  // The first mapping at or behind `p`, and the first behind those that lie before `p`: at once where one begins or
  // ends there, as at the ends of regions.
  Mappings::const_iterator from(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  Mappings::const_iterator up_to(DevicePtr p) const VPMM_REQUIRES(pool_lock);

  HashMap<const Chunk*, std::unique_ptr<Chunk>> chunks_ VPMM_GUARDED_BY(pool_lock);
  Mappings mappings_ VPMM_GUARDED_BY(pool_lock);
  Places by_begin_ VPMM_GUARDED_BY(pool_lock);  // all of them
  Places by_end_ VPMM_GUARDED_BY(pool_lock);    // likewise
  Bytes chunk_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::vm
