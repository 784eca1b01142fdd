// SPDX-License-Identifier: Apache-2.0
// pool: reserves address space.
#pragma once

#include "base/result.hpp"
#include "pool/memory.hpp"

namespace vpmm::pool {

// Adds a reservation of at least `at_least` bytes, as one hole. Drops the lock around the driver
// call.
Result<void> add_reservation(Memory& memory, MutexLock& lock, Bytes at_least)
    VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::pool
