// pool: virtual memory pool of one device: requests of a page and more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "pool/config.hpp"
#include "pool/gpu_room.hpp"
#include "pool/memory.hpp"
#include "pool/mover.hpp"
#include "pool/page_line.hpp"
#include "pool/peer_access.hpp"
#include "pool/reclaimer.hpp"
#include "pool/request.hpp"
#include "region/region_index.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

// What the pool asks of its surroundings when memory runs short. Each returns true when trying again may help; they may
// drop the lock meanwhile.
struct Relief {
  std::function<bool(MutexLock&)> drain_deferred;
  // Takes back what streams keep for their own next requests, before anything is mapped for `caller`. Keeps the lock.
  // Asked again while it says that something came back: what is nearest first, in the end all that is worth the
  // trouble, or, when memory runs out (`is_short`), everything.
  std::function<bool(const Caller& caller, Bytes size, bool is_short)> recall;
  // Of what is allocated, what streams keep for their own next requests and does not count as use.
  std::function<Bytes()> kept_bytes;
  // Whether pages would come back if what was cut from them became complete.
  std::function<bool(std::optional<time::TimelineId> timeline)> is_pending_in_pieces;
  // Told of everything that became complete, after the pool itself.
  std::function<void(const Vector<time::StampPart>& done)> advanced;
  std::function<bool(MutexLock&)> give_back_caches;
  // The same when the caches hold much that nobody uses. False: they hold little, and the lock was never dropped.
  std::function<bool(MutexLock&)> shrink_caches;
  // Records an event that proves every timeline; false: not possible now (captures, old driver).
  std::function<bool()> prove_everything;
  // Waits for the whole context when nothing less can be waited for; false: not possible now.
  std::function<bool(MutexLock&)> synchronize;
};

// How far one attempt goes.
enum class Effort {
  by_policy,     // as Tuning prefers
  move_first,    // every idle chunk before a new one, without delay
  wait_too,      // and chunks that other streams still use, with waits of the GPU
  few_mappings,  // one new chunk: the number of mappings is at its limit
};

// The promise (Note [Nothing idle is pinned]): a request succeeds whenever what lives, rounded to pages, the slack and
// the request fit the capacity. What is leased to other processes, belongs to captures, or is still in use by the GPU
// and cannot be waited for, counts as living.
//
// Methods that are handed the context's lock may drop it around driver calls that block (create, map, set access,
// unmap, release) and waits. Note [Detach, work, publish].
class Pool {
 public:
  Pool(driver::Driver& driver, const driver::ChunkProperties& properties, const Config& config, Bytes page_size,
       time::Timelines& timelines, Relief relief);
  ~Pool();

  Bytes page_size() const { return memory_.page_size(); }
  Bytes page_alignment() const { return memory_.page_alignment(); }
  bool pages_stand_alone() const { return pool::pages_stand_alone(memory_.config, page_size()); }
  const char* policy_name() const { return memory_.tuning.name; }

  Result<DevicePtr> allocate(MutexLock& lock, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // What allocate() would find without a driver call; null: nothing.
  DevicePtr allocate_hit(const PageRequest& request, const Caller& caller) VPMM_REQUIRES(pool_lock);
  // Whether allocate() would find it without a driver call.
  bool is_hit(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  bool has_free(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock) {
    return is_hit(request, caller);
  }
  region::Region* owner(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) { return memory_.index.owner(ptr); }
  void deallocate(region::Region* region, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  void record_use(region::Region* region, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Whether what the last allocate() gave was complete, so that any stream might use it.
  bool was_complete() const VPMM_REQUIRES(pool_lock) { return was_complete_; }
  // The allocation is the pool's own business from here on: no stream is kept alive for it, and each of its pages is an
  // allocation of its own.
  void disown(region::Region* region) VPMM_REQUIRES(pool_lock);
  // An allocated region becomes, whole and where it stands, the next tenant's; it counts as a free and an allocation.
  DevicePtr pass_on(region::Region* region, const PageRequest& request, const Caller& caller) VPMM_REQUIRES(pool_lock);

  // Phase 0: unmaps a bounded number of zombies.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // Asks the events of at most so many timelines. True: something is complete that was not known to be.
  Result<bool> learn(std::size_t most) VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(MutexLock& lock, Bytes bytes_to_keep) VPMM_REQUIRES(pool_lock);
  // Address space, and what the GPU has room for, before anybody asks for memory.
  Result<void> prepare(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Creates chunks until at least `bytes` are mapped; the memory is free at once.
  Result<void> preallocate(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Work of `peer` may use what is mapped, now and later. Note [Access carries a version]. On failure it may not; some
  // of what is mapped may be accessible to it all the same, and calling again completes it.
  Result<void> set_peer_access(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock) {
    return peers_.allow(lock, peer);
  }
  void set_capacity(std::optional<Bytes> capacity) VPMM_REQUIRES(pool_lock) { room_.set_capacity(capacity); }
  void set_other_bytes(Bytes bytes) VPMM_REQUIRES(pool_lock) {
    memory_.other_bytes = bytes;
  }  // mapped elsewhere on the same account
  // While held: no sweep, no delay and no smaller caches, unless memory runs out.
  void hold_cleanup(bool is_held) VPMM_REQUIRES(pool_lock) { is_cleanup_held_ = is_held; }

  Bytes mapped_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.chunks.chunk_bytes(); }
  Bytes idle_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.index.bytes(region::RegionState::free); }
  Bytes used_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.index.bytes(region::RegionState::allocated); }
  // Allocated, less what Relief::kept_bytes says is no use.
  Bytes wanted_bytes() const VPMM_REQUIRES(pool_lock) {
    return used_bytes() - (relief_.kept_bytes ? std::min(used_bytes(), relief_.kept_bytes()) : 0);
  }
  Bytes slack_bytes() const VPMM_REQUIRES(pool_lock) { return slack_; }  // of what is used
  Bytes requested_bytes() const VPMM_REQUIRES(pool_lock) { return memory_.index.requested_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return memory_.index.pending_bytes(timeline);
  }
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock) {
    return memory_.index.count(region::RegionState::allocated);
  }
  void fill(observe::Statistics& statistics) const VPMM_REQUIRES(pool_lock);
  void for_each_region(FunctionRef<void(const region::Region&)> visit) const VPMM_REQUIRES(pool_lock) {
    memory_.index.for_each(visit);
  }
  Vector<AddressRange> reservations() const VPMM_REQUIRES(pool_lock) { return memory_.reservations; }
  // Whether chunks can be handed to other processes.
  bool can_export() { return memory_.mapper.can_export(); }
  // The chunks behind `range`, by address.
  Vector<vm::Mapping> mappings_around(AddressRange range) const VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);
  std::string picture(Bytes unit = 0) const VPMM_REQUIRES(pool_lock) {
    return memory_.index.picture(unit == 0 ? page_size() : unit);
  }
  std::string shortage_report(const PageRequest& request) noexcept VPMM_REQUIRES(pool_lock);
  std::string written_shortage_report(const PageRequest& request) VPMM_REQUIRES(pool_lock);

  // Gives everything back. Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock) { reclaimer_.release_everything(); }

 private:
  Ask ask_of(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  Bytes slack_room(Bytes peak) const VPMM_REQUIRES(pool_lock);
  Bytes slack_of(const region::Region& region) const;
  // The same without slack.
  Bytes live_bytes() const VPMM_REQUIRES(pool_lock);

  Result<DevicePtr> attempt(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort)
      VPMM_REQUIRES(pool_lock);
  // Without a driver call that maps anything; null: nothing fits.
  Result<DevicePtr> serve(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort)
      VPMM_REQUIRES(pool_lock);
  bool takes_waiting(const Caller& caller, Effort effort) const VPMM_REQUIRES(pool_lock);
  Decision decide(const Ask& ask, const Caller& caller, Effort effort) const VPMM_REQUIRES(pool_lock);
  Result<Decision> decide_in_room(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort)
      VPMM_REQUIRES(pool_lock);
  // Whether the lock was kept all the time.
  Result<bool> ask_for_room(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  Result<DevicePtr> carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<void> queue_waits(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  void prove_moves(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  bool grows_past_peak(Bytes growth) const VPMM_REQUIRES(pool_lock);
  // Note [Grow delay]. True: it has waited, so the plan may be stale.
  Result<bool> delay_growth(MutexLock& lock, const Plan& plan, const Caller& caller, std::uint64_t begin_ns)
      VPMM_REQUIRES(pool_lock);
  Bytes on_its_way(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  enum class Urgency { usual, at_once };
  void want_proof(const Caller& caller, Urgency urgency) VPMM_REQUIRES(pool_lock);

  // shortage.cpp: what is tried, in order, when memory runs out
  Result<DevicePtr> allocate_short(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                   Result<DevicePtr> result) VPMM_REQUIRES(pool_lock);
  Result<bool> wait_for_any(MutexLock& lock, const Caller& caller) VPMM_REQUIRES(pool_lock);
  Result<bool> make_room(MutexLock& lock, const PageRequest& request) VPMM_REQUIRES(pool_lock);

  region::Tenant tenant_of(const PageRequest& request, const Caller& caller) const;
  void count_tenant(const region::Tenant& tenant, int change) VPMM_REQUIRES(pool_lock);
  void note_peaks() VPMM_REQUIRES(pool_lock);

  Memory memory_;
  Mover mover_{memory_};
  Reclaimer reclaimer_{memory_};
  PeerAccess peers_{memory_};
  GpuRoom room_;
  Relief relief_;
  Bytes slack_ = 0;      // of all allocations
  Bytes peak_live_ = 0;  // the most that lived at once, in whole pages
  std::uint64_t misses_ = 0;
  std::uint64_t returned_ = 0;  // what was freed, or became complete, so far
  bool was_complete_ = false;
  bool is_cleanup_held_ = false;
};

}  // namespace vpmm::pool
