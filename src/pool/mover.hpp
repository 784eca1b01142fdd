// pool: carries plans out: detaches what they touch, makes the driver calls without the lock,
// publishes or undoes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.hpp"
#include "pool/memory.hpp"
#include "pool/plan.hpp"
#include "region/region.hpp"

namespace vpmm::pool {

// Note [Detach, work, publish]
// Under the lock, everything a plan touches is taken out of the index (in flight). The driver calls
// then run without the lock, and the result is put back under it. Nobody else can see, take or
// unmap what is in flight, and a failure puts everything back as it was.
class Mover {
 public:
  explicit Mover(Memory& memory) : memory_(memory) {}

  // The allocation of `owner`. The lock is dropped meanwhile, unless it is a hit. Requires:
  // the plan was made under this hold of the lock, and its waits are queued.
  Result<region::Region*> carry_out(MutexLock& lock, const Plan& plan, region::Owner owner)
      VPMM_REQUIRES(pool_lock);
  // The same for a hit, which makes no call.
  region::Region* take_hit(const Plan& plan, region::Owner owner) VPMM_REQUIRES(pool_lock);
  // New chunks in `part` of `hole`, which are free at once.
  Result<void> fill(MutexLock& lock, region::Region* hole, AddressRange part, Vector<Bytes> chunks)
      VPMM_REQUIRES(pool_lock);
  // Whether the driver would create `bytes` in one piece: it does, and takes them back.
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
