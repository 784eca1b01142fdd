// SPDX-License-Identifier: Apache-2.0
// arena: the arenas of a device by number, and their stretches by address.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "arena/arena.hpp"
#include "base/function_ref.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "pool/pool.hpp"
#include "pool/stamper.hpp"
#include "report/recorder.hpp"
#include "small/small_pool.hpp"
#include "time/timelines.hpp"

namespace vpmm::arena {

struct ArenaOptions {
  bool one_chunk = false;    // a stretch from the pool is one physical chunk
  bool splits = true;        // false: no two allocations share a stretch
  std::uint32_t tag = 0;     // for reports
  bool is_external = false;  // divides memory of the caller only: ExternalArenas
  bool is_exact = false;     // no stretch has more than its request needs, in few chunks
};

enum class Residence { resident, suspending, suspended, resuming };

// Parts of an arena that go back to the pool. chunks: also those without a live block in stretches
// with one. Linear in blocks.
enum class Idle { stretches, chunks };

struct ArenaEntry : FromHostMemory {
  ArenaEntry(pool::ArenaId number, const ArenaOptions& asked, Bytes page, Splitting splitting)
      : id(number), options(asked), arena(page, splitting) {}
  const pool::ArenaId id;
  const ArenaOptions options;
  Arena arena;
  bool is_released = false;
  Residence residence = Residence::resident;
  bool has_left = false;  // as observers of memory know
  // Freed while a call copies them; observers are told after it.
  Vector<AddressRange> silent_frees;

  bool keeps_stretches() const {
    return residence == Residence::suspending || residence == Residence::resuming;
  }
  // Tells if idle memory stays: it is the caller's, or graphs use it at any time.
  bool keeps_idle() const { return options.is_external || (arena.is_pinned() && !is_released); }
  // Visits memory in use. All of a pinned stretch: graphs use its free blocks, too.
  void for_each_used(FunctionRef<void(AddressRange)> visit) const;
  // Ranges of live blocks, by address.
  Vector<AddressRange> live_ranges() const;
  struct Amounts {
    Bytes held = 0;
    Bytes suspended = 0;  // part of held
  };
  Amounts amounts() const;
  Bytes free_in_suspended() const;
};

// Shared by the parts of Arenas.
struct ArenaTable {
  pool::Pool* const pool;  // null without a pool: no arena exists, here and below
  small::SmallPool* const small;
  time::Timelines& timelines;
  pool::Stamper& stamper;
  report::Recorder& recorder;
  Map<pool::ArenaId, std::unique_ptr<ArenaEntry>> by_id VPMM_GUARDED_BY(pool_lock){};
  Map<DevicePtr, ArenaEntry*> by_stretch VPMM_GUARDED_BY(pool_lock){};  // by its begin

  // Null: none. Finds a released arena while it has memory.
  ArenaEntry* find(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  ArenaEntry* open(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);  // null: or it was released
  // invalid_argument: no such arena, or it was released.
  Result<ArenaEntry*> entry(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Same; suspended.
  Result<ArenaEntry*> resident(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Null: no memory of an arena.
  ArenaEntry* around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  region::Region* region_of(const Stretch& stretch) const VPMM_REQUIRES(pool_lock) {
    return pool->memory().index.allocated_around(stretch.range.begin);
  }
  // Tells if work on the blocks is over.
  bool is_complete(const Arena& arena, const Stretch& idle) const VPMM_REQUIRES(pool_lock);

  void add(ArenaEntry& entry, AddressRange stretch, StreamKey key) VPMM_REQUIRES(pool_lock);
  void give_back(ArenaEntry& entry, const Stretch& idle) VPMM_REQUIRES(pool_lock);
  // Returns the bytes.
  Bytes give_back_idle(ArenaEntry& entry, Idle what) VPMM_REQUIRES(pool_lock);
  // Gives back idle stretches with addresses that nobody can use again, and drops the arena if it
  // was released and has no memory.
  void settle(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);
  // Makes idle chunks in busy stretches stretches of their own.
  void part_idle_chunks(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);
  // Makes whole chunks beyond `wanted` bytes of an idle stretch a stretch of their own. Returns the
  // stretch that is left. Without host memory it stays whole.
  AddressRange part_rest(ArenaEntry& entry, AddressRange idle, Bytes wanted)
      VPMM_REQUIRES(pool_lock);
  void divide(ArenaEntry& entry, DevicePtr at) VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);
  std::string validate(const ArenaEntry& entry) const VPMM_REQUIRES(pool_lock);
};

}  // namespace vpmm::arena
