// pool: which other devices may use what is mapped.
#pragma once

#include "base/result.hpp"
#include "pool/memory.hpp"

namespace vpmm::pool {

class PeerAccess {
 public:
  explicit PeerAccess(Memory& memory) : memory_(memory) {}

  // Work of `peer` may use what is mapped, now and later. On failure it may not; some of what is
  // mapped may be accessible to it all the same, and calling again completes it. Drops the lock
  // around driver calls.
  Result<void> allow(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);

 private:
  Result<void> grant(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);
  Vector<AddressRange> mapped_runs() const VPMM_REQUIRES(pool_lock);

  Memory& memory_;
  Vector<driver::DeviceOrdinal> peers_ VPMM_GUARDED_BY(pool_lock);  // that may use everything
};

}  // namespace vpmm::pool
