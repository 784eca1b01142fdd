// SPDX-License-Identifier: Apache-2.0
// context: capabilities of a device, and its servers of requests.
#include "context/device.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::context {

using driver::Call;
using driver::DeviceAttribute;

namespace {

time::ClosingRule closing_rule(const settings::Config& config) {
  time::ClosingRule rule;
  rule.even_alone = config.page_chunks || config.prefer == settings::Prefer::footprint;
  if (config.page_chunks)
    rule.frees = 1;  // the specification closes every free
  else if (config.prefer == settings::Prefer::footprint)
    rule.frees = 0;  // also frees in a cache: before the pool grows, other streams wait for them
  return rule;
}

bool cuts_pages(const settings::Config& config, const DeviceTraits& traits) {
  const Bytes page = config.page_size.value_or(traits.granularity);
  return !config.ipc_isolate && traits.has_vmm && config.pool_enabled &&
         config.small == settings::SmallRequests::pool && small::Serving::can_cut(page) &&
         page <= kLargestPageCut;
}

// Another process gets whole chunks, so isolation gives every allocation own chunks (Note [Own
// chunks]): requests below a page take whole pages.
bool keeps_apart(const settings::Config& config) {
  return config.ipc_isolate && config.small == settings::SmallRequests::pool;
}

Result<bool> device_can(driver::Driver& driver, DeviceAttribute attribute,
                        driver::DeviceOrdinal device) {
  int value = 0;
  VPMM_TRY(driver::checked(Call::device_get_attribute,
                           driver.device_get_attribute(attribute, device, value)));
  return value != 0;
}

// On WSL the RDMA attribute reads 1, but memory created with the flag cannot be made accessible.
bool runs_on_wsl() {
  std::ifstream version("/proc/version");
  std::string text;
  std::getline(version, text);
  return is_kernel_of_wsl(text);
}

}  // namespace

bool is_kernel_of_wsl(const std::string& version) {
  return version.find("microsoft") != std::string::npos ||
         version.find("Microsoft") != std::string::npos;
}

Result<DeviceTraits> traits_of(driver::Driver& driver, driver::DeviceOrdinal device) {
  DeviceTraits traits;
  traits.chunk.device = device;
  VPMM_TRY_ASSIGN(traits.has_vmm,
                  device_can(driver, DeviceAttribute::virtual_memory_management_supported, device));
  VPMM_TRY_ASSIGN(traits.has_memory_pools,
                  device_can(driver, DeviceAttribute::memory_pools_supported, device));
  if (!traits.has_vmm) return traits;
  VPMM_TRY_ASSIGN(traits.chunk.posix_file_descriptor,
                  device_can(driver, DeviceAttribute::posix_file_descriptor_supported, device));
  VPMM_TRY_ASSIGN(const bool has_rdma,
                  device_can(driver, DeviceAttribute::gpu_direct_rdma_with_vmm_supported, device));
  traits.chunk.gpu_direct_rdma_capable = has_rdma && !runs_on_wsl();
  VPMM_TRY(driver::checked(Call::mem_get_allocation_granularity,
                           driver.mem_get_allocation_granularity(
                               traits.chunk, driver::Granularity::minimum, traits.granularity)));
  return traits;
}

Device::Device(driver::Driver& inner_driver, driver::DeviceOrdinal ordinal,
               const settings::Config& asked, const DeviceTraits& traits)
    : config(asked),
      page_size(config.page_size.value_or(traits.granularity)),
      driver(inner_driver),
      timelines(driver, closing_rule(config)),
      stamper(timelines, config),
      inner(inner_driver),
      primary(driver, ordinal) {
  using BelowAPage = small::BelowAPage;
  if (traits.has_vmm && config.pool_enabled)
    pool = std::make_unique<pool::Pool>(driver, traits.chunk, config, page_size, timelines);
  const bool cuts = cuts_pages(config, traits);
  const bool has_whole_pages_only = pool != nullptr && keeps_apart(config);
  if (traits.has_memory_pools && !cuts && !has_whole_pages_only)
    driver_pool = std::make_unique<driver_pool::DriverPool>(driver, ordinal, timelines);
  if (pool == nullptr && config.checks.guard_every != 0)
    observe::log(observe::LogLevel::warning,
                 "device {}: VPMM_GUARD needs the virtual memory pool, which is off or not "
                 "supported here: nothing is guarded",
                 ordinal);
  if (pool == nullptr) return;
  if (config.checks.guard_every != 0)
    guard = std::make_unique<guard::Guarded>(
        driver, traits.chunk, timelines,
        guard::Options{traits.granularity, config.va_size, config.checks.guard_every,
                       config.streams.any_stream == settings::AnyStreamOrder::legacy});
  const BelowAPage below_a_page = cuts                     ? BelowAPage::cut
                                  : driver_pool != nullptr ? BelowAPage::driver_pool
                                                           : BelowAPage::whole_pages;
  const bool proves_frees = !config.page_chunks && config.prefer == settings::Prefer::footprint;
  small = std::make_unique<small::SmallPool>(
      inner, *pool, timelines,
      small::ServingOptions{below_a_page, !config.page_chunks, proves_frees,
                            config.streams.crowded_after});
}

bool Device::owns_part_of(AddressRange memory) const {
  bool owns = false;
  if (pool != nullptr)
    for (const AddressRange& reservation : pool->memory().reservations)
      owns = owns || reservation.overlaps(memory);
  if (driver_pool != nullptr)
    driver_pool->for_each_block([&](const driver_pool::PoolBlock& block) {
      owns = owns || AddressRange{block.begin, block.requested}.overlaps(memory);
    });
  return owns || (guard != nullptr && guard->owns_part_of(memory));
}

std::uint64_t Device::live_allocations() const {
  std::uint64_t live = driver_pool == nullptr ? 0 : driver_pool->live_allocations();
  if (pool != nullptr)
    live +=
        pool->memory().index.count(region::RegionState::allocated) + small->figures().most_live();
  if (guard != nullptr) live += guard->figures().live;
  return live;
}

void Device::advance(const Vector<time::StampPart>& done) const {
  if (pool == nullptr || done.empty()) return;
  pool->advance(done);
  small->advance(done);
}

Bytes Device::live_bytes() const {
  Bytes live = driver_pool == nullptr ? 0 : driver_pool->requested_bytes();
  if (pool != nullptr)
    live += pool->memory().index.requested_bytes() +
            static_cast<Bytes>(small->figures().tally().requested +
                               small->ledger().of_stretches().requested) -
            small->ledger().asleep().requested;
  if (guard != nullptr) live += guard->figures().requested;
  return live;
}

void Device::fill(observe::Statistics& figures) const {
  if (pool != nullptr) {
    pool->memory().fill(figures);
    small::Tally tally = small->figures().tally();
    tally += small->ledger().of_stretches();
    const small::Ledger::Asleep& asleep = small->ledger().asleep();
    figures.live_bytes += static_cast<Bytes>(tally.requested) - asleep.requested;
    figures.allocated_bytes += static_cast<Bytes>(tally.allocated) - asleep.allocated;
    figures.free_bytes += small->caches().cached_pages_bytes();
    figures.pending_bytes += small->figures().pending_bytes();
    figures.small_bytes = small->cut_pages().bytes();
    figures.small_free_bytes = small->figures().idle_in_cut_bytes();
    figures.cached_bytes = small->caches().cached_bytes();
    figures.live_allocations += static_cast<std::uint64_t>(tally.live()) - asleep.blocks;
    figures.allocations += static_cast<std::uint64_t>(tally.allocations);
    figures.hits += static_cast<std::uint64_t>(tally.allocations);
    figures.deallocations += static_cast<std::uint64_t>(tally.deallocations);
  }
  if (guard != nullptr) {
    const guard::GuardFigures& guarded = guard->figures();
    figures.live_bytes += guarded.requested;
    figures.allocated_bytes += guarded.allocated;
    figures.reserved_bytes += guard->reserved_bytes();
    figures.mappings += guarded.mappings;
    figures.chunks += guarded.mappings;
    figures.live_allocations += guarded.live;
    figures.allocations += guarded.allocations;
    figures.deallocations += guarded.allocations - guarded.live;
    figures.chunks_created += guarded.chunks_created;
    figures.chunks_released += guarded.chunks_released;
    figures.guarded_bytes = guarded.mapped;
    figures.guarded_allocations = guarded.allocations;
    figures.unguarded_allocations = guarded.unguarded;
    figures.damaged_allocations = guarded.damaged;
  }
  if (driver_pool == nullptr) return;
  figures.live_bytes += driver_pool->requested_bytes();
  figures.allocated_bytes += driver_pool->requested_bytes();
  figures.pending_bytes += driver_pool->pending_bytes();
  figures.live_allocations += driver_pool->live_allocations();
  figures.allocations += driver_pool->allocations();
  figures.hits += driver_pool->allocations();
  figures.deallocations += driver_pool->deallocations();
}

std::string Device::validate() const {
  if (driver_pool != nullptr)
    if (std::string broken = driver_pool->validate(); !broken.empty()) return broken;
  if (guard != nullptr)
    if (std::string broken = guard->validate(); !broken.empty()) return broken;
  if (pool == nullptr) return {};
  if (std::string broken = small->validate(); !broken.empty()) return broken;
  return pool->memory().validate();
}

}  // namespace vpmm::context
