// SPDX-License-Identifier: Apache-2.0
// driver_pool: allocates from and frees to the driver's pool.
#include "driver_pool/driver_pool.hpp"

#include <limits>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::driver_pool {

// Note [Pool calls break captures]
// Every call about the driver's pools breaks a stream capture, on any stream, unless the calling
// thread's mode is relaxed.
using driver::RelaxedCaptureScope;

using driver::Call;
using driver::CuResult;
using driver::MemPoolAttribute;

DriverPool::DriverPool(driver::Driver& driver, driver::DeviceOrdinal device,
                       time::Timelines& timelines)
    : driver_(driver), device_(device), timelines_(timelines) {}

// Keeps memory in the driver's pool until trim. Turns off reuse by dependencies of the driver,
// which would make one stream wait for another.
Result<void> DriverPool::open() {
  if (pool_) return {};
  const RelaxedCaptureScope relaxed(driver_);
  driver::MemPoolHandle pool{};
  VPMM_TRY(driver::checked(Call::mem_pool_create, driver_.mem_pool_create(device_, pool)));
  const std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
  CuResult result =
      driver_.mem_pool_set_attribute(pool, MemPoolAttribute::release_threshold, keep_all);
  if (result == CuResult::success)
    result = driver_.mem_pool_set_attribute(pool,
                                            MemPoolAttribute::reuse_allow_internal_dependencies, 0);
  Result<void> ready = driver::checked(Call::mem_pool_set_attribute, result);
  if (ready)
    ready = driver::checked(Call::stream_create,
                            driver_.stream_create(driver::StreamFlags::non_blocking, own_stream_));
  if (!ready) {
    driver_.mem_pool_destroy(pool);  // `ready` is the error to tell
    return ready;
  }
  pool_ = pool;
  return {};
}

Result<DevicePtr> DriverPool::allocate(MutexLock& lock, Bytes bytes,
                                       std::optional<driver::StreamHandle> stream,
                                       const time::Timeline* timeline) {
  VPMM_TRY(open());
  const driver::MemPoolHandle pool = *pool_;
  const driver::StreamHandle on = stream.value_or(own_stream_);
  const std::uint64_t deaths = deaths_;
  std::optional<time::TimelineId> owner;
  if (timeline != nullptr) owner = timeline->id;
  DevicePtr begin{};
  const RelaxedCaptureScope relaxed(driver_);
  Result<void> done;
  {
    const Unlocked unlocked(lock);
    done = driver::checked(Call::mem_alloc_from_pool_async,
                           driver_.mem_alloc_from_pool_async(bytes, pool, on, begin));
    if (done && !stream) {
      // Any stream may use the memory, so the allocation must be over. Only finished frees run on
      // this stream: no wait.
      done = driver::checked(Call::stream_synchronize, driver_.stream_synchronize(on));
      if (!done) driver_.mem_free_async(begin, on);  // `done` is the error to tell
    }
  }
  const bool has_died = deaths != deaths_;
  if (!done && has_died)  // not an error of the context that is there now
    return Error{ErrorCode::driver_failed, "the CUDA context was reset meanwhile"};
  if (!done) return std::move(done.error());
  if (has_died) return begin;
  blocks_.emplace(begin, PoolBlock{begin, bytes, owner, {}});
  time::count_references(timelines_, owner, {}, +1);
  requested_ += bytes;
  ++allocations_;
  return begin;
}

PoolBlock* DriverPool::block_around(DevicePtr p) {
  auto after = blocks_.upper_bound(p);
  if (after == blocks_.begin()) return nullptr;
  PoolBlock& block = std::prev(after)->second;
  return AddressRange{block.begin, block.requested}.contains(p) ? &block : nullptr;
}

DriverPool::PoolBlocks::node_type DriverPool::take_block(DevicePtr begin) {
  PoolBlocks::node_type node = blocks_.extract(begin);
  const PoolBlock& block = node.mapped();
  time::count_references(timelines_, block.timeline, block.other_uses, -1);
  requested_ -= block.requested;
  ++deallocations_;
  return node;
}

void DriverPool::put_back(PoolBlocks::node_type&& node) {
  const PoolBlock& block = node.mapped();
  time::count_references(timelines_, block.timeline, block.other_uses, +1);
  requested_ += block.requested;
  --deallocations_;
  blocks_.insert(std::move(node));
}

Result<void> DriverPool::deallocate_on(MutexLock& lock, PoolBlock* block,
                                       driver::StreamHandle stream) {
  // Before the driver may hand the address out again. To put it back needs no host memory.
  PoolBlocks::node_type freed = take_block(block->begin);
  const std::uint64_t deaths = deaths_;
  const RelaxedCaptureScope relaxed(driver_);
  CuResult result{};
  {
    const Unlocked unlocked(lock);
    result = driver_.mem_free_async(freed.key(), stream);
  }
  if (result == CuResult::success || deaths != deaths_) return {};
  put_back(std::move(freed));
  return driver::driver_error(Call::mem_free_async, result);
}

Result<void> DriverPool::deallocate_after(MutexLock& lock, PoolBlock* block,
                                          const time::Stamp& stamp) {
  pending_.push_back({block->begin, block->requested, stamp});
  pending_bytes_ += block->requested;
  take_block(block->begin);
  return settle(lock);
}

Result<void> DriverPool::settle(MutexLock& lock) {
  Vector<Pending> complete;
  std::erase_if(pending_, [&](Pending& pending) VPMM_REQUIRES(pool_lock) {
    pending.stamp = timelines_.reduce(pending.stamp);
    if (!pending.stamp.is_complete()) return false;
    pending_bytes_ -= pending.bytes;
    complete.push_back(pending);
    return true;
  });
  if (complete.empty()) return {};
  const RelaxedCaptureScope relaxed(driver_);
  const driver::StreamHandle on = own_stream_;
  const std::uint64_t deaths = deaths_;
  Result<void> outcome;
  Vector<Pending> failed;
  {
    const Unlocked unlocked(lock);
    for (const Pending& pending : complete) {
      const CuResult result = driver_.mem_free_async(pending.begin, on);
      if (result == CuResult::success) continue;
      failed.push_back(pending);  // retried by the next call
      if (driver::is_sticky(result)) outcome = driver::driver_error(Call::mem_free_async, result);
    }
  }
  if (deaths != deaths_) return {};
  for (const Pending& pending : failed) {
    pending_.push_back(pending);
    pending_bytes_ += pending.bytes;
  }
  return outcome;
}

Result<Bytes> DriverPool::trim(MutexLock& lock) {
  if (!pool_) return Bytes{0};
  const Bytes before = reserved_bytes();
  const RelaxedCaptureScope relaxed(driver_);
  const driver::MemPoolHandle pool = *pool_;
  CuResult result{};
  {
    const Unlocked unlocked(lock);
    result = driver_.mem_pool_trim_to(pool, 0);
  }
  VPMM_TRY(driver::checked(Call::mem_pool_trim_to, result));
  const Bytes after = reserved_bytes();
  return before > after ? before - after : 0;
}

void DriverPool::forget() {
  ++deaths_;
  pool_.reset();
  while (!blocks_.empty()) take_block(blocks_.begin()->first);
  pending_.clear();
  pending_bytes_ = 0;
}

void DriverPool::release_everything() {
  if (!pool_) return;
  const RelaxedCaptureScope relaxed(driver_);
  // Ignores failures at the end; each step is right without the one before.
  for (const auto& [begin, block] : blocks_) driver_.mem_free_async(begin, own_stream_);
  for (const Pending& pending : pending_) driver_.mem_free_async(pending.begin, own_stream_);
  driver_.stream_synchronize(own_stream_);
  driver_.stream_destroy(own_stream_);
  driver_.mem_pool_destroy(*pool_);
  forget();
}

Bytes DriverPool::reserved_bytes() {
  if (!pool_) return 0;
  const RelaxedCaptureScope relaxed(driver_);
  std::uint64_t reserved = 0;
  const CuResult result =
      driver_.mem_pool_get_attribute(*pool_, MemPoolAttribute::reserved_mem_current, reserved);
  return result == CuResult::success ? reserved : requested_ + pending_bytes_;
}

std::string DriverPool::validate() const {
  Bytes requested = 0;
  DevicePtr reached{};
  for (const auto& [begin, block] : blocks_) {
    if (begin < reached) return message_of("two live blocks overlap at {:#x}", to_integer(begin));
    reached = begin + block.requested;
    requested += block.requested;
  }
  Bytes pending = 0;
  for (const Pending& entry : pending_) pending += entry.bytes;
  if (requested != requested_)
    return message_of("{} bytes in live blocks, {} counted", requested, requested_);
  if (pending != pending_bytes_)
    return message_of("{} bytes pending, {} counted", pending, pending_bytes_);
  return {};
}

}  // namespace vpmm::driver_pool
