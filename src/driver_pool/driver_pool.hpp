// SPDX-License-Identifier: Apache-2.0
// driver_pool: stream-ordered memory manager for requests below a page, over the driver's own
// asynchronous pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/timelines.hpp"

namespace vpmm::driver_pool {

struct PoolBlock {
  DevicePtr begin{};
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; nullopt: any-stream
  Vector<time::TimelineId> other_uses;       // streams named with record_use
};

// Methods with a `lock` drop it around driver calls that may block.
class DriverPool {
 public:
  DriverPool(driver::Driver& driver, driver::DeviceOrdinal device, time::Timelines& timelines);

  // Allocates for `stream`; without a stream, memory that any stream may use at once. If others
  // reset the context meanwhile, no block is at the address that it returns.
  Result<DevicePtr> allocate(MutexLock& lock, Bytes bytes,
                             std::optional<driver::StreamHandle> stream,
                             const time::Timeline* timeline) VPMM_REQUIRES(pool_lock);
  // Live allocation around `p`; null if none.
  PoolBlock* block_around(DevicePtr p) VPMM_REQUIRES(pool_lock);
  // Frees behind the work on `stream`.
  Result<void> deallocate_on(MutexLock& lock, PoolBlock* block, driver::StreamHandle stream)
      VPMM_REQUIRES(pool_lock);
  Result<void> deallocate_after(MutexLock& lock, PoolBlock* block, const time::Stamp& stamp)
      VPMM_REQUIRES(pool_lock);

  // Returns completed memory to the driver's pool.
  Result<void> settle(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Gives unused memory of the driver's pool back; returns the bytes.
  Result<Bytes> trim(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Forgets all blocks: the context has died, and every address with it.
  void forget() VPMM_REQUIRES(pool_lock);
  // Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock);

  Bytes reserved_bytes() VPMM_REQUIRES(pool_lock);  // bytes held by the driver's pool
  Bytes requested_bytes() const VPMM_REQUIRES(pool_lock) { return requested_; }
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) { return pending_bytes_; }
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock) { return blocks_.size(); }
  std::uint64_t allocations() const VPMM_REQUIRES(pool_lock) { return allocations_; }
  std::uint64_t deallocations() const VPMM_REQUIRES(pool_lock) { return deallocations_; }
  void for_each_block(FunctionRef<void(const PoolBlock&)> visit) const VPMM_REQUIRES(pool_lock) {
    for (const auto& [begin, block] : blocks_) visit(block);
  }
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct Pending {
    DevicePtr begin{};
    Bytes bytes = 0;
    time::Stamp stamp;
  };
  Result<void> open() VPMM_REQUIRES(pool_lock);
  using PoolBlocks = Map<DevicePtr, PoolBlock>;
  PoolBlocks::node_type take_block(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  void put_back(PoolBlocks::node_type&& node) VPMM_REQUIRES(pool_lock);

  driver::Driver& driver_;
  driver::DeviceOrdinal device_;
  time::Timelines& timelines_;
  std::optional<driver::MemPoolHandle> pool_ VPMM_GUARDED_BY(pool_lock);
  driver::StreamHandle own_stream_
      VPMM_GUARDED_BY(pool_lock){};  // non-blocking; carries frees without a caller's stream
  PoolBlocks blocks_ VPMM_GUARDED_BY(pool_lock);
  Vector<Pending> pending_ VPMM_GUARDED_BY(pool_lock);
  Bytes requested_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes pending_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t allocations_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t deallocations_ VPMM_GUARDED_BY(pool_lock) = 0;
  // Calls of forget(). A call that finds it changed after a driver call has nothing to note: its
  // memory died with the context.
  std::uint64_t deaths_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::driver_pool
