// SPDX-License-Identifier: Apache-2.0
// pool: address space, chunks and region states, shared by the parts of the pool.
#pragma once

#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "pool/flights.hpp"
#include "pool/mapping_observer.hpp"
#include "pool/page_line.hpp"
#include "pool/tuning.hpp"
#include "pool/view.hpp"
#include "region/region_index.hpp"
#include "settings/config.hpp"
#include "time/timelines.hpp"
#include "vm/chunk_table.hpp"
#include "vm/mapper.hpp"

namespace vpmm::pool {

// Memory that the driver refused to take back; sweeps retry.
struct Quarantine {
  Map<DevicePtr, Bytes> stuck;  // mappings with a failed unmap; zombies
  Vector<vm::Chunk*> orphans;   // chunks without mapping and with a failed release

  Bytes bytes() const {
    Bytes bytes = 0;
    for (const auto& [at, size] : stuck) bytes += size;
    for (const vm::Chunk* orphan : orphans) bytes += orphan->size;
    return bytes;
  }
};

// Invariant: all but holes and suspended regions is mapped without a gap. Zombies are whole
// mappings; other regions may begin and end inside one.
struct Memory {
  Memory(driver::Driver& the_driver, const driver::ChunkProperties& properties,
         const settings::Config& settings, Bytes page_size, time::Timelines& the_timelines)
      : driver(the_driver),
        timelines(the_timelines),
        config(settings),
        tuning(tuning_of(settings, page_size)),
        index(tuning.grain),
        chunks(page_size),
        mapper(the_driver, properties) {}

  driver::Driver& driver;
  time::Timelines& timelines;
  const settings::Config config;
  const Tuning tuning;
  region::RegionIndex index VPMM_GUARDED_BY(pool_lock);
  vm::ChunkTable chunks VPMM_GUARDED_BY(pool_lock);
  vm::Mapper mapper;  // has its own lock
  Flights flights VPMM_GUARDED_BY(pool_lock);
  Quarantine quarantine VPMM_GUARDED_BY(pool_lock);
  Vector<AddressRange> reservations VPMM_GUARDED_BY(pool_lock);
  MappingObserver* mapping_observer VPMM_GUARDED_BY(pool_lock) = nullptr;
  // Mapped elsewhere on the same account.
  struct Others {
    Bytes bytes = 0;
    std::uint64_t mappings = 0;  // each of a chunk of its own
  };
  Others others VPMM_GUARDED_BY(pool_lock);
  Bytes suspended_bytes VPMM_GUARDED_BY(pool_lock) = 0;  // of allocated regions without memory
  alignas(kCacheLine) observe::Statistics counters
      VPMM_GUARDED_BY(pool_lock);  // totals, and peaks of mapped memory

  Bytes page_size() const { return tuning.page_size; }
  Bytes page_alignment() const { return tuning.page_alignment(); }
  bool pages_stand_alone() const { return pool::pages_stand_alone(config, page_size()); }
  View view() const VPMM_REQUIRES(pool_lock) { return {index, chunks, timelines, tuning}; }
  Bytes mapped_bytes() const VPMM_REQUIRES(pool_lock) { return chunks.chunk_bytes(); }
  Bytes idle_bytes() const VPMM_REQUIRES(pool_lock) {
    return index.bytes(region::RegionState::free);
  }
  Bytes used_bytes() const VPMM_REQUIRES(pool_lock) {
    return index.bytes(region::RegionState::allocated) - suspended_bytes;
  }
  // Bytes of chunks that would be wholly idle if parts of allocations with is_idle() were: the part
  // of an allocation in one chunk. Linear in regions and mappings.
  Bytes movable_bytes(FunctionRef<bool(const region::Region&, AddressRange part)> is_idle) const
      VPMM_REQUIRES(pool_lock);
  Bytes held_bytes() const VPMM_REQUIRES(pool_lock) { return mapped_bytes() + others.bytes; }
  std::uint64_t held_mappings() const VPMM_REQUIRES(pool_lock) {
    return chunks.mapping_count() + others.mappings;
  }
  // Bytes mapped or about to be mapped.
  Bytes claimed_bytes() const VPMM_REQUIRES(pool_lock) {
    return held_bytes() + flights.coming_bytes();
  }
  // Makes the mapping at `at` the chunk's place, until leave_place().
  void enter_place(vm::Chunk& chunk, DevicePtr at) VPMM_REQUIRES(pool_lock) {
    chunk.place = at;
    if (mapping_observer != nullptr) mapping_observer->on_map({at, chunk.size}, chunk.left);
  }
  void leave_place(vm::Chunk& chunk, MappingObserver::Fate fate) VPMM_REQUIRES(pool_lock) {
    chunk.left = std::exchange(chunk.place, DevicePtr{});
    if (mapping_observer != nullptr) mapping_observer->on_unmap({chunk.left, chunk.size}, fate);
  }
  // Counts chunks while they exist, so also those of an undone plan.
  void note_peaks(std::uint64_t undone_chunks = 0, Bytes undone_bytes = 0) VPMM_REQUIRES(pool_lock);
  void note_mappings(std::uint64_t undone_chunks = 0) VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  void fill(observe::Statistics& statistics) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);
};

}  // namespace vpmm::pool
