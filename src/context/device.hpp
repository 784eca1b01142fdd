// context: what a device has: its CUDA context, its timelines, and those who serve requests.
#pragma once

#include <memory>
#include <string>

#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "context/primary_context.hpp"
#include "driver/recording.hpp"
#include "driver_pool/driver_pool.hpp"
#include "pool/pool.hpp"
#include "pool/stamper.hpp"
#include "settings/config.hpp"
#include "small/small_pool.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// What the device can do, asked once.
struct DeviceTraits {
  bool has_vmm = false;
  bool has_memory_pools = false;
  Bytes granularity = 2 * kMiB;
  driver::ChunkProperties chunk;
};

Result<DeviceTraits> traits_of(driver::Driver& driver, driver::DeviceOrdinal device);

// Pages beyond any usual size are how the specification switches the pool off: what is below them
// is the driver's.
constexpr Bytes kLargestPageCut = 64 * kMiB;

// What all parts of the context share; who serves is settled when it is made.
struct Device {
  Device(driver::Driver& inner_driver, driver::DeviceOrdinal ordinal, const settings::Config& asked,
         const DeviceTraits& traits);

  // Null: there is none.
  region::Region* allocated_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return pool == nullptr ? nullptr : pool->allocated_around(ptr);
  }
  driver_pool::PoolBlock* block_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return driver_pool == nullptr ? nullptr : driver_pool->block_around(ptr);
  }
  bool owns_part_of(AddressRange memory) const VPMM_REQUIRES(pool_lock);
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock);
  // A sum over all caches.
  Bytes live_bytes() const VPMM_REQUIRES(pool_lock);
  // What is complete by now may be used again.
  void advance(const Vector<time::StampPart>& done) const VPMM_REQUIRES(pool_lock);
  void fill(observe::Statistics& figures) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

  const settings::Config config;  // as in force
  const Bytes page_size;          // of the pool, if there is one
  alignas(
      kCacheLine) mutable driver::RecordingDriver driver;  // over `inner`: counts for statistics
  time::Timelines timelines VPMM_GUARDED_BY(pool_lock);
  pool::Stamper stamper;
  // --- read by every call, without the lock; on lines of their own, for what is around them
  // changes all the time ---
  alignas(kCacheLine) driver::Driver& inner;             // for calls that take no lock
  std::unique_ptr<pool::Pool> pool;                      // null: no VMM, or switched off
  std::unique_ptr<small::SmallPool> small;               // null like pool
  std::unique_ptr<driver_pool::DriverPool> driver_pool;  // null: not there, or not needed
  PrimaryContext primary;
};

}  // namespace vpmm::context
