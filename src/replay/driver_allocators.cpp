// SPDX-License-Identifier: Apache-2.0
// replay: the driver's own allocators, for comparison.
#include "replay/driver_allocators.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "driver/driver_error.hpp"

namespace vpmm::replay {
namespace {

using driver::Call;

// Footprint: drop of the device's free memory; other processes that take or give back memory
// meanwhile show in it. Queries the driver once the live bytes have grown by 1/256 since the last
// query.
class PlainAllocator final : public TraceAllocator {
 public:
  PlainAllocator(driver::Driver& driver, Bytes free_at_start)
      : driver_(driver), free_at_start_(free_at_start) {}

  ~PlainAllocator() override {
    // Ignores failures at the end: memory of a broken context ends with the process.
    if (!live_.empty()) driver_.ctx_synchronize();
    for (const auto& [ptr, bytes] : live_) driver_.mem_free(ptr);
  }

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle /*stream*/) override {
    DevicePtr ptr{};
    if (bytes == 0) return ptr;
    VPMM_TRY(checked(Call::mem_alloc, driver_.mem_alloc(bytes, ptr)));
    live_.emplace(ptr, bytes);
    live_bytes_ += bytes;
    if (live_bytes_ > asked_at_ + asked_at_ / 256) VPMM_TRY(ask_footprint());
    return ptr;
  }

  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override {
    if (is_null(ptr)) return {};
    VPMM_TRY(checked(Call::stream_synchronize, driver_.stream_synchronize(stream)));
    VPMM_TRY(checked(Call::mem_free, driver_.mem_free(ptr)));
    const auto entry = live_.find(ptr);
    live_bytes_ -= entry->second;
    live_.erase(entry);
    return {};
  }

  Result<TraceFootprint> footprint() override { return TraceFootprint{peak_bytes_, 0, 0}; }

 private:
  Result<void> ask_footprint() {
    driver::MemInfo info;
    VPMM_TRY(checked(Call::mem_get_info, driver_.mem_get_info(info)));
    peak_bytes_ = std::max(peak_bytes_, free_at_start_ - std::min(free_at_start_, info.free));
    asked_at_ = live_bytes_;
    return {};
  }

  driver::Driver& driver_;
  const Bytes free_at_start_;
  std::unordered_map<DevicePtr, Bytes> live_;
  Bytes live_bytes_ = 0;  // = sum of live_
  Bytes asked_at_ = 0;    // largest live_bytes_ at a query
  Bytes peak_bytes_ = 0;
};

class StreamOrderedAllocator final : public TraceAllocator {
 public:
  StreamOrderedAllocator(driver::Driver& driver, driver::MemPoolHandle pool)
      : driver_(driver), pool_(pool) {}

  // Requires: every allocation was given back; the driver keeps the pool until the last free has
  // happened.
  ~StreamOrderedAllocator() override {
    driver_.ctx_synchronize();
    driver_.mem_pool_destroy(pool_);
  }

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override {
    DevicePtr ptr{};
    if (bytes == 0) return ptr;
    VPMM_TRY(checked(Call::mem_alloc_from_pool_async,
                     driver_.mem_alloc_from_pool_async(bytes, pool_, stream, ptr)));
    return ptr;
  }

  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override {
    if (is_null(ptr)) return {};
    return checked(Call::mem_free_async, driver_.mem_free_async(ptr, stream));
  }

  Result<TraceFootprint> footprint() override {
    std::uint64_t bytes = 0;
    VPMM_TRY(checked(
        Call::mem_pool_get_attribute,
        driver_.mem_pool_get_attribute(pool_, driver::MemPoolAttribute::reserved_mem_high, bytes)));
    return TraceFootprint{bytes, 0, 0};
  }

 private:
  driver::Driver& driver_;
  const driver::MemPoolHandle pool_;
};

}  // namespace

Result<std::unique_ptr<TraceAllocator>> make_plain_allocator(driver::Driver& driver) {
  driver::MemInfo info;
  VPMM_TRY(checked(Call::mem_get_info, driver.mem_get_info(info)));
  return std::unique_ptr<TraceAllocator>(std::make_unique<PlainAllocator>(driver, info.free));
}

Result<std::unique_ptr<TraceAllocator>> make_stream_ordered_allocator(driver::Driver& driver) {
  driver::MemPoolHandle pool{};
  VPMM_TRY(checked(Call::mem_pool_create, driver.mem_pool_create(0, pool)));
  auto allocator = std::make_unique<StreamOrderedAllocator>(driver, pool);
  const std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
  VPMM_TRY(checked(
      Call::mem_pool_set_attribute,
      driver.mem_pool_set_attribute(pool, driver::MemPoolAttribute::release_threshold, keep_all)));
  return std::unique_ptr<TraceAllocator>(std::move(allocator));
}

}  // namespace vpmm::replay
