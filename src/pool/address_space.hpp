// pool: getting address space.
#pragma once

#include "base/result.hpp"
#include "pool/memory.hpp"

namespace vpmm::pool {

// At least so many bytes more, as one hole. Drops the lock around the driver call.
Result<void> add_reservation(Memory& memory, MutexLock& lock, Bytes at_least)
    VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::pool
