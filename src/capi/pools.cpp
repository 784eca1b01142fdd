// SPDX-License-Identifier: Apache-2.0
// capi: opens and destroys pools; limits, captures and synchronisation of a whole pool.
#include "base/message.hpp"
#include "capi/call.hpp"
#include "capi/callback.hpp"
#include "capi/pool.hpp"
#include "capi/settings.hpp"
#include "context/open_driver.hpp"
#include "driver/driver_error.hpp"
#include "settings/config.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;
using driver::Call;
using driver::checked;

namespace {

constexpr LimitWords kCapacity{"capacity", 1,
                               "VPMM_SHARE_OF_GPU of 1 to 100, or UINT64_MAX for no limit"};

Result<int> count_devices() {
  VPMM_TRY_ASSIGN(const settings::Config config, settings::config_from_environment());
  VPMM_TRY_ASSIGN(driver::Driver* const driver, context::process_driver(config.driver));
  int count = 0;
  VPMM_TRY(checked(Call::init, driver->init()));
  VPMM_TRY(checked(Call::device_get_count, driver->device_get_count(count)));
  return count;
}

Result<void> create_private_pool(int device, const vpmm_config* settings, vpmm_pool** pool) {
  VPMM_TRY(require(pool, "pool"));
  VPMM_TRY_ASSIGN(const auto config,
                  settings != nullptr ? to_config(settings) : settings::config_from_environment());
  VPMM_TRY_ASSIGN(*pool, open_pool(device, config, PoolLifetime::of_the_caller));
  return {};
}

context::OutOfMemoryCallback asking(vpmm_out_of_memory_callback callback, void* argument) {
  return [callback, argument](const context::OutOfMemory& event) {
    return run_callback([&] { return callback(argument, event.device, event.requested); }) != 0;
  };
}

}  // namespace

vpmm_status vpmm_device_count(int* count) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(count, "count"));
    VPMM_TRY_ASSIGN(*count, count_devices());
    return {};
  });
}

vpmm_status vpmm_default_pool(int device, vpmm_pool** pool) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(pool, "pool"));
    VPMM_TRY_ASSIGN(*pool, process_pool(device));
    return {};
  });
}

vpmm_status vpmm_default_pool_open(int device, const vpmm_config* config, vpmm_pool** pool) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(pool, "pool"));
    VPMM_TRY_ASSIGN(const auto settings, to_config(config));
    VPMM_TRY_ASSIGN(*pool, process_pool(device, settings));
    return {};
  });
}

vpmm_status vpmm_pool_create(int device, const vpmm_config* config, vpmm_pool** pool) {
  return gated(WhenEnding::fail, [&] { return create_private_pool(device, config, pool); });
}

// At process end the pool is left as it is: giving its memory back would need CUDA.
vpmm_status vpmm_pool_destroy(vpmm_pool* pool) {
  if (pool == nullptr) return VPMM_OK;
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    if (pool->ownership == PoolLifetime::process_wide) {
      return Error{ErrorCode::invalid_argument,
                   "the process-wide pool of a device is never destroyed"};
    }
    close_pool(pool);
    return {};
  });
}

vpmm_status vpmm_capture_begin(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) { return context.streams().capture_begin(); });
}

vpmm_status vpmm_capture_end(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) { return context.streams().capture_end(); });
}

vpmm_status vpmm_capture_release(vpmm_pool* pool, uint64_t capture_id) {
  return with_pool(
      pool,
      [&](Context& context) {
        return context.streams().capture_release(driver::CaptureId{capture_id});
      },
      WhenEnding::do_nothing);
}

vpmm_status vpmm_defer_cleanup_begin(vpmm_pool* pool) {
  return with_pool(
      pool,
      [](Context& context) -> Result<void> {
        context.limits().defer_cleanup_begin();
        return {};
      },
      WhenEnding::do_nothing);
}

vpmm_status vpmm_defer_cleanup_end(vpmm_pool* pool) {
  return with_pool(
      pool, [](Context& context) { return context.limits().defer_cleanup_end(); },
      WhenEnding::do_nothing);
}

vpmm_status vpmm_trim(vpmm_pool* pool, size_t bytes_to_keep, size_t* bytes_released) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const Bytes released, context.limits().trim(bytes_to_keep));
    if (bytes_released != nullptr) *bytes_released = released;
    return {};
  });
}

vpmm_status vpmm_preallocate(vpmm_pool* pool, size_t bytes) {
  return with_pool(pool, [&](Context& context) { return context.limits().preallocate(bytes); });
}

vpmm_status vpmm_set_capacity(vpmm_pool* pool, uint64_t bytes) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const auto limit, to_limit(bytes, kCapacity));
    if (limit && limit->percent != 0) return context.limits().set_share_of_gpu(limit->percent);
    context.limits().set_capacity(limit ? std::optional<Bytes>(limit->bytes) : std::nullopt);
    return {};
  });
}

vpmm_status vpmm_get_capacity(vpmm_pool* pool, uint64_t* bytes) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(bytes, "bytes"));
    *bytes = context.limits().capacity().value_or(UINT64_MAX);
    return {};
  });
}

vpmm_status vpmm_set_peer_access(vpmm_pool* pool, int device) {
  return with_pool(pool,
                   [&](Context& context) { return context.sharing().set_peer_access(device); });
}

vpmm_status vpmm_set_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
                                            void* argument) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    context.limits().out_of_memory_callbacks().set(
        callback != nullptr ? asking(callback, argument) : context::OutOfMemoryCallback());
    return {};
  });
}

vpmm_status vpmm_add_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
                                            void* argument, uint64_t* id) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(reinterpret_cast<const void*>(callback), "callback"));
    VPMM_TRY(require(id, "id"));
    *id = context.limits().out_of_memory_callbacks().add(asking(callback, argument));
    return {};
  });
}

vpmm_status vpmm_remove_out_of_memory_callback(vpmm_pool* pool, uint64_t id) {
  return with_pool(
      pool, [&](Context& context) { return context.limits().remove_out_of_memory_callback(id); },
      WhenEnding::do_nothing);
}

vpmm_status vpmm_synchronize(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) { return context.streams().synchronize(); });
}

vpmm_status vpmm_reset(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) { return context.streams().reset(); });
}
