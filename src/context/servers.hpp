// context: who serves requests on one device, by what the device can do and the settings say.
#pragma once

#include <memory>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "context/config.hpp"
#include "driver/driver.hpp"
#include "driver_pool/driver_pool.hpp"
#include "pool/pool.hpp"
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

// Pages beyond any usual size are how the specification switches the pool off: what is below them is the driver's.
constexpr Bytes kLargestPageCut = 64 * kMiB;

// Everybody reads it without the lock, so nothing in it changes.
struct Servers {
  // `inner`: for calls that take no lock; `driver`: for all others.
  Servers(driver::Driver& inner, driver::Driver& driver, const Config& config, const DeviceTraits& traits,
          time::Timelines& timelines);

  // Null: there is none.
  region::Region* allocated_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return pool == nullptr ? nullptr : pool->allocated_around(ptr);
  }
  driver_pool::Block* block_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return driver_pool == nullptr ? nullptr : driver_pool->block_around(ptr);
  }
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock);
  // What is complete by now may be used again.
  void advance(const Vector<time::StampPart>& done) const VPMM_REQUIRES(pool_lock);
  void fill(observe::Statistics& figures) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

  std::unique_ptr<pool::Pool> pool;                      // null: no VMM, or switched off
  std::unique_ptr<small::SmallPool> small;               // null like pool
  std::unique_ptr<driver_pool::DriverPool> driver_pool;  // null: not there, or not needed
};

}  // namespace vpmm::context
