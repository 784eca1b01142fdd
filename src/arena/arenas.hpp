// SPDX-License-Identifier: Apache-2.0
// arena: all arenas of a device: their memory, requests and frees.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena_table.hpp"
#include "arena/external_arenas.hpp"
#include "arena/residency.hpp"
#include "arena/stream_names.hpp"
#include "base/function_ref.hpp"
#include "report/shortage_report.hpp"

namespace vpmm::arena {

Error no_arenas();  // unsupported: there is no pool

// Note [Arenas take whole stretches]
// An arena takes whole pages from the pool without a stream: its memory is complete, also in a
// capture. It divides them into blocks. All its calls take the pool's lock; stream caches and
// pagemap do not know its blocks. The pool's index counts a stretch as one allocation, and the
// ledger corrects that to the blocks. An idle stretch goes back with the stamp of its blocks, and
// in a shortage or a trim idle chunks of other stretches do (Note [Stretches are divided at
// chunks]).
//
// Note [Pinned memory stays]
// A graph uses its captured addresses at every launch. So the first request or free of a capturing
// stream pins the arena: it keeps its memory until its release. Stamps of its blocks do not count
// then: memory is free for everybody once all work queued so far is done.
//
// create() and stretch_for() require a pool.
class Arenas {
 public:
  // `pool`, `small`: null without a pool. `isolates`: VPMM_IPC_ISOLATE.
  Arenas(pool::Pool* pool, small::SmallPool* small, time::Timelines& timelines,
         pool::Stamper& stamper, report::Recorder& recorder, bool isolates)
      : table_{pool, small, timelines, stamper, recorder}, isolates_(isolates) {}

  ExternalArenas& external() { return external_; }
  const ExternalArenas& external() const { return external_; }
  Residency& residency() { return residency_; }
  // Null: none. Finds a released arena while it has memory.
  const ArenaEntry* find(pool::ArenaId id) const VPMM_REQUIRES(pool_lock) {
    return table_.find(id);
  }
  pool::ArenaId create(const ArenaOptions& options) VPMM_REQUIRES(pool_lock);
  // --- a request ---
  // A capturing stream pins the arena. invalid_argument: no such arena. suspended.
  Result<void> enter(pool::ArenaId id, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Allocates from memory of the arena. Null if no free block fits.
  DevicePtr take(const pool::Request& request, const pool::Caller& caller, Reach room)
      VPMM_REQUIRES(pool_lock);
  // Tells if take() may succeed once more work is proven complete.
  bool waits_for_proof(const pool::Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Pages of a stretch for the request alone, and of one that it shares: Note [Shared stretches].
  Bytes least_pages(const pool::Request& request) const VPMM_REQUIRES(pool_lock);
  Bytes pages_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);
  // Request to the pool after take() failed.
  pool::PageRequest stretch_for(const pool::Request& request, Bytes pages) const
      VPMM_REQUIRES(pool_lock);
  // Adds memory that the pool gave. If the arena was released meanwhile, gives the memory back:
  // invalid_argument.
  Result<void> add(pool::ArenaId id, const pool::Placed& stretch, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> take_at(pool::ArenaId id, AddressRange part, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // --- live blocks ---
  // Null: no memory of an arena.
  const ArenaEntry* around(DevicePtr p) const VPMM_REQUIRES(pool_lock) { return table_.around(p); }
  // These require memory of an arena. Null, nullopt: no live block.
  const ArenaBlock* live_around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  std::optional<AddressRange> range_of(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  // Tells if `p`, in memory of an arena, has physical memory that nobody is taking away.
  bool is_resident(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  // Requires: a live block begins there.
  void record_use(DevicePtr begin, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // Frees a block. Returns false if no live block begins there.
  bool end(DevicePtr begin, const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Call after end() was reported: a released arena around `p` gives its idle memory back.
  void ended(DevicePtr p) VPMM_REQUIRES(pool_lock);
  Result<Vector<DevicePtr>> live_in(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);

  // --- giving back ---
  Result<void> pin(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<void> release(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // From all arenas that are not pinned. Returns the bytes.
  Bytes give_back_idle(Idle what) VPMM_REQUIRES(pool_lock);
  // After the end of the primary context's streams.
  void forget_streams() VPMM_REQUIRES(pool_lock);

  // --- figures ---
  std::uint64_t live() const VPMM_REQUIRES(pool_lock);
  Bytes free_bytes() const VPMM_REQUIRES(pool_lock);     // in stretches of the pool
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock);  // free, not complete
  // Tells if a part of a stretch can go back to the pool.
  bool is_idle(AddressRange part) const VPMM_REQUIRES(pool_lock);
  // Arenas with memory of the pool.
  std::vector<report::ArenaHolding> holdings() const VPMM_REQUIRES(pool_lock);
  // Visits the blocks of the stretch around `p`, which there must be. `is_pinned`: of their arena.
  void for_each_block_around(DevicePtr p,
                             FunctionRef<void(const ArenaBlock&, bool is_pinned)> visit) const
      VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock) { return table_.validate(); }

 private:
  void refresh(ArenaEntry& entry) const VPMM_REQUIRES(pool_lock);
  DevicePtr begin(ArenaEntry& entry, AddressRange part, Bytes requested, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  ArenaTable table_;
  StreamNames names_{table_};
  ExternalArenas external_{table_};
  Residency residency_{table_};
  const bool isolates_;
};

}  // namespace vpmm::arena
