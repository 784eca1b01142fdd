// somm: stream-ordered memory manager: requests below a page, over the driver's own asynchronous pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/timelines.hpp"

namespace vpmm::somm {

// One live allocation.
struct Block {
  DevicePtr begin{};
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream
  Vector<time::TimelineId> other_uses;       // streams named with record_use
};

// Holds: every method runs under the context's lock; those that take it drop it around driver calls that may block.
class Somm {
 public:
  Somm(driver::Driver& driver, driver::DeviceOrdinal device, time::Timelines& timelines);

  // Memory for `stream`; without one, memory that any stream may use at once.
  Result<DevicePtr> allocate(MutexLock& lock, Bytes bytes, std::optional<driver::StreamHandle> stream,
                             const time::Timeline* timeline);
  // The live allocation around `p`; null: none.
  Block* owner(DevicePtr p);
  // Frees behind the work on `stream`.
  Result<void> deallocate_on(MutexLock& lock, Block* block, driver::StreamHandle stream);
  // Frees once `stamp` is complete.
  Result<void> deallocate_after(MutexLock& lock, Block* block, const time::Stamp& stamp);
  void record_use(Block* block, time::Timeline& timeline);

  // Hands what has become complete back to the driver's pool.
  Result<void> settle(MutexLock& lock);
  // Gives unused memory of the driver's pool back; returns how much.
  Result<Bytes> trim(MutexLock& lock);
  // The context has died, and every address with it.
  void forget();
  // Frees everything. Requires: the GPU is idle.
  void release_everything();

  Bytes reserved_bytes();  // what the driver's pool holds
  Bytes requested_bytes() const { return requested_; }
  Bytes pending_bytes() const { return pending_bytes_; }
  std::uint64_t live_allocations() const { return blocks_.size(); }
  std::uint64_t allocations() const { return allocations_; }
  std::uint64_t deallocations() const { return deallocations_; }
  std::string validate() const;

 private:
  struct Pending {
    DevicePtr begin{};
    Bytes bytes = 0;
    time::Stamp stamp;
  };
  Result<void> open();
  void forget_block(Block* block);

  driver::Driver& driver_;
  driver::DeviceOrdinal device_;
  time::Timelines& timelines_;
  std::optional<driver::MemPoolHandle> pool_;
  driver::StreamHandle own_stream_{};  // non-blocking; carries frees that no caller's stream carries
  Map<DevicePtr, Block> blocks_;
  Vector<Pending> pending_;
  Bytes requested_ = 0;
  Bytes pending_bytes_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t deallocations_ = 0;
};

}  // namespace vpmm::somm
