// SPDX-License-Identifier: Apache-2.0
// arena: all arenas of a device: their memory, requests and frees.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "arena/arena.hpp"
#include "base/function_ref.hpp"
#include "pool/pool.hpp"
#include "pool/stamper.hpp"
#include "report/recorder.hpp"
#include "report/shortage_report.hpp"
#include "small/small_pool.hpp"
#include "time/timelines.hpp"

namespace vpmm::arena {

struct ArenaOptions {
  bool one_chunk = false;    // a stretch from the pool is one physical chunk
  bool splits = true;        // false: no two allocations share a stretch
  std::uint32_t tag = 0;     // for reports
  bool is_external = false;  // divides memory of the caller only: add_external()
  bool is_exact = false;     // no stretch has more than its request needs, in few chunks
};

Error no_arenas();  // unsupported: there is no pool

// Note [Arenas take whole stretches]
// An arena takes whole pages from the pool without a stream: its memory is complete, also in a
// capture. It divides them into blocks. All its calls take the pool's lock; stream caches and
// pagemap do not know its blocks. The pool's index counts a stretch as one allocation, and the
// ledger corrects that to the blocks. An idle stretch goes back with the stamp of its blocks.
//
// Note [Pinned memory stays]
// A graph uses its captured addresses at every launch. So the first request or free of a capturing
// stream pins the arena: it keeps its memory until its release. Stamps of its blocks do not count
// then: memory is free for everybody once all work queued so far is done.
//
// Note [External memory]
// An external arena divides memory of its caller. The pool does not know this memory: no figure
// counts it, and no observer sees it. The owner takes it back and may unmap it at once, so
// take_external() returns only stretches with complete stamps.
//
// Note [Suspended arenas]
// A suspended arena keeps its blocks and their addresses, and its stretches have no physical memory
// (Note [Suspended memory]). It serves no request. While a call suspends or resumes it without the
// lock, its stretches stay as they are; frees change blocks only. A stretch that is idle while
// suspended ends, as nobody can use its address again. Figures of live and free memory leave
// suspended stretches out.
//
// create() and stretch_for() require a pool.
class Arenas {
 public:
  // `pool`, `small`: null without a pool. `isolates`: VPMM_IPC_ISOLATE.
  Arenas(pool::Pool* pool, small::SmallPool* small, time::Timelines& timelines,
         pool::Stamper& stamper, report::Recorder& recorder, bool isolates)
      : pool_(pool),
        small_(small),
        timelines_(timelines),
        stamper_(stamper),
        recorder_(recorder),
        isolates_(isolates) {}

  pool::ArenaId create(const ArenaOptions& options) VPMM_REQUIRES(pool_lock);
  // --- a request ---
  // A capturing stream pins the arena. invalid_argument: no such arena. suspended.
  Result<void> enter(pool::ArenaId id, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Allocates from memory of the arena. Null if no free block fits.
  DevicePtr take(const pool::Request& request, const pool::Caller& caller, Arena::Reach room)
      VPMM_REQUIRES(pool_lock);
  // Tells if take() may succeed once more work is proven complete.
  bool waits_for_proof(const pool::Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Request to the pool after take() failed.
  pool::PageRequest stretch_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);
  // Adds memory that the pool gave. If the arena was released meanwhile, gives the memory back:
  // invalid_argument.
  Result<void> add(pool::ArenaId id, const pool::Placed& stretch, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> take_at(pool::ArenaId id, AddressRange part, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // --- live blocks ---
  // Tells if `p` is in memory of an arena.
  bool has(DevicePtr p) const VPMM_REQUIRES(pool_lock) { return entry_around(p) != nullptr; }
  // Null: none.
  const ArenaBlock* live_around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  std::optional<AddressRange> range_of(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  pool::ArenaId arena_of(DevicePtr p) const VPMM_REQUIRES(pool_lock);  // 0: none
  static std::uint64_t stream_id_of(StreamKey key);                    // 0: no known stream
  // Requires: a live block begins there.
  void record_use(DevicePtr begin, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // Frees a block. Returns false if no live block begins there.
  bool end(DevicePtr begin, const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Call after end() was reported: a released arena around `p` gives its idle memory back.
  void ended(DevicePtr p) VPMM_REQUIRES(pool_lock);
  Result<Vector<DevicePtr>> live_in(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);

  // --- external arenas: external_memory.cpp, Note [External memory] ---
  bool is_external(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // invalid_argument: the arena is not external, or the memory does not fit.
  // `is_owned`: tells if the pool owns a part of the memory.
  Result<void> add_external(pool::ArenaId id, AddressRange memory,
                            FunctionRef<bool(AddressRange)> is_owned) VPMM_REQUIRES(pool_lock);
  // Tells if the arena has a stretch without live blocks, and is not pinned.
  Result<bool> has_idle_external(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Removes a stretch without live blocks and work in progress, as it was added. Empty: none.
  Result<AddressRange> take_external(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Visits the begin of each external stretch.
  void for_each_external(FunctionRef<void(DevicePtr)> visit) const VPMM_REQUIRES(pool_lock);
  // out_of_memory. Requires: the arena exists.
  Error no_room_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);

  // --- suspended arenas: suspended_arenas.cpp, Note [Suspended arenas] ---
  enum class Residence { resident, suspending, suspended, resuming };
  // Arenas with this tag that can be suspended, also released ones with live blocks.
  Vector<pool::ArenaId> with_tag(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  // invalid_argument: no such arena. unsupported: it is external.
  Result<void> may_reside(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  bool exists(pool::ArenaId id) const VPMM_REQUIRES(pool_lock) {
    return by_id_.contains(static_cast<std::uint64_t>(id));
  }
  // Requires, here and below: exists(), not external.
  Residence residence_of(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  std::uint32_t tag_of(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Provides for begin_change(). Throws std::bad_alloc.
  void prepare_change(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  void begin_change(pool::ArenaId id, Residence change) VPMM_REQUIRES(pool_lock);
  // `outcome`: resident or suspended; an arena with suspended stretches is suspended nevertheless.
  // Reports a change, of `bytes`. Gives back idle memory of an arena that was released meanwhile.
  void end_change(pool::ArenaId id, Residence outcome, Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Tell the observer of memory that users have the memory of the arena no more, or again.
  void observe_leave(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  void observe_return(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Adopts which stretches are suspended, in figures and blocks.
  void note_suspended(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Regions of its stretches, by address.
  Vector<region::Region*> regions_of(pool::ArenaId id, bool are_suspended) const
      VPMM_REQUIRES(pool_lock);
  // Whether work on free blocks is over, and no graph uses any.
  bool is_quiet(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Ranges of live blocks, by address.
  Vector<AddressRange> live_ranges(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  pool::Chunks chunks_of(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  struct Amounts {
    Bytes live = 0;  // requested
    Bytes held = 0;
    Bytes suspended = 0;  // part of held
  };
  Amounts amounts_of(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Whether `p`, in memory of an arena, has physical memory that nobody is taking away.
  bool is_resident(DevicePtr p) const VPMM_REQUIRES(pool_lock);

  // --- giving back ---
  Result<void> pin(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<void> release(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Gives back idle stretches of all arenas that are not pinned. Returns the bytes.
  Bytes give_back_idle() VPMM_REQUIRES(pool_lock);
  // After the end of the primary context's streams.
  void forget_streams() VPMM_REQUIRES(pool_lock);

  // --- figures ---
  std::uint64_t live() const VPMM_REQUIRES(pool_lock);
  Bytes free_bytes() const VPMM_REQUIRES(pool_lock);               // in stretches of the pool
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock);            // free, not complete
  bool is_idle(DevicePtr stretch) const VPMM_REQUIRES(pool_lock);  // can go back to the pool
  // Arenas with memory of the pool.
  std::vector<report::ArenaHolding> holdings() const VPMM_REQUIRES(pool_lock);
  // Visits the blocks of the stretch around `p`. `is_pinned`: of their arena.
  void for_each_block_around(DevicePtr p,
                             FunctionRef<void(const ArenaBlock&, bool is_pinned)> visit) const
      VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct ArenaEntry : FromHostMemory {
    ArenaEntry(pool::ArenaId number, const ArenaOptions& asked, Bytes page,
               Arena::Splitting splitting)
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
  };
  // The thread tells per-thread default streams apart: they share one handle.
  using NamedStream = std::pair<driver::StreamHandle, std::thread::id>;

  ArenaEntry* find(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);  // null: none, or released
  Result<ArenaEntry*> entry(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  ArenaEntry* entry_around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  StreamKey key_of(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void drop_unused_names() VPMM_REQUIRES(pool_lock);
  void refresh(ArenaEntry& entry) const VPMM_REQUIRES(pool_lock);
  DevicePtr begin(ArenaEntry& entry, AddressRange part, Bytes requested, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Bytes give_back_idle(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);
  void give_back(ArenaEntry& entry, const Stretch& idle) VPMM_REQUIRES(pool_lock);
  Result<ArenaEntry*> external_entry(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  std::string_view objection_to(AddressRange memory, FunctionRef<bool(AddressRange)> is_owned) const
      VPMM_REQUIRES(pool_lock);
  bool is_complete(const Arena& arena, const Stretch& idle) const VPMM_REQUIRES(pool_lock);
  void drop_external(ArenaEntry& entry, const Stretch& idle) VPMM_REQUIRES(pool_lock);
  Error is_suspended(const ArenaEntry& entry) const;
  void for_each_used(pool::ArenaId id, FunctionRef<void(AddressRange)> visit) const
      VPMM_REQUIRES(pool_lock);
  void observe_silent_frees(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);
  Bytes free_in_suspended(const Arena& arena) const VPMM_REQUIRES(pool_lock);
  void drop_if_over(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);
  std::string validate(const ArenaEntry& entry) const VPMM_REQUIRES(pool_lock);
  void count_reference(std::optional<time::TimelineId> timeline, int change)
      VPMM_REQUIRES(pool_lock);

  pool::Pool* const pool_;
  small::SmallPool* const small_;
  time::Timelines& timelines_;
  pool::Stamper& stamper_;
  report::Recorder& recorder_;
  const bool isolates_;
  Map<std::uint64_t, std::unique_ptr<ArenaEntry>> by_id_ VPMM_GUARDED_BY(pool_lock);
  Map<DevicePtr, ArenaEntry*> by_stretch_ VPMM_GUARDED_BY(pool_lock);  // by its begin
  Map<NamedStream, StreamKey> names_
      VPMM_GUARDED_BY(pool_lock);  // Note [A capturing stream goes by its handle]
  std::uint64_t last_unknown_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::arena
