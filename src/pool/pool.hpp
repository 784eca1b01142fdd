// pool: virtual memory pool of one device: requests of a page and more. Reads top-down as phases 0, 1, 1.5 and 2.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "observe/statistics.hpp"
#include "pool/chunk_policy.hpp"
#include "pool/config.hpp"
#include "pool/last_calls.hpp"
#include "pool/page_line.hpp"
#include "pool/pause_budget.hpp"
#include "pool/placement.hpp"
#include "pool/planner.hpp"
#include "region/region_index.hpp"
#include "time/timelines.hpp"
#include "vm/chunk_table.hpp"
#include "vm/mapper.hpp"

namespace vpmm::pool {

struct PartialMapping;  // two_places.cpp

// Whether the caller's stream may be given work (events, waits) right now.
enum class Standing {
  ordinary,
  capturing,  // its stream is being captured: only complete memory, nothing queued
  blocked,    // the legacy stream while a blocking stream captures, or an invalidated capture: likewise
};

// Who asks.
struct Caller {
  std::optional<driver::StreamHandle> stream;  // none: any-stream
  time::Timeline* timeline = nullptr;          // of `stream`; null: any-stream
  Standing standing = Standing::ordinary;
  std::uint64_t capture = 0;  // the capture `stream` is in; 0: none
  // The timeline whose pending memory the caller may use without waiting.
  std::optional<time::TimelineId> own() const {
    if (timeline == nullptr || standing != Standing::ordinary) return std::nullopt;
    return timeline->id;
  }
  bool may_queue() const { return stream.has_value() && standing == Standing::ordinary; }
};

struct PageRequest {
  Bytes requested = 0;  // as the user said
  Bytes size = 0;       // rounded to pages
  Bytes alignment = 0;  // at least page_alignment()
  // A page to cut small requests from: the bytes of the one that finds no room in those that are cut already.
  std::optional<Bytes> small{};
};

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
  // Most that users asked for at once, requests below a page included.
  std::function<Bytes()> peak_requested;
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

// Public methods that are handed the context's lock may drop it around driver calls that block (create, map, set
// access, unmap, release) and waits; what they are working on is then in flight and nobody else's. Note [Detach, work,
// publish].
class Pool {
 public:
  Pool(driver::Driver& driver, const driver::ChunkProperties& properties, const Config& config, Bytes page_size,
       time::Timelines& timelines, Relief relief);
  ~Pool();

  Bytes page_size() const { return index_.page_size(); }
  // What every page is aligned to: the largest power of two that divides it.
  Bytes page_alignment() const { return page_size() & (~page_size() + 1); }
  bool pages_stand_alone() const { return pool::pages_stand_alone(config_, page_size()); }
  const char* policy_name() const { return policy_->name(); }

  Result<DevicePtr> allocate(MutexLock& lock, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // What allocate() would find without a driver call; null: nothing.
  DevicePtr allocate_hit(const PageRequest& request, const Caller& caller) VPMM_REQUIRES(pool_lock);
  // Whether allocate() would find it without a driver call.
  bool is_hit(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  // Whether there is a free range that the caller may use at once. It may be worth more to leave it alone.
  bool has_free(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock) {
    return index_.best_fit(request.size, request.alignment, caller.own()) != nullptr;
  }
  region::Region* owner(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) { return index_.owner(ptr); }
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
  Result<void> set_peer_access(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);
  void set_capacity(std::optional<Bytes> capacity) VPMM_REQUIRES(pool_lock) { capacity_ = capacity; }
  void set_other_bytes(Bytes bytes) VPMM_REQUIRES(pool_lock) {
    other_bytes_ = bytes;
  }  // mapped elsewhere on the same account
  // While held: no sweep, no pause and no smaller caches, unless memory runs out.
  void hold_cleanup(bool is_held) VPMM_REQUIRES(pool_lock) { is_cleanup_held_ = is_held; }

  Bytes mapped_bytes() const VPMM_REQUIRES(pool_lock) { return chunks_.chunk_bytes(); }
  Bytes idle_bytes() const VPMM_REQUIRES(pool_lock) { return index_.bytes(region::RegionState::free); }
  // Allocated, less what Relief::kept_bytes says is no use.
  Bytes wanted_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes peak_asked() const VPMM_REQUIRES(pool_lock);
  Bytes used_bytes() const VPMM_REQUIRES(pool_lock) { return index_.bytes(region::RegionState::allocated); }
  Bytes requested_bytes() const VPMM_REQUIRES(pool_lock) { return index_.requested_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return index_.pending_bytes(timeline);
  }
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock) {
    return index_.count(region::RegionState::allocated);
  }
  void fill(observe::Statistics& statistics) const VPMM_REQUIRES(pool_lock);
  void for_each_region(FunctionRef<void(const region::Region&)> visit) const VPMM_REQUIRES(pool_lock) {
    index_.for_each(visit);
  }
  Vector<AddressRange> reservations() const VPMM_REQUIRES(pool_lock) { return reservations_; }
  // Whether chunks can be handed to other processes.
  bool can_export() { return mapper_.can_export(); }
  // The chunks behind `range`, by address.
  Vector<vm::Mapping> mappings_around(AddressRange range) const VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);
  std::string picture(Bytes unit = 0) const VPMM_REQUIRES(pool_lock) {
    return index_.picture(unit == 0 ? page_size() : unit);
  }
  std::string shortage_report(const PageRequest& request) noexcept VPMM_REQUIRES(pool_lock);
  std::string written_shortage_report(const PageRequest& request) VPMM_REQUIRES(pool_lock);

  // Gives everything back. Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock);

 private:
  // phase 1 and 1.5
  Result<DevicePtr> serve(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort);
  // Of one call.
  struct Pause {
    bool is_counted = false;
    std::optional<std::uint64_t> begin_ns;
  };
  // Without the lock, for a moment.
  void look_away(MutexLock& lock, Pause& pause);
  void make_way(MutexLock& lock, const PageRequest& request, const Caller& caller, Pause& pause);
  // True: something came back, so serve() may find more. False: memory is to be created now.
  Result<bool> wait_for_more(MutexLock& lock, const PageRequest& request, const Caller& caller, Pause& pause);
  bool has_company() const;
  // How long a pause is worth while, and how much would be created if nothing of it is on its way.
  struct Patience {
    std::uint64_t ns = 0;
    Bytes hoped = 0;
  };
  Patience patience_for(const PageRequest& request, const Caller& caller);
  std::optional<Place> find_place(const PageRequest& request, const Caller& caller) const;
  bool is_set_apart(const PageRequest& request, const Caller& caller, const Place& place) const;
  Demand demand_of(const PageRequest& request) const;
  bool spares(const PageRequest& request, const Place& place) const;
  std::optional<Plan> joint_for(const PageRequest& request, const Caller& caller, const Place& place) const;
  std::optional<Cut> cut_for(const PageRequest& request, const Place& place) const;
  bool is_worth_calls(const PageRequest& request, const Caller& caller, const Place& place) const;
  Result<void> recut(MutexLock& lock, region::Region* free, const Cut& cut);
  region::Region* take_fit(const Place& place, const PageRequest& request, const Caller& caller);
  Place place_in(region::Region* best_fit, const PageRequest& request, const Caller& caller) const;
  enum class Waits { none, some };
  Result<region::Region*> take_run(const PageRequest& request, const Caller& caller, Waits waits_allowed);
  bool is_covered_without_waits(const PageRequest& request, const Caller& caller, Effort effort) const;
  Result<region::Region*> take_waiting(const PageRequest& request, const Caller& caller);
  region::Region* join_run(const Vector<region::Region*>& run, AddressRange part, const region::Tenant& tenant);
  // build.cpp, phase 2
  struct Flight;
  Result<DevicePtr> attempt(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort);
  Result<DevicePtr> build(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort);
  Result<Plan> make_plan(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort);
  Result<DevicePtr> carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request, const Caller& caller);
  Result<void> ask_for_room(MutexLock& lock, Bytes bytes);
  bool grows_past_peak(Bytes created) const;
  Result<void> queue_waits(const Vector<time::StampPart>& waits, const Caller& caller);
  void prove_moves(const Plan& plan, const Caller& caller);
  Flight detach(const Plan& plan);
  std::optional<Error> execute(Flight& flight);
  std::optional<Error> catch_up(Flight& flight);
  std::optional<Error> finish(Flight& flight, vm::MapOutcome outcome);
  void release_created(Flight& flight, std::size_t count);
  void undo(Flight& flight);
  void bury_stuck(Flight& flight);
  region::Region* cast_shadows(Flight& flight);
  DevicePtr publish(Flight& flight, const PageRequest& request, const Caller& caller);
  time::Stamp surplus_stamp(const Plan& plan, const Caller& caller);
  bool is_complete(const Plan& plan) const;
  // two_places.cpp: chunks in use at two addresses
  void leave_shadow(region::Region* taken, const vm::Mapping& mapping);
  bool retire(const PartialMapping& partial);
  void bring_home(const Vector<PartialMapping>& mappings, const PartialMapping& home);
  bool reunite();
  std::string validate_shadows() const;
  // shortage.cpp: what is tried, in order, when memory runs out
  Result<DevicePtr> allocate_short(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                   Result<DevicePtr> result);
  Result<bool> wait_for_any(MutexLock& lock, const Caller& caller);
  Result<bool> make_room(MutexLock& lock, const PageRequest& request);
  bool wait_for_flights(MutexLock& lock);
  void want_proof(const PageRequest& request, const Caller& caller);
  // access.cpp
  Vector<AddressRange> mapped_runs() const;
  Result<void> grant(MutexLock& lock, driver::DeviceOrdinal peer);
  void wait_for_grant(MutexLock& lock);
  class InFlight;
  // reclaim.cpp
  Result<void> sweep(MutexLock& lock, std::uint64_t max_mappings);
  void bury(region::Region* zombie);
  AddressRange releasable(const region::Region& free, Bytes wanted) const;
  void want_all_proof();
  Result<Bytes> release_idle(MutexLock& lock, AddressRange idle, region::Region* free);
  Result<void> add_reservation(MutexLock& lock, Bytes at_least);
  Result<void> fill_hole(MutexLock& lock, region::Region* hole, AddressRange part, Vector<Bytes> chunks);
  Result<void> retry_orphans(MutexLock& lock);

  region::Tenant tenant_of(const PageRequest& request, const Caller& caller) const;
  void count_tenant(const region::Tenant& tenant, int change);
  Need need_of(const PageRequest& request, const Caller& caller) const;
  Bytes growth_room() const;
  Bytes quarantined_bytes() const;
  void note_peaks(std::uint64_t undone_chunks = 0, Bytes undone_bytes = 0);

  driver::Driver& driver_;
  const Config config_;
  time::Timelines& timelines_;
  Relief relief_;
  region::RegionIndex index_;
  vm::ChunkTable chunks_;
  vm::Mapper mapper_;
  std::unique_ptr<ChunkPolicy> policy_;
  Planner planner_;
  Vector<AddressRange> reservations_;
  std::optional<Bytes> capacity_;
  Bytes other_bytes_ = 0;
  Bytes peak_used_ = 0;
  Bytes driver_free_ = 0;     // of the GPU, as the driver last said
  Bytes unasked_growth_ = 0;  // may be created before it is asked again
  // What the driver refused to take back; sweeps try again, and it counts as quarantined until then.
  Map<DevicePtr, Bytes> stuck_;  // mappings whose unmap failed; they are zombies
  Vector<vm::Chunk*> orphans_;   // chunks without mapping whose release failed
  std::uint64_t flights_ = 0;    // requests that have dropped the lock while something is in flight
  std::condition_variable_any flight_ended_;
  // Note [Access carries a version]: while a grant is in progress nobody begins to unmap what is in the table.
  Vector<driver::DeviceOrdinal> peers_;  // that may use everything
  bool is_granting_ = false;
  std::uint64_t unmappings_ = 0;  // flights that unmap what is in the table
  std::condition_variable_any access_settled_;
  std::uint64_t misses_ = 0;
  bool was_complete_ = false;
  bool is_cleanup_held_ = false;
  std::uint64_t pausing_ = 0;        // calls that pause, without the lock
  std::uint64_t pauses_end_ns_ = 0;  // while any does: when the last is over
  const Pause* hoping_ = nullptr;    // that of the call which hopes for what others use
  Bytes hoped_bytes_ = 0;            // while any does: what it would create
  PauseBudget pause_budget_;
  LastCalls last_calls_;                              // that came here, not served in hand
  std::uint64_t returned_ = 0;                        // what was freed, or became complete, so far
  Bytes spared_since_growth_ = 0;                     // of Note [Idle chunks are spared]
  alignas(kCacheLine) observe::Statistics counters_;  // totals and peaks that only the pool knows
};

}  // namespace vpmm::pool
