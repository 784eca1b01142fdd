// ipc: staged copies: opened where the memory is, copied, synchronised, closed.
#include "ipc/staged.hpp"

#include <algorithm>

#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/importer.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::ContextHandle;
using driver::DeviceOrdinal;
using driver::Driver;

namespace {

constexpr Bytes kBounce = 16 * kMiB;  // of page-locked host memory

// A device's primary context, current while the function runs.
template <typename Work>
Result<void> with_context_of(Driver& driver, DeviceOrdinal device, Work&& work) {
  ContextHandle context{};
  VPMM_TRY(checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(device, context)));
  const ScopeExit release([&] { driver.device_primary_ctx_release(device); });
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  return work();
}

// On a stream of its own, so that nothing but the copy is waited for.
Result<void> copy_on_device(Driver& driver, DeviceOrdinal device, DevicePtr to, DevicePtr from, Bytes size) {
  return with_context_of(driver, device, [&]() -> Result<void> {
    driver::StreamHandle stream{};
    VPMM_TRY(checked(Call::stream_create, driver.stream_create(driver::StreamFlags::non_blocking, stream)));
    const ScopeExit destroy([&] { driver.stream_destroy(stream); });
    VPMM_TRY(
        checked(Call::memcpy_device_to_device_async, driver.memcpy_device_to_device_async(to, from, size, stream)));
    return checked(Call::stream_synchronize, driver.stream_synchronize(stream));
  });
}

Result<void> copy_through_host(Driver& driver, DeviceOrdinal target, DevicePtr to, DeviceOrdinal source, DevicePtr from,
                               Bytes size) {
  const Bytes piece = std::min(size, kBounce);
  return with_context_of(driver, source, [&]() -> Result<void> {
    void* host = nullptr;
    VPMM_TRY(checked(Call::mem_host_alloc, driver.mem_host_alloc(piece, driver::kHostMemoryPortable, host)));
    const ScopeExit free([&] { driver.mem_free_host(host); });
    for (Bytes done = 0; done < size; done += piece) {
      const Bytes now = std::min(piece, size - done);
      VPMM_TRY(checked(Call::memcpy_device_to_host, driver.memcpy_device_to_host(host, from + done, now)));
      VPMM_TRY(with_context_of(driver, target, [&] {
        return checked(Call::memcpy_host_to_device, driver.memcpy_host_to_device(to + done, host, now));
      }));
    }
    return {};
  });
}

}  // namespace

Result<DevicePtr> open_staged(context::Context& target, const IpcHandle& handle) {
  Driver& driver = target.driver();
  Importer& importer = Importer::of_process();
  if (handle.device == driver::Uuid{})
    return Error{ErrorCode::invalid_argument, "an IPC handle that is copied must name the device it is on"};
  VPMM_TRY_ASSIGN(const DeviceOrdinal home, device_with(driver, handle.device));
  bool can_reach = home == target.device();
  if (!can_reach)
    VPMM_TRY(checked(Call::device_can_access_peer, driver.device_can_access_peer(target.device(), home, can_reach)));
  const DeviceOrdinal reader = can_reach ? target.device() : home;
  VPMM_TRY_ASSIGN(const DevicePtr source, importer.open(driver, handle, reader));
  Result<DevicePtr> copy = target.allocate({handle.size, 0, std::nullopt});
  Result<void> copied = copy ? Result<void>() : Result<void>(copy.error());
  if (copied)
    copied = can_reach ? copy_on_device(driver, reader, copy.value(), source, handle.size)
                       : copy_through_host(driver, target.device(), copy.value(), home, source, handle.size);
  Result<void> closed = importer.close(source);
  if (copied && closed) return copy;
  if (copy) static_cast<void>(target.deallocate(copy.value(), std::nullopt));
  return std::move(copied ? closed.error() : copied.error());
}

}  // namespace vpmm::ipc
