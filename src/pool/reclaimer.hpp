// SPDX-License-Identifier: Apache-2.0
// pool: unmaps zombies, gives idle chunks back, and releases all memory.
#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "pool/memory.hpp"

namespace vpmm::pool {

// Methods with a `lock` drop it around driver calls.
class Reclaimer {
 public:
  explicit Reclaimer(Memory& memory) : memory_(memory) {}

  Result<void> sweep(MutexLock& lock, std::uint64_t max_mappings) VPMM_REQUIRES(pool_lock);
  // Gives complete idle chunks back, the oldest first, until held bytes <= bytes_to_keep. Returns
  // the bytes given back.
  Result<Bytes> trim(MutexLock& lock, Bytes bytes_to_keep) VPMM_REQUIRES(pool_lock);
  // Bytes of complete idle memory that trim() could give back, up to about `wanted`.
  Bytes releasable_bytes(Bytes wanted) const VPMM_REQUIRES(pool_lock);
  // Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock);

 private:
  void bury(region::Region* zombie) VPMM_REQUIRES(pool_lock);
  Result<void> retry_orphans(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  AddressRange releasable(const region::Region& free, Bytes wanted) const VPMM_REQUIRES(pool_lock);
  Result<Bytes> release_idle(MutexLock& lock, AddressRange idle, region::Region* free)
      VPMM_REQUIRES(pool_lock);

  Memory& memory_;
};

}  // namespace vpmm::pool
