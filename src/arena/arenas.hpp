// arena: the arenas of a device: which memory each has, and the way of requests and frees in
// them.
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
  bool one_chunk = false;    // each stretch from the pool is one physical chunk
  bool splits = true;        // false: no two allocations share a stretch
  std::uint32_t tag = 0;     // for reports
  bool is_external = false;  // divides only memory of the caller: add_external()
};

Error no_arenas();  // unsupported: there is no pool to take memory from

// Note [Arenas take whole stretches]
// An arena takes allocations of whole pages from the pool, without a stream: what it gets is
// complete, also in a capture. It divides them by itself, so everything in an arena goes through
// the pool's lock, and neither the stream caches nor the pagemap know of it. The pool's index
// counts a stretch as one allocation, which the ledger corrects: users have the blocks. An idle
// stretch is given back with the stamp of its blocks.
//
// Note [What is pinned stays]
// A captured graph uses the addresses it was captured with at every launch. So from the first
// request or free of a capturing stream on an arena keeps all that it has until it is released, and
// then no stamp of its own counts: its memory is everybody's once all work that was queued by then
// is done.
//
// Note [External memory]
// An external arena divides memory of its caller's, which the pool knows nothing of. It counts in
// no figure of the pool, nobody observes it, and it is given back to nobody: its owner takes it
// back. Who does that may unmap it at once, so a stretch is taken back only when the stamps of all
// its blocks are complete.
//
// Requires, of all calls but those that look: there is a pool.
class Arenas {
 public:
  // `pool`, `small`: null where there are none. `isolates`: VPMM_IPC_ISOLATE.
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
  // A capturing stream pins the arena. invalid_argument: there is no such arena.
  Result<void> enter(pool::ArenaId id, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // From what the arena has; null: nothing there will do.
  DevicePtr take(const pool::Request& request, const pool::Caller& caller, Arena::Reach room)
      VPMM_REQUIRES(pool_lock);
  // Whether it might, once more work is known to be over.
  bool waits_for_proof(const pool::Request& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // What to ask the pool for where take() found nothing.
  pool::PageRequest stretch_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);
  // What the pool gave. If the arena was released meanwhile it goes back: invalid_argument.
  Result<void> add(pool::ArenaId id, const pool::Placed& stretch, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> take_at(pool::ArenaId id, AddressRange part, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // --- what is live ---
  // Whether `p` is in memory of an arena.
  bool has(DevicePtr p) const VPMM_REQUIRES(pool_lock) { return entry_around(p) != nullptr; }
  // The live block around `p`; null: none.
  const ArenaBlock* live_around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  std::optional<AddressRange> range_of(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  pool::ArenaId arena_of(DevicePtr p) const VPMM_REQUIRES(pool_lock);  // 0: none
  static std::uint64_t stream_id_of(StreamKey key);  // 0: of no stream that is known
  // Of the live block that begins there.
  void record_use(DevicePtr begin, time::Timeline& user) VPMM_REQUIRES(pool_lock);
  // False: no live block begins there.
  bool end(DevicePtr begin, const pool::Stream& stream, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // To follow on end(), once it was told: what a released arena has idle around `p` goes back.
  void ended(DevicePtr p) VPMM_REQUIRES(pool_lock);
  Result<Vector<DevicePtr>> live_in(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);

  // --- external arenas: external_memory.cpp, Note [External memory] ---
  bool is_external(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // invalid_argument: the arena is not for that, or the memory is not.
  // `is_owned`: whether the pool has any of the memory itself.
  Result<void> add_external(pool::ArenaId id, AddressRange memory,
                            FunctionRef<bool(AddressRange)> is_owned) VPMM_REQUIRES(pool_lock);
  // Whether there may be something to take back, once work is over.
  Result<bool> has_idle_external(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Memory in which nothing lives and no work is under way, as it was added; empty: there is none.
  Result<AddressRange> take_external(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Where each piece of such memory begins.
  void for_each_external(FunctionRef<void(DevicePtr)> visit) const VPMM_REQUIRES(pool_lock);
  // Of a request that found nothing there.
  Error no_room_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);

  // --- giving back ---
  Result<void> pin(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  Result<void> release(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Idle stretches of all arenas that are not pinned. How much that was.
  Bytes give_back_idle() VPMM_REQUIRES(pool_lock);
  // The streams of the primary context are gone; what the timelines say is complete counts.
  void forget_streams() VPMM_REQUIRES(pool_lock);

  // --- figures ---
  std::uint64_t live() const VPMM_REQUIRES(pool_lock);
  Bytes free_bytes() const VPMM_REQUIRES(pool_lock);     // of their stretches, nobody's
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock);  // part of that which is not complete
  bool is_idle(DevicePtr stretch) const VPMM_REQUIRES(pool_lock);  // it could go back
  // Of each arena that has memory of the pool.
  std::vector<report::ArenaHolding> holdings() const VPMM_REQUIRES(pool_lock);
  // The blocks of the stretch around `p`, for a snapshot. `is_pinned`: of its arena.
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
  };
  // A thread's own default stream has the handle that every thread's has.
  using NamedStream = std::pair<driver::StreamHandle, std::thread::id>;

  ArenaEntry* find(pool::ArenaId id) const
      VPMM_REQUIRES(pool_lock);  // null: there is none, or it was released
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
