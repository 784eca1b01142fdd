// pool: virtual memory pool of one device: requests of a page and more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "pool/gpu_room.hpp"
#include "pool/mapping_observer.hpp"
#include "pool/memory.hpp"
#include "pool/mover.hpp"
#include "pool/page_line.hpp"
#include "pool/peer_access.hpp"
#include "pool/reclaimer.hpp"
#include "pool/request.hpp"
#include "region/region_index.hpp"
#include "settings/config.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

// How far an attempt goes.
enum class Effort {
  by_policy,     // as Tuning prefers
  move_first,    // every idle chunk before a new one, without delay
  wait_too,      // and chunks that other streams still use, with waits of the GPU
  few_mappings,  // one new chunk: the number of mappings is at its limit
};

struct Placed {
  DevicePtr begin{};
  bool is_complete = false;  // no stream uses it any more, so any stream may use it at once
};

// What would help a request that found no place.
struct Needs {
  enum class What {
    memory,  // `missing` bytes
    time,    // what is pending may spare growth: ask again when some of it is complete, or at
             // `until_ns`
  };
  What what = What::memory;
  Bytes missing = 0;
  std::uint64_t until_ns = 0;
};

using Answer = std::variant<Placed, Needs>;

// The promise: a request succeeds whenever what lives, the request, both rounded to grains, and
// what is trapped (Note [Trapped memory]) fit the capacity. A request of own chunks is rounded to
// pages. What is leased to other processes, belongs to captures, or is still in use by the GPU and
// cannot be waited for, counts as living.
//
// The pool calls nobody above it: it answers what it placed, or what would help, and whoever asks
// does that and asks again. Methods that are handed the context's lock may drop it around driver
// calls that block (create, map, set access, unmap, release) and waits. Note [Detach, work,
// publish].
class Pool {
 public:
  Pool(driver::Driver& driver, const driver::ChunkProperties& properties,
       const settings::Config& config, Bytes page_size, time::Timelines& timelines);
  ~Pool();

  Bytes page_size() const { return memory_.page_size(); }
  Bytes page_alignment() const { return memory_.page_alignment(); }
  // The unit of placement, and what every allocation is aligned to.
  Bytes grain() const { return memory_.tuning.grain; }
  Bytes grain_alignment() const { return grain() & (~grain() + 1); }
  bool pages_stand_alone() const { return pool::pages_stand_alone(memory_.config, page_size()); }
  const char* policy_name() const { return memory_.tuning.name; }
  Chunks chunks_of(const PageRequest& request) const {
    return request.chunks == Chunks::shared && memory_.config.ipc_isolate ? Chunks::own
                                                                          : request.chunks;
  }
  bool has_own_chunks(const PageRequest& request) const {
    return chunks_of(request) != Chunks::shared;
  }

  // What needs no mapping, taken. None: there is nothing.
  std::optional<Placed> find(const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // The same behind waits of the caller's stream, where `effort` allows them.
  Result<std::optional<Placed>> find_waiting(const PageRequest& request, const Caller& caller,
                                             Effort effort) VPMM_REQUIRES(pool_lock);
  // Whether find() would find something.
  bool can_find(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  // What find() did not find: by moving idle chunks, or creating. `began_ns`: when the request did.
  Result<Answer> map(MutexLock& lock, const PageRequest& request, const Caller& caller,
                     Effort effort, std::uint64_t began_ns) VPMM_REQUIRES(pool_lock);
  // Whether early growth has room for as much.
  bool may_grow_early(Bytes size) const VPMM_REQUIRES(pool_lock);
  // Whether map() would probably create memory beyond the most that was ever mapped.
  bool would_set_record(const PageRequest& request, const Caller& caller) const
      VPMM_REQUIRES(pool_lock);
  region::Region* allocated_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return memory_.index.allocated_around(ptr);
  }
  void deallocate(region::Region* region, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  void record_use(region::Region* region, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // The allocation is nobody's from here on: no stream is kept alive for it.
  void disown(region::Region* region) VPMM_REQUIRES(pool_lock);
  // What lies from `at` on, at a whole page, becomes an allocation of its own, which is returned.
  // Requires: it is nobody's.
  region::Region* divide(region::Region* region, DevicePtr at) VPMM_REQUIRES(pool_lock);
  // An allocated region becomes, whole and where it stands, the next owner's; it counts as a free
  // and an allocation.
  DevicePtr pass_on(region::Region* region, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // Phase 0: unmaps a bounded number of zombies.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // How much was freed, or became complete, so far: a count to compare.
  std::uint64_t returned() const VPMM_REQUIRES(pool_lock) { return returned_; }
  // --- when memory is short ---
  // Until a call that has dropped the lock around driver calls is back. False: there is none.
  bool wait_for_flight(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    return memory_.flights.wait_for_one(lock);
  }
  // Unmaps every zombie that nobody uses. True: something came back.
  Result<bool> sweep_all(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Note [Chunks are made anew]. True: there is room for one new chunk.
  Result<bool> make_room(MutexLock& lock, const PageRequest& request) VPMM_REQUIRES(pool_lock);
  // For a request of own chunks: as many idle bytes as it would create beyond early growth go back
  // before. True: some did.
  Result<bool> give_way(MutexLock& lock, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(MutexLock& lock, Bytes bytes_to_keep) VPMM_REQUIRES(pool_lock);
  // Address space, and what the GPU has room for, before anybody asks for memory.
  Result<void> prepare(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Creates chunks until at least `bytes` are mapped; the memory is free at once.
  Result<void> preallocate(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Work of `peer` may use what is mapped, now and later. Note [Access carries a version]. On
  // failure it may not; some of what is mapped may be accessible to it all the same, and calling
  // again completes it.
  Result<void> set_peer_access(MutexLock& lock, driver::DeviceOrdinal peer)
      VPMM_REQUIRES(pool_lock) {
    return peers_.allow(lock, peer);
  }
  void set_capacity(std::optional<Bytes> capacity) VPMM_REQUIRES(pool_lock) {
    room_.set_capacity(capacity);
  }
  void set_other_bytes(Bytes bytes) VPMM_REQUIRES(pool_lock) {
    memory_.other_bytes = bytes;
  }  // mapped elsewhere on the same account
  // Null: nobody is told. It must outlive the pool, or be taken away.
  void set_mapping_observer(MappingObserver* observer) VPMM_REQUIRES(pool_lock) {
    memory_.mapping_observer = observer;
  }
  // While held: no sweep, no delay and no smaller caches, unless memory runs out.
  void hold_cleanup(bool is_held) VPMM_REQUIRES(pool_lock) { is_cleanup_held_ = is_held; }

  Bytes mapped_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.chunks.chunk_bytes(); }
  Bytes idle_bytes() const VPMM_REQUIRES(pool_lock) {
    return memory_.index.bytes(region::RegionState::free);
  }
  Bytes used_bytes() const VPMM_REQUIRES(pool_lock) {
    return memory_.index.bytes(region::RegionState::allocated);
  }
  // Allocated, less what streams keep for their own next requests.
  Bytes wanted_bytes() const VPMM_REQUIRES(pool_lock) {
    return used_bytes() - std::min(used_bytes(), cached_bytes_);
  }
  // Told by whoever keeps it, before each look for memory.
  void set_cached_bytes(Bytes bytes) VPMM_REQUIRES(pool_lock) { cached_bytes_ = bytes; }
  // Bytes of chunks that are wholly idle if those allocations are that `is_idle` says. In as many
  // steps as there are regions.
  Bytes movable_bytes(FunctionRef<bool(const region::Region&)> is_idle) const
      VPMM_REQUIRES(pool_lock);
  Bytes trapped_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.chunks.trapped_bytes(); }
  Bytes requested_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.index.requested_bytes(); }
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.index.pending_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return memory_.index.pending_bytes(timeline);
  }
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock) {
    return memory_.index.count(region::RegionState::allocated);
  }
  void fill(observe::Statistics& statistics) const VPMM_REQUIRES(pool_lock);
  void for_each_region(FunctionRef<void(const region::Region&)> visit) const
      VPMM_REQUIRES(pool_lock) {
    memory_.index.for_each(visit);
  }
  Vector<AddressRange> reservations() const VPMM_REQUIRES(pool_lock) {
    return memory_.reservations;
  }
  // Whether chunks can be handed to other processes.
  bool can_export() { return memory_.mapper.can_export(); }
  // Where each chunk is, in no order; of those that the driver would not take back, none.
  void for_each_place(FunctionRef<void(AddressRange)> visit) const VPMM_REQUIRES(pool_lock);
  // The chunks behind `range`, by address.
  Vector<vm::Mapping> mappings_around(AddressRange range) const VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock) { return memory_.validate(); }
  std::string picture(Bytes unit = 0) const VPMM_REQUIRES(pool_lock) {
    return memory_.index.picture(unit == 0 ? page_size() : unit);
  }

  // Gives everything back. Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock) { reclaimer_.release_everything(); }

 private:
  Ask ask_of(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  // By how much it may grow although idle chunks could be moved. `peak`: of what lived at once.
  Bytes early_growth(Bytes peak) const VPMM_REQUIRES(pool_lock);
  // What early growth may come to on this GPU. The pool that holds as much spares memory.
  Bytes most_early() const VPMM_REQUIRES(pool_lock);
  // What needs no mapping.
  Decision hit(const Ask& ask) const VPMM_REQUIRES(pool_lock);
  bool takes_waiting(const Caller& caller, Effort effort) const VPMM_REQUIRES(pool_lock);
  Decision decide(const Ask& ask, const Caller& caller, Effort effort) const
      VPMM_REQUIRES(pool_lock);
  Result<Decision> decide_in_room(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                  Effort effort) VPMM_REQUIRES(pool_lock);
  // Whether the lock was kept all the time.
  Result<bool> ask_for_room(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  Placed take(const Plan& plan, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<Placed> carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request,
                           const Caller& caller) VPMM_REQUIRES(pool_lock);
  Placed placed(region::Region* region, const Plan& plan, const PageRequest& request)
      VPMM_REQUIRES(pool_lock);
  void note_placer(const std::optional<time::TimelineId>& timeline) VPMM_REQUIRES(pool_lock);
  bool have_several_placed() const VPMM_REQUIRES(pool_lock);
  Result<void> queue_waits(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  void prove_moves(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  bool grows_past_peak(Bytes growth) const VPMM_REQUIRES(pool_lock);
  // Note [Grow delay]
  std::uint64_t delay_until(const Plan& plan, const Caller& caller, std::uint64_t began_ns) const
      VPMM_REQUIRES(pool_lock);
  Bytes on_its_way(const Plan& plan, const Caller& caller) const VPMM_REQUIRES(pool_lock);

  region::Owner owner_of(const PageRequest& request, const Caller& caller) const;
  void count_reference(const region::Owner& owner, int change) VPMM_REQUIRES(pool_lock);
  void note_peaks() VPMM_REQUIRES(pool_lock);

  Memory memory_;
  Mover mover_{memory_};
  Reclaimer reclaimer_{memory_};
  PeerAccess peers_{memory_};
  GpuRoom room_;
  Bytes peak_live_ = 0;  // the most that lived at once, in whole grains
  Bytes cached_bytes_ = 0;
  std::uint64_t returned_ = 0;  // what was freed, or became complete, so far
  bool is_cleanup_held_ = false;
  // Note [Own memory first]: who placed last, and when it was somebody else before.
  std::optional<time::TimelineId> last_placer_;
  std::uint64_t placer_changed_ = 0;
  bool has_several_placers_ = false;
};

}  // namespace vpmm::pool
