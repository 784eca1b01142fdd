// SPDX-License-Identifier: Apache-2.0
// pool: carries out plans: detaches regions, makes driver calls without the lock, publishes or
// undoes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.hpp"
#include "pool/memory.hpp"
#include "pool/plan.hpp"
#include "region/region.hpp"

namespace vpmm::pool {

// Note [Detach, work, publish]
// Under the lock, all regions of a plan leave the index (in flight). Driver calls run without the
// lock, and the result is published under it. No other thread can see, take or unmap a region in
// flight; a failure restores the state before.
class Mover {
 public:
  explicit Mover(Memory& memory) : memory_(memory) {}

  // Returns the allocation of `owner`. Drops the lock, except for a hit. Requires: the plan was
  // made under this hold of the lock, and its waits are queued.
  Result<region::Region*> carry_out(MutexLock& lock, const Plan& plan, region::Owner owner)
      VPMM_REQUIRES(pool_lock);
  // Same for a hit; no driver call, so no failure.
  region::Region* take_hit(const Plan& plan, region::Owner owner) VPMM_REQUIRES(pool_lock);
  // Creates chunks in `part` of `hole`, free at once.
  Result<void> fill(MutexLock& lock, region::Region* hole, AddressRange part, Vector<Bytes> chunks)
      VPMM_REQUIRES(pool_lock);
  // Creates `bytes` as one chunk and releases it. Returns true if both succeed; fails only if
  // poisoned.
  Result<bool> try_out(MutexLock& lock, Bytes bytes) VPMM_REQUIRES(pool_lock);

 private:
  struct Piece;
  struct Flight;
  Flight detach(const Plan& plan) VPMM_REQUIRES(pool_lock);
  std::optional<Error> create(Flight& flight);
  std::optional<Error> map(Flight& flight);
  void release_created(Flight& flight);
  void bury_stuck(Flight& flight) VPMM_REQUIRES(pool_lock);
  void undo(Flight& flight) VPMM_REQUIRES(pool_lock);
  void enter_chunks(Flight& flight) VPMM_REQUIRES(pool_lock);
  void free_excess(Flight& flight) VPMM_REQUIRES(pool_lock);
  region::Region* publish(Flight& flight, region::Owner owner) VPMM_REQUIRES(pool_lock);

  Memory& memory_;
};

}  // namespace vpmm::pool
