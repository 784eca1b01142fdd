// SPDX-License-Identifier: Apache-2.0
// context: the statistics of a pool, summed over its parts.
#pragma once

#include <cstdint>

#include "context/parts.hpp"
#include "observe/statistics.hpp"

namespace vpmm::context {

class Totals {
 public:
  explicit Totals(Parts& parts) : parts_(parts), device_(parts.device) {}

  observe::Statistics now() const VPMM_REQUIRES(pool_lock);
  // Bytes of chunks that can serve any request once caches and arenas gave back idle memory.
  // Requires a pool.
  Bytes movable_bytes() const VPMM_REQUIRES(pool_lock);
  // Writes mapped, pending and free bytes to a running recording.
  void sample() VPMM_REQUIRES(pool_lock);
  void count_failure() VPMM_REQUIRES(pool_lock) { ++failed_allocations_; }

 private:
  Parts& parts_;
  Device& device_;
  std::uint64_t failed_allocations_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::context
