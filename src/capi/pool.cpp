// SPDX-License-Identifier: Apache-2.0
// capi: opens pools, and keeps one per device for the whole process.
#include "capi/pool.hpp"

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "base/mutex.hpp"
#include "capi/recording.hpp"
#include "context/open_driver.hpp"
#include "ipc/exporter.hpp"
#include "ipc/top_socket.hpp"
#include "observe/log.hpp"
#include "settings/config.hpp"
#include "settings/variables.hpp"

namespace vpmm::capi {
namespace {

constexpr int kMaxDevices = 128;

// Leaked on purpose, with all pools, for users during static destruction. With the slots every
// later look-up is a plain load.
struct ProcessPools {
  Mutex opening;
  std::array<std::atomic<vpmm_pool*>, kMaxDevices> slots{};
};

ProcessPools& process_pools() {
  static auto* const pools = new ProcessPools;
  return *pools;
}

// Also private ones.
struct OpenPools {
  Mutex mutex;
  std::vector<vpmm_pool*> list;
};

OpenPools& open_pools() {
  static auto* const pools = new OpenPools;
  return *pools;
}

Result<std::atomic<vpmm_pool*>*> slot_of(int device) {
  if (device >= 0 && device < kMaxDevices)
    return &process_pools().slots[static_cast<std::size_t>(device)];
  return Error{ErrorCode::invalid_argument, message_of("there is no device {}", device)};
}

Result<void> check_same(int device, const vpmm_pool& open, const settings::Config& config) {
  const settings::Config& in_force = open.context->config();
  if (config == in_force) return {};
  return Error{
      ErrorCode::bad_configuration,
      message_of("the process-wide pool of device {} is already open with other settings: {}",
                 device, settings::difference(in_force, config))};
}

Result<vpmm_pool*> open_in(std::atomic<vpmm_pool*>& slot, int device,
                           const settings::Config& config) {
  VPMM_TRY_ASSIGN(vpmm_pool* const pool, open_pool(device, config, PoolLifetime::process_wide));
  slot.store(pool, std::memory_order_release);
  return pool;
}

void visit_contexts(const std::function<void(context::Context&)>& visit) {
  for_each_pool([&](vpmm_pool& pool) {
    visit(*pool.context);
    return true;
  });
}

}  // namespace

Result<vpmm_pool*> open_pool(int device, const settings::Config& config, PoolLifetime ownership) {
  observe::set_log_level(config.log);
  settings::warn_of_variables();
  VPMM_TRY_ASSIGN(driver::Driver* const driver, context::process_driver(config.driver));
  VPMM_TRY_ASSIGN(auto opened, context::Context::create(*driver, device, config));
  auto pool = std::unique_ptr<vpmm_pool>(new vpmm_pool{std::move(opened), ownership});
  record_as_environment_says(*pool->context);
  {
    const MutexLock lock(open_pools().mutex);
    open_pools().list.push_back(pool.get());
  }
  ipc::answer_top({&visit_contexts, vpmm_version()});
  return pool.release();
}

void close_pool(vpmm_pool* pool) {
  {
    const MutexLock lock(open_pools().mutex);
    std::erase(open_pools().list, pool);
  }
  ipc::Exporter::of_process().forget(*pool->context);
  delete pool;
}

void for_each_pool(const std::function<bool(vpmm_pool&)>& visit) {
  const MutexLock lock(open_pools().mutex);
  for (vpmm_pool* const pool : open_pools().list)
    if (!visit(*pool)) return;
}

Result<vpmm_pool*> process_pool(int device) {
  VPMM_TRY_ASSIGN(auto* const slot, slot_of(device));
  if (vpmm_pool* const open = slot->load(std::memory_order_acquire)) return open;
  const MutexLock lock(process_pools().opening);
  if (vpmm_pool* const open = slot->load(std::memory_order_acquire)) return open;
  VPMM_TRY_ASSIGN(const settings::Config config, settings::config_from_environment());
  return open_in(*slot, device, config);
}

Result<vpmm_pool*> process_pool(int device, const settings::Config& config) {
  VPMM_TRY_ASSIGN(auto* const slot, slot_of(device));
  const MutexLock lock(process_pools().opening);
  vpmm_pool* const open = slot->load(std::memory_order_acquire);
  if (open == nullptr) return open_in(*slot, device, config);
  VPMM_TRY(check_same(device, *open, config));
  return open;
}

}  // namespace vpmm::capi
