// SPDX-License-Identifier: Apache-2.0
// ipc: staged copies: opened on the source's device, copied, synchronised, closed.
#include "ipc/staged.hpp"

#include <algorithm>
#include <exception>

#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::ContextHandle;
using driver::DeviceOrdinal;
using driver::Driver;

namespace {

constexpr Bytes kBounce = 16 * kMiB;  // of page-locked host memory

// Runs `work` with the device's primary context current, on a stream of its own, so that only the
// copy is waited for.
template <typename Work>
Result<void> on_stream_of(Driver& driver, DeviceOrdinal device, Work&& work) {
  ContextHandle context{};
  VPMM_TRY(
      checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(device, context)));
  const ScopeExit release([&] { driver.device_primary_ctx_release(device); });
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  driver::StreamHandle stream{};
  VPMM_TRY(checked(Call::stream_create,
                   driver.stream_create(driver::StreamFlags::non_blocking, stream)));
  const ScopeExit destroy([&] { driver.stream_destroy(stream); });
  VPMM_TRY(work(stream));
  return checked(Call::stream_synchronize, driver.stream_synchronize(stream));
}

Result<void> copy_on_device(Driver& driver, DeviceOrdinal device, DevicePtr to, DevicePtr from,
                            Bytes size) {
  return on_stream_of(driver, device, [&](driver::StreamHandle stream) {
    return checked(Call::memcpy_device_to_device_async,
                   driver.memcpy_device_to_device_async(to, from, size, stream));
  });
}

Result<void> copy_through_host(Driver& driver, DeviceOrdinal target, DevicePtr to,
                               DeviceOrdinal source, DevicePtr from, Bytes size) {
  const Bytes piece = std::min(size, kBounce);
  void* host = nullptr;
  const ScopeExit free([&] {
    if (host != nullptr) driver.mem_free_host(host);
  });
  for (Bytes done = 0; done < size; done += piece) {
    const Bytes now = std::min(piece, size - done);
    Result<void> copied =
        on_stream_of(driver, source, [&](driver::StreamHandle stream) -> Result<void> {
          if (host == nullptr)
            VPMM_TRY(checked(Call::mem_host_alloc,
                             driver.mem_host_alloc(piece, driver::kHostMemoryPortable, host)));
          return checked(Call::memcpy_device_to_host_async,
                         driver.memcpy_device_to_host_async(host, from + done, now, stream));
        });
    if (copied)
      copied = on_stream_of(driver, target, [&](driver::StreamHandle stream) {
        return checked(Call::memcpy_host_to_device_async,
                       driver.memcpy_host_to_device_async(to + done, host, now, stream));
      });
    if (!copied) return copied;
  }
  return {};
}

}  // namespace

Result<DevicePtr> open_staged(context::Context& target, const IpcHandle& handle, const Wait& wait) {
  Driver& driver = target.driver();
  Importer& importer = Importer::of_process();
  if (handle.device == driver::Uuid{})
    return Error{ErrorCode::invalid_argument,
                 "an IPC handle that is copied must name the device it is on"};
  Bytes size = handle.size;
  if (size == 0) {
    VPMM_TRY_ASSIGN(const Token token, decode(handle.token));
    size = token.size;
  }
  VPMM_TRY_ASSIGN(const DeviceOrdinal home, device_with(driver, handle.device));
  bool can_reach = home == target.device();
  if (!can_reach)
    VPMM_TRY(checked(Call::device_can_access_peer,
                     driver.device_can_access_peer(target.device(), home, can_reach)));
  const DeviceOrdinal reader = can_reach ? target.device() : home;
  VPMM_TRY_ASSIGN(const DevicePtr source, importer.open(driver, handle, reader));
  const ScopeExit close([&] { importer.close_some_time(source, wait); });
  VPMM_TRY_ASSIGN(const DevicePtr copy, target.allocate({size, 0, std::nullopt}));
  // Returns the error of the copy, not of the release.
  ScopeExit give_back([&] {
    target.deallocate_deferred(copy);  // needs no memory
  });
  // Captures of other streams do not concern these copies.
  const driver::RelaxedCaptureScope relaxed(driver);
  Result<void> copied = can_reach
                            ? copy_on_device(driver, reader, copy, source, size)
                            : copy_through_host(driver, target.device(), copy, home, source, size);
  VPMM_TRY(std::move(copied));
  give_back.dismiss();
  return copy;
}

}  // namespace vpmm::ipc
