// SPDX-License-Identifier: Apache-2.0
// capi: memory in other processes.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "capi/call.hpp"
#include "capi/pool.hpp"
#include "context/open_driver.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/exporter.hpp"
#include "ipc/importer.hpp"
#include "ipc/staged.hpp"
#include "settings/config.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace {

static_assert(sizeof(ipc::TokenBytes) == sizeof(vpmm_ipc_handle::token));
static_assert(sizeof(driver::Uuid) == sizeof(vpmm_ipc_handle::device_uuid));

vpmm_ipc_handle to_struct(const ipc::IpcHandle& handle) {
  vpmm_ipc_handle out{};
  out.kind = static_cast<std::uint32_t>(handle.kind);
  std::memcpy(out.token, handle.token.data(), sizeof out.token);
  out.bytes = handle.size;
  out.offset = handle.offset;
  std::copy(handle.device.begin(), handle.device.end(), out.device_uuid);
  return out;
}

Result<ipc::IpcHandle> from_struct(const vpmm_ipc_handle* handle) {
  VPMM_TRY(require(handle, "handle"));
  if (handle->kind != VPMM_IPC_LEGACY && handle->kind != VPMM_IPC_POOL)
    return Error{
        ErrorCode::invalid_argument,
        "the IPC handle is of kind " + std::to_string(handle->kind) + ", which there is not"};
  ipc::IpcHandle in;
  in.kind = static_cast<ipc::TokenKind>(handle->kind);
  std::memcpy(in.token.data(), handle->token, sizeof handle->token);
  in.size = handle->bytes;
  in.offset = handle->offset;
  std::copy_n(handle->device_uuid, in.device.size(), in.device.begin());
  return in;
}

Result<driver::Driver*> driver_of_process() {
  VPMM_TRY_ASSIGN(const settings::Config config, settings::config_from_environment());
  return context::process_driver(config.driver);
}

// Spares captures announced to, or seen by, a pool of the device: fails instead of breaking them.
Result<void> wait_for_work(driver::Driver& driver, driver::DeviceOrdinal device) {
  Context* lasting = nullptr;
  bool is_capturing = false;
  for_each_pool([&](vpmm_pool& pool) {
    if (pool.context->device() != device) return true;
    if (pool.ownership == PoolLifetime::process_wide) lasting = pool.context.get();
    is_capturing = pool.context->streams().is_capturing();
    return !is_capturing;
  });
  if (is_capturing) return Error{ErrorCode::capture_active, "a stream is being captured"};
  return lasting != nullptr ? lasting->streams().wait_for_work()
                            : ipc::wait_for_primary(driver, device);
}

// Keeps the calling thread's context if it is on the device of the memory; else uses the primary
// one.
Result<ipc::IpcHandle> export_from(driver::Driver& driver, driver::DeviceOrdinal device,
                                   AddressRange range) {
  using driver::Call;
  using driver::checked;
  const auto foreign = [&](Call call, driver::CuResult result) {
    return Error{
        ErrorCode::invalid_pointer,
        message_of(
            "{:#x} is neither memory of a pool nor plain memory of the driver, which alone can be "
            "shared: {}",
            to_integer(range.begin), driver::driver_error(call, result).message)};
  };
  AddressRange allocation;
  driver::CuResult result = driver.mem_get_address_range(range.begin, allocation);
  if (result != driver::CuResult::success) return foreign(Call::mem_get_address_range, result);
  ipc::IpcHandle handle;
  handle.kind = ipc::TokenKind::legacy;
  handle.size = range.size;
  handle.offset = range.begin - allocation.begin;
  result = driver.ipc_get_mem_handle(allocation.begin, handle.token);
  if (result != driver::CuResult::success) return foreign(Call::ipc_get_mem_handle, result);
  if (range.size == 0 || range.size > allocation.end() - range.begin)
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at {:#x} are not inside the allocation of {} bytes at {:#x}",
                            range.size, to_integer(range.begin), allocation.size,
                            to_integer(allocation.begin))};
  VPMM_TRY(checked(Call::device_get_uuid, driver.device_get_uuid(device, handle.device)));
  return handle;
}

// Exports memory outside all pools: CUDA's own IPC shares memory of cuMemAlloc.
Result<ipc::IpcHandle> export_legacy(AddressRange range) {
  using driver::Call;
  using driver::checked;
  VPMM_TRY_ASSIGN(driver::Driver* const driver, driver_of_process());
  VPMM_TRY(checked(Call::init, driver->init()));
  driver::DeviceOrdinal device = 0;
  const driver::CuResult known = driver->pointer_get_device(range.begin, device);
  if (known != driver::CuResult::success)
    return Error{ErrorCode::invalid_pointer,
                 message_of("{:#x} is neither memory of a pool nor of the driver: {}",
                            to_integer(range.begin),
                            driver::driver_error(Call::pointer_get_device, known).message)};
  driver::DeviceOrdinal current = 0;
  if (driver->ctx_get_device(current) == driver::CuResult::success && current == device)
    return export_from(*driver, device, range);
  driver::ContextHandle context{};
  VPMM_TRY(
      checked(Call::device_primary_ctx_retain, driver->device_primary_ctx_retain(device, context)));
  const ScopeExit release([&] { driver->device_primary_ctx_release(device); });
  const driver::ContextScope scope(*driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  return export_from(*driver, device, range);
}

Result<ipc::IpcHandle> export_memory(AddressRange range) {
  Context* owner = nullptr;
  for_each_pool([&](vpmm_pool& pool) {
    if (pool.context->query(range.begin)) owner = pool.context.get();
    return owner == nullptr;
  });
  return owner != nullptr ? ipc::Exporter::of_process().share(*owner, range) : export_legacy(range);
}

}  // namespace

vpmm_status vpmm_ipc_export(const void* ptr, size_t bytes, vpmm_ipc_handle* handle) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY(require(handle, "handle"));
    VPMM_TRY_ASSIGN(const ipc::IpcHandle shared, export_memory({to_device_ptr(ptr), bytes}));
    *handle = to_struct(shared);
    return {};
  });
}

vpmm_status vpmm_ipc_export_end(const vpmm_ipc_handle* handle) {
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(const ipc::IpcHandle shared, from_struct(handle));
    if (shared.kind == ipc::TokenKind::legacy) return {};  // no share was begun
    VPMM_TRY_ASSIGN(const ipc::Token token, ipc::decode(shared.token));
    return ipc::Exporter::of_process().end(token);
  });
}

vpmm_status vpmm_ipc_open(const vpmm_ipc_handle* handle, int device, void** ptr) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const ipc::IpcHandle shared, from_struct(handle));
    VPMM_TRY_ASSIGN(driver::Driver* const driver, driver_of_process());
    const auto wanted = device == -1 ? std::nullopt : std::optional(device);
    VPMM_TRY_ASSIGN(const DevicePtr opened,
                    ipc::Importer::of_process().open(*driver, shared, wanted));
    *ptr = to_pointer(opened);
    return {};
  });
}

vpmm_status vpmm_ipc_open_staged(const vpmm_ipc_handle* handle, vpmm_pool* pool, void** ptr) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const ipc::IpcHandle shared, from_struct(handle));
    VPMM_TRY_ASSIGN(const DevicePtr copy, ipc::open_staged(context, shared, wait_for_work));
    *ptr = to_pointer(copy);
    return {};
  });
}

// At process end open memory is left to the system, which tells the exporter.
vpmm_status vpmm_ipc_close(void* ptr) {
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    return ipc::Importer::of_process().close(to_device_ptr(ptr), wait_for_work);
  });
}

void vpmm_ipc_close_deferred(void* ptr) {
  static_cast<void>(gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    ipc::Importer::of_process().close_some_time(to_device_ptr(ptr), wait_for_work);
    return {};
  }));
}

vpmm_status vpmm_ipc_read_token(const unsigned char token[64], vpmm_ipc_handle* handle) {
  return guarded([&]() -> Result<void> {
    VPMM_TRY(require(token, "token"));
    VPMM_TRY(require(handle, "handle"));
    ipc::IpcHandle read;
    std::memcpy(read.token.data(), token, sizeof read.token);
    VPMM_TRY_ASSIGN(const ipc::Token parts, ipc::decode(read.token));
    read.size = parts.size;
    read.offset = parts.offset;
    *handle = to_struct(read);
    return {};
  });
}
