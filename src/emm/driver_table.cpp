// SPDX-License-Identifier: Apache-2.0
// emm: slots of the driver's table: each passes the gate, makes the call, turns its result into a
// status.
#include "emm/driver_table.hpp"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "capi/call.hpp"
#include "context/open_driver.hpp"
#include "driver/driver_error.hpp"
#include "settings/config.hpp"

namespace vpmm::emm {
namespace {

using capi::to_device_ptr;
using capi::to_pointer;
using capi::WhenEnding;
using driver::Call;
using driver::CuResult;
using driver::Driver;

vpmm_cuda_context to_pointer(driver::ContextHandle context) {
  return reinterpret_cast<vpmm_cuda_context>(static_cast<std::uintptr_t>(context));
}
driver::ContextHandle to_context(vpmm_cuda_context context) {
  return driver::ContextHandle{reinterpret_cast<std::uintptr_t>(context)};
}

static_assert(sizeof(driver::IpcMemHandle) == sizeof(vpmm_emm_ipc_handle::token));

// `work` makes the call on the driver and returns its result.
template <typename Work>
vpmm_status call(const vpmm_emm_driver* table, Call which, Work&& work) noexcept {
  return capi::gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(Driver* const driver, static_cast<const DriverTable*>(table->self)->open());
    return driver::checked(which, work(*driver));
  });
}

// For calls with a pointer that must not be null.
template <typename Work>
vpmm_status call_with(const vpmm_emm_driver* table, Call which, const void* pointer,
                      const char* name, Work&& work) noexcept {
  if (pointer == nullptr)
    return capi::gated(WhenEnding::fail, [&] { return capi::require(pointer, name); });
  return call(table, which, std::forward<Work>(work));
}

vpmm_status max_pending_deallocs(const vpmm_emm_driver*, uint64_t* count, double* ratio) noexcept {
  return capi::gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(const settings::PendingLimits limits,
                    settings::pending_limits_from_environment());
    *count = limits.count;
    *ratio = limits.ratio;
    return {};
  });
}

vpmm_status ctx_get_current(const vpmm_emm_driver* table, vpmm_cuda_context* context) noexcept {
  return call(table, Call::ctx_get_current, [&](Driver& driver) {
    driver::ContextHandle current{};
    const CuResult result = driver.ctx_get_current(current);
    if (result == CuResult::success) *context = to_pointer(current);
    return result;
  });
}

vpmm_status ctx_set_current(const vpmm_emm_driver* table, vpmm_cuda_context context) noexcept {
  return call(table, Call::ctx_set_current,
              [&](Driver& driver) { return driver.ctx_set_current(to_context(context)); });
}

vpmm_status ctx_get_device(const vpmm_emm_driver* table, int* device) noexcept {
  return call(table, Call::ctx_get_device,
              [&](Driver& driver) { return driver.ctx_get_device(*device); });
}

vpmm_status ctx_synchronize(const vpmm_emm_driver* table) noexcept {
  return call(table, Call::ctx_synchronize,
              [](Driver& driver) { return driver.ctx_synchronize(); });
}

// Begins CUDA, as the first call of most managers and contexts.
vpmm_status device_primary_ctx_retain(const vpmm_emm_driver* table, int device,
                                      vpmm_cuda_context* context) noexcept {
  return capi::gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(Driver* const driver, static_cast<const DriverTable*>(table->self)->open());
    int count = 0;
    VPMM_TRY(checked(Call::init, driver->init()));
    VPMM_TRY(checked(Call::device_get_count, driver->device_get_count(count)));
    if (device < 0 || device >= count)
      return Error{ErrorCode::invalid_argument, "device " + std::to_string(device) +
                                                    " does not exist: there are " +
                                                    std::to_string(count)};
    driver::ContextHandle retained{};
    VPMM_TRY(checked(Call::device_primary_ctx_retain,
                     driver->device_primary_ctx_retain(device, retained)));
    *context = to_pointer(retained);
    return {};
  });
}

vpmm_status device_primary_ctx_release(const vpmm_emm_driver* table, int device) noexcept {
  return call(table, Call::device_primary_ctx_release,
              [&](Driver& driver) { return driver.device_primary_ctx_release(device); });
}

vpmm_status device_get_attribute(const vpmm_emm_driver* table, int attribute, int device,
                                 int* value) noexcept {
  return call(table, Call::device_get_attribute, [&](Driver& driver) {
    return driver.device_get_attribute(static_cast<driver::DeviceAttribute>(attribute), device,
                                       *value);
  });
}

vpmm_status device_get_uuid(const vpmm_emm_driver* table, int device,
                            unsigned char uuid[16]) noexcept {
  return call(table, Call::device_get_uuid, [&](Driver& driver) {
    driver::Uuid found{};
    const CuResult result = driver.device_get_uuid(device, found);
    if (result == CuResult::success) std::memcpy(uuid, found.data(), found.size());
    return result;
  });
}

vpmm_status mem_get_info(const vpmm_emm_driver* table, uint64_t* free_bytes,
                         uint64_t* total_bytes) noexcept {
  return call(table, Call::mem_get_info, [&](Driver& driver) {
    driver::MemInfo info;
    const CuResult result = driver.mem_get_info(info);
    if (result != CuResult::success) return result;
    *free_bytes = info.free;
    *total_bytes = info.total;
    return result;
  });
}

template <typename Allocate>
vpmm_status allocate(const vpmm_emm_driver* table, Call which, void** ptr,
                     Allocate&& allocate_it) noexcept {
  return call(table, which, [&](Driver& driver) {
    DevicePtr begin{};
    const CuResult result = allocate_it(driver, begin);
    if (result == CuResult::success) *ptr = to_pointer(begin);
    return result;
  });
}

vpmm_status mem_alloc(const vpmm_emm_driver* table, size_t bytes, void** ptr) noexcept {
  return allocate(table, Call::mem_alloc, ptr,
                  [&](Driver& driver, DevicePtr& begin) { return driver.mem_alloc(bytes, begin); });
}

vpmm_status mem_alloc_managed(const vpmm_emm_driver* table, size_t bytes, unsigned flags,
                              void** ptr) noexcept {
  return allocate(table, Call::mem_alloc_managed, ptr, [&](Driver& driver, DevicePtr& begin) {
    return driver.mem_alloc_managed(bytes, flags, begin);
  });
}

vpmm_status mem_free(const vpmm_emm_driver* table, void* ptr) noexcept {
  return call(table, Call::mem_free,
              [&](Driver& driver) { return driver.mem_free(to_device_ptr(ptr)); });
}

vpmm_status mem_host_alloc(const vpmm_emm_driver* table, size_t bytes, unsigned flags,
                           void** ptr) noexcept {
  return call(table, Call::mem_host_alloc,
              [&](Driver& driver) { return driver.mem_host_alloc(bytes, flags, *ptr); });
}

vpmm_status mem_free_host(const vpmm_emm_driver* table, void* ptr) noexcept {
  return call(table, Call::mem_free_host,
              [&](Driver& driver) { return driver.mem_free_host(ptr); });
}

vpmm_status mem_host_register(const vpmm_emm_driver* table, void* ptr, size_t bytes,
                              unsigned flags) noexcept {
  return call_with(table, Call::mem_host_register, ptr, "ptr",
                   [&](Driver& driver) { return driver.mem_host_register(ptr, bytes, flags); });
}

vpmm_status mem_host_unregister(const vpmm_emm_driver* table, void* ptr) noexcept {
  return call(table, Call::mem_host_unregister,
              [&](Driver& driver) { return driver.mem_host_unregister(ptr); });
}

vpmm_status mem_host_get_device_pointer(const vpmm_emm_driver* table, void* ptr,
                                        void** device_pointer) noexcept {
  return allocate(table, Call::mem_host_get_device_pointer, device_pointer,
                  [&](Driver& driver, DevicePtr& seen) {
                    return driver.mem_host_get_device_pointer(ptr, seen);
                  });
}

vpmm_status mem_get_address_range(const vpmm_emm_driver* table, const void* ptr, void** begin,
                                  size_t* bytes) noexcept {
  return call(table, Call::mem_get_address_range, [&](Driver& driver) {
    AddressRange range;
    const CuResult result = driver.mem_get_address_range(to_device_ptr(ptr), range);
    if (result != CuResult::success) return result;
    *begin = to_pointer(range.begin);
    *bytes = range.size;
    return result;
  });
}

vpmm_status memcpy_host_to_device(const vpmm_emm_driver* table, void* to, const void* from,
                                  size_t bytes) noexcept {
  return call_with(table, Call::memcpy_host_to_device, from, "from", [&](Driver& driver) {
    return driver.memcpy_host_to_device(to_device_ptr(to), from, bytes);
  });
}

vpmm_status memcpy_device_to_host(const vpmm_emm_driver* table, void* to, const void* from,
                                  size_t bytes) noexcept {
  return call_with(table, Call::memcpy_device_to_host, to, "to", [&](Driver& driver) {
    return driver.memcpy_device_to_host(to, to_device_ptr(from), bytes);
  });
}

vpmm_status ipc_get_mem_handle(const vpmm_emm_driver* table, const void* ptr,
                               unsigned char token[64]) noexcept {
  return call(table, Call::ipc_get_mem_handle, [&](Driver& driver) {
    driver::IpcMemHandle handle{};
    const CuResult result = driver.ipc_get_mem_handle(to_device_ptr(ptr), handle);
    if (result == CuResult::success) std::memcpy(token, handle.data(), handle.size());
    return result;
  });
}

vpmm_status ipc_open_mem_handle(const vpmm_emm_driver* table, const unsigned char token[64],
                                void** ptr) noexcept {
  driver::IpcMemHandle handle{};
  std::memcpy(handle.data(), token, handle.size());
  return allocate(table, Call::ipc_open_mem_handle, ptr, [&](Driver& driver, DevicePtr& begin) {
    return driver.ipc_open_mem_handle(handle, begin);
  });
}

vpmm_status ipc_close_mem_handle(const vpmm_emm_driver* table, void* ptr) noexcept {
  return call(table, Call::ipc_close_mem_handle,
              [&](Driver& driver) { return driver.ipc_close_mem_handle(to_device_ptr(ptr)); });
}

}  // namespace

DriverTable::DriverTable(Open how_to_open, void* argument)
    : table_{sizeof(vpmm_emm_driver),
             this,
             [](const vpmm_emm_driver*) { return vpmm_last_error(); },
             [](const vpmm_emm_driver*) { return process::is_ending() ? 1 : 0; },
             max_pending_deallocs,
             ctx_get_current,
             ctx_set_current,
             ctx_get_device,
             ctx_synchronize,
             device_primary_ctx_retain,
             device_primary_ctx_release,
             device_get_attribute,
             device_get_uuid,
             mem_get_info,
             mem_alloc,
             mem_alloc_managed,
             mem_free,
             mem_host_alloc,
             mem_free_host,
             mem_host_register,
             mem_host_unregister,
             mem_host_get_device_pointer,
             mem_get_address_range,
             memcpy_host_to_device,
             memcpy_device_to_host,
             ipc_get_mem_handle,
             ipc_open_mem_handle,
             ipc_close_mem_handle},
      open_(how_to_open),
      argument_(argument) {}

}  // namespace vpmm::emm

namespace {

// Opens the process's driver, as named by the environment, and keeps it: VPMM_DRIVER is read when
// CUDA is first needed.
vpmm::Result<vpmm::driver::Driver*> open_process_driver(void*) {
  static std::atomic<vpmm::driver::Driver*> known{nullptr};
  if (vpmm::driver::Driver* const driver = known.load(std::memory_order_acquire)) return driver;
  VPMM_TRY_ASSIGN(const vpmm::settings::Config config, vpmm::settings::config_from_environment());
  VPMM_TRY_ASSIGN(vpmm::driver::Driver* const driver, vpmm::context::process_driver(config.driver));
  VPMM_TRY(vpmm::driver::checked(vpmm::driver::Call::init, driver->init()));
  known.store(driver, std::memory_order_release);
  return driver;
}

}  // namespace

vpmm_status vpmm_emm_process_driver(const vpmm_emm_driver** driver) {
  return vpmm::capi::guarded([&]() -> vpmm::Result<void> {
    VPMM_TRY(vpmm::capi::require(driver, "driver"));
    static const auto* const table =
        new vpmm::emm::DriverTable(open_process_driver, nullptr);  // outlives statics
    *driver = table->table();
    return {};
  });
}
