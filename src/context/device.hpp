// SPDX-License-Identifier: Apache-2.0
// context: parts of a device: CUDA context, timelines, and servers of requests.
#pragma once

#include <memory>
#include <string>

#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "context/primary_context.hpp"
#include "driver/recording.hpp"
#include "driver_pool/driver_pool.hpp"
#include "guard/guarded.hpp"
#include "pool/pool.hpp"
#include "pool/stamper.hpp"
#include "settings/config.hpp"
#include "small/small_pool.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// Capabilities of the device, queried once.
struct DeviceTraits {
  bool has_vmm = false;
  bool has_memory_pools = false;
  Bytes granularity = 2 * kMiB;
  driver::ChunkProperties chunk;
};

Result<DeviceTraits> traits_of(driver::Driver& driver, driver::DeviceOrdinal device);
// Tells if a kernel that describes itself so in /proc/version is that of WSL, new or old.
bool is_kernel_of_wsl(const std::string& version);

// Above this page size the driver's pool serves requests below a page. The specification switches
// the pool off by a larger page.
constexpr Bytes kLargestPageCut = 64 * kMiB;

// Shared by all parts of the context. The servers of requests are fixed at construction.
struct Device {
  Device(driver::Driver& inner_driver, driver::DeviceOrdinal ordinal, const settings::Config& asked,
         const DeviceTraits& traits);

  // Null: none.
  region::Region* allocated_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return pool == nullptr ? nullptr : pool->memory().index.allocated_around(ptr);
  }
  driver_pool::PoolBlock* block_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return driver_pool == nullptr ? nullptr : driver_pool->block_around(ptr);
  }
  guard::Block* guarded_around(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    return guard == nullptr ? nullptr : guard->live_around(ptr);
  }
  bool owns_part_of(AddressRange memory) const VPMM_REQUIRES(pool_lock);
  std::uint64_t live_allocations() const VPMM_REQUIRES(pool_lock);
  // Sums over all caches.
  Bytes live_bytes() const VPMM_REQUIRES(pool_lock);
  // Completes these parts in pool and caches.
  void advance(const Vector<time::StampPart>& done) const VPMM_REQUIRES(pool_lock);
  void fill(observe::Statistics& figures) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

  const settings::Config config;                               // as in force
  const Bytes page_size;                                       // of the pool, if any
  alignas(kCacheLine) mutable driver::RecordingDriver driver;  // counts calls of `inner`
  time::Timelines timelines VPMM_GUARDED_BY(pool_lock);
  pool::Stamper stamper;
  // --- read by every call without the lock; apart from cache lines that change often ---
  alignas(kCacheLine) driver::Driver& inner;             // for calls that take no lock
  std::unique_ptr<pool::Pool> pool;                      // null: no VMM, or switched off
  std::unique_ptr<small::SmallPool> small;               // null like pool
  std::unique_ptr<driver_pool::DriverPool> driver_pool;  // null: unsupported or unused
  std::unique_ptr<guard::Guarded> guard;                 // null: VPMM_GUARD is off
  PrimaryContext primary;
};

}  // namespace vpmm::context
