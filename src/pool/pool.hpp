// SPDX-License-Identifier: Apache-2.0
// pool: virtual memory pool of one device for requests of a page and more.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "pool/gpu_room.hpp"
#include "pool/mapping_observer.hpp"
#include "pool/memory.hpp"
#include "pool/mover.hpp"
#include "pool/peer_access.hpp"
#include "pool/planner.hpp"
#include "pool/reclaimer.hpp"
#include "pool/request.hpp"
#include "pool/suspender.hpp"
#include "region/region_index.hpp"
#include "settings/config.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

struct Placed {
  DevicePtr begin{};
  bool is_complete = false;  // unused by all streams, so usable by any at once
};

// Help that a request without a place needs.
struct Needs {
  enum class What {
    memory,  // `missing` bytes
    time,    // pending memory may spare growth: ask again when some is complete, or at `until_ns`
  };
  What what = What::memory;
  Bytes missing = 0;
  std::uint64_t until_ns = 0;
};

using Answer = std::variant<Placed, Needs>;

// Promise: a request succeeds whenever living allocations + request, both in whole grains, +
// trapped memory (Note [Trapped memory]) <= capacity. A request of own chunks is rounded to pages.
// Memory leased to other processes, owned by captures, or in use by the GPU without a possible
// wait, counts as living.
//
// The pool calls no layer above: it answers with a place, or with the help needed; the caller helps
// and asks again. Methods with a `lock` may drop it around blocking driver calls (create, map, set
// access, unmap, release) and waits: Note [Detach, work, publish].
class Pool {
 public:
  Pool(driver::Driver& driver, const driver::ChunkProperties& properties,
       const settings::Config& config, Bytes page_size, time::Timelines& timelines);

  // Regions, chunks and figures.
  const Memory& memory() const { return memory_; }
  Planner& planner() { return planner_; }

  // Allocates a window of idle chunks without mapping. Returns nullopt if none fits.
  std::optional<Placed> find(const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Same behind waits of the caller's stream, where `effort` allows them.
  Result<std::optional<Placed>> find_waiting(const PageRequest& request, const Caller& caller,
                                             Effort effort) VPMM_REQUIRES(pool_lock);
  // Maps memory for a request that find() could not serve: moves idle chunks or creates new ones.
  // `began_ns`: time at which the request started.
  Result<Answer> map(MutexLock& lock, const PageRequest& request, const Caller& caller,
                     Effort effort, std::uint64_t began_ns) VPMM_REQUIRES(pool_lock);
  void deallocate(region::Region* region, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  // Removes the owner's stream: the allocation no longer keeps a stream alive.
  void disown(region::Region* region) VPMM_REQUIRES(pool_lock);
  // Splits `region` at `at`, a border of grains, or of chunks if they are its own. Returns the
  // allocation from `at` on.
  region::Region* divide(region::Region* region, DevicePtr at) VPMM_REQUIRES(pool_lock);
  // Joins an allocation with the next, which it touches; counts as a free.
  region::Region* unite(region::Region* front) VPMM_REQUIRES(pool_lock);
  // Bytes of the front of an allocated region that serve `request`, Note [Own chunks]; 0: it does
  // not fit.
  Bytes front_for(const region::Region& region, const PageRequest& request) const
      VPMM_REQUIRES(pool_lock);
  // Hands that front over, in place, to the next owner. Returns the rest, which keeps its owner;
  // null: none. Counts as an allocation, and without a rest as a free. Requires: it fits.
  region::Region* pass_on(region::Region* region, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // Phase 0: unmaps a bounded number of zombies.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // Frees and completions so far: a count to compare.
  std::uint64_t returned() const VPMM_REQUIRES(pool_lock) { return returned_; }
  // --- when memory is short ---
  // Waits until a flight has ended. Returns false if none is in flight.
  bool wait_for_flight(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    return memory_.flights.wait_for_one(lock);
  }
  // Unmaps all complete zombies. Returns true if the pool mapped less afterwards.
  Result<bool> sweep_all(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Note [Chunks are made anew]. Returns true if one new chunk has room.
  Result<bool> make_room(MutexLock& lock, const PageRequest& request) VPMM_REQUIRES(pool_lock);
  // Gives back as many idle bytes as a request of own chunks would create beyond early growth.
  // Returns true if any.
  Result<bool> give_way(MutexLock& lock, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<Bytes> trim(MutexLock& lock, Bytes bytes_to_keep) VPMM_REQUIRES(pool_lock);
  // Reserves address space and asks for the GPU's room, before the first request.
  Result<void> prepare(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Creates chunks until at least `bytes` are mapped; free at once.
  Result<void> preallocate(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Lets work of `peer` use all memory mapped now and later, as PeerAccess::allow().
  Result<void> set_peer_access(MutexLock& lock, driver::DeviceOrdinal peer)
      VPMM_REQUIRES(pool_lock) {
    return peers_.allow(lock, peer);
  }
  void set_capacity(std::optional<Bytes> capacity) VPMM_REQUIRES(pool_lock) {
    room_.set_capacity(capacity);
  }
  void set_others(const Memory::Others& others) VPMM_REQUIRES(pool_lock) {
    memory_.others = others;
    memory_.note_mappings();
  }
  Suspender& suspender() VPMM_REQUIRES(pool_lock) { return suspender_; }
  // Null: no observer. The observer must outlive the pool, or be removed.
  void set_mapping_observer(MappingObserver* observer) VPMM_REQUIRES(pool_lock) {
    memory_.mapping_observer = observer;
  }
  // While held: no sweep, delay or smaller caches, unless memory runs out.
  void hold_cleanup(bool is_held) VPMM_REQUIRES(pool_lock) { is_cleanup_held_ = is_held; }

  // Tells if chunks can be exported to other processes.
  bool can_export() { return memory_.mapper.can_export(); }
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  // Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock) { reclaimer_.release_everything(); }

 private:
  Result<Decision> decide_in_room(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                  Effort effort) VPMM_REQUIRES(pool_lock);
  Result<void> ask_for_room(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);
  Placed take(const Plan& plan, const PageRequest& request, const Caller& caller)
      VPMM_REQUIRES(pool_lock);
  Result<Placed> carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request,
                           const Caller& caller) VPMM_REQUIRES(pool_lock);
  Placed placed(region::Region* region, const Plan& plan, const PageRequest& request)
      VPMM_REQUIRES(pool_lock);
  Result<void> queue_waits(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  void prove_moves(const Plan& plan, const Caller& caller) VPMM_REQUIRES(pool_lock);
  region::Owner owner_of(const PageRequest& request, const Caller& caller) const;

  Memory memory_;
  Mover mover_{memory_};
  Reclaimer reclaimer_{memory_};
  Suspender suspender_{memory_};
  PeerAccess peers_{memory_};
  GpuRoom room_;
  Planner planner_{memory_, room_};
  std::uint64_t returned_ = 0;
  bool is_cleanup_held_ = false;
};

}  // namespace vpmm::pool
