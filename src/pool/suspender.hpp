// SPDX-License-Identifier: Apache-2.0
// pool: takes the physical memory of allocations away and gives it back at the same addresses.
#pragma once

#include <cstdint>
#include <optional>

#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "pool/memory.hpp"
#include "region/region.hpp"

namespace vpmm::pool {

// Note [Suspended memory]
// A suspended region is allocated, so its address stays its own, and nothing is mapped there. Only
// regions of own chunks are suspended: whole chunks leave. They go back to the driver, or become a
// free region at another address, which the next request takes without a driver call. To resume,
// memory is first allocated like any other, in whole chunks of exactly the size, and then mapped at
// the old address; so a shortage is found before anything has changed. Whole chunks are used by one
// allocation, so nothing of them is ever trapped.
//
// Both drop the lock around driver calls. The caller keeps the regions from being freed meanwhile.
class Suspender {
 public:
  explicit Suspender(Memory& memory) : memory_(memory) {}

  enum class Fate { stays_in_pool, goes_to_driver };
  // Requires: own chunks, mapped, all use proven done. After an error all regions are as before;
  // if the driver also refuses the undo, `is_suspended` tells which are not.
  Result<void> suspend(MutexLock& lock, const Vector<region::Region*>& regions, Fate fate)
      VPMM_REQUIRES(pool_lock);
  // `memory`: an allocation with own chunks of exactly the size of `suspended`, complete.
  struct Refill {
    region::Region* suspended = nullptr;
    region::Region* memory = nullptr;
  };
  // Maps each memory at its suspended region; its old address becomes a hole. After an error all
  // are as before, with the same exception; memory that has no address any more is null.
  Result<void> resume(MutexLock& lock, Vector<Refill>& refills) VPMM_REQUIRES(pool_lock);
  // Ends a suspended allocation: its address becomes a hole.
  void drop(region::Region* suspended) VPMM_REQUIRES(pool_lock);

 private:
  struct Leaving;
  struct Away;
  struct Refilling;
  Result<region::Region*> find_hole(MutexLock& lock, Bytes size) VPMM_REQUIRES(pool_lock);
  Leaving leaving_of(region::Region* region) VPMM_REQUIRES(pool_lock);
  Result<void> find_place(MutexLock& lock, const Vector<Leaving>& leaving, Away& away)
      VPMM_REQUIRES(pool_lock);
  std::optional<Error> move_away(Away& away, Vector<Leaving>& leaving);
  void enter_left(const Vector<vm::Placement>& left, const Vector<vm::Placement>& placements,
                  const Vector<vm::Mapping>& mappings) VPMM_REQUIRES(pool_lock);
  std::optional<Error> unmap_all(Vector<Leaving>& leaving);
  std::optional<Error> release_all(Vector<Leaving>& leaving);
  void leave(Leaving& leaving, Fate fate) VPMM_REQUIRES(pool_lock);
  Refilling refilling_of(const Refill& refill) VPMM_REQUIRES(pool_lock);
  std::optional<Error> unmap_leftovers(Vector<vm::Mapping>& leftovers);
  std::optional<Error> move_all(Vector<Refilling>& refilling);
  void settle(const Refilling& refilling, Refill& refill) VPMM_REQUIRES(pool_lock);
  void arrive(const Refilling& refilling) VPMM_REQUIRES(pool_lock);
  void end_memory(const Refilling& refilling) VPMM_REQUIRES(pool_lock);
  void enter(vm::Chunk& chunk, DevicePtr at) VPMM_REQUIRES(pool_lock);
  void bury(region::Region* in_flight) VPMM_REQUIRES(pool_lock);

  Memory& memory_;
};

}  // namespace vpmm::pool
