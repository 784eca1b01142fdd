// SPDX-License-Identifier: Apache-2.0
// pool: access of other devices to mapped memory.
#pragma once

#include "base/result.hpp"
#include "pool/memory.hpp"

namespace vpmm::pool {

class PeerAccess {
 public:
  explicit PeerAccess(Memory& memory) : memory_(memory) {}

  // Lets work of `peer` use all memory mapped now and later. On failure it may not, though some
  // memory may be accessible; a repeated call completes the grant. Drops the lock around driver
  // calls.
  Result<void> allow(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);

 private:
  Result<void> grant(MutexLock& lock, driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);
  Vector<AddressRange> mapped_runs() const VPMM_REQUIRES(pool_lock);

  Memory& memory_;
  Vector<driver::DeviceOrdinal> peers_ VPMM_GUARDED_BY(pool_lock);  // with full access
};

}  // namespace vpmm::pool
