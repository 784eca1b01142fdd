// SPDX-License-Identifier: Apache-2.0
// context: memory for other processes and other GPUs.
#include "context/sharing.hpp"

#include <new>
#include <string_view>

#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::context {

Result<SharedRange> Sharing::share(AddressRange range) {
  const PoolLock lock(parts_.mutex);
  VPMM_TRY_ASSIGN(const AllocationInfo around, parts_.allocations.query(range.begin));
  if (device_.primary.poison()) return *device_.primary.poison();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return parts_.shares.share(around, range);
}

Result<SharedChunks> Sharing::lease(ShareId id, Bytes offset, Bytes size) {
  const PoolLock lock(parts_.mutex);
  if (device_.primary.poison()) return *device_.primary.poison();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return parts_.shares.lease(id, offset, size);
}

void Sharing::end_lease(ShareId id, Holder holder) {
  const HostPromise promise;
  if (!promise.is_kept()) throw std::bad_alloc();
  const PoolLock lock(parts_.mutex);
  // The holder names no stream, so the free waits for all work queued so far.
  if (const auto freed = parts_.shares.end_lease(id, holder)) parts_.allocations.free_kept(*freed);
}

Result<void> Sharing::set_peer_access(driver::DeviceOrdinal peer) {
  if (peer == device_.primary.device()) return {};
  const Result<bool> can_access = parts_.peers.can_access(peer);
  if (!can_access)
    return can_access.error().code == ErrorCode::invalid_argument
               ? parts_.mistake(can_access.error())
               : can_access.error();
  const auto unsupported = [&](std::string_view why) {
    return Error{ErrorCode::unsupported, message_of("device {} cannot use memory of device {}: {}",
                                                    peer, device_.primary.device(), why)};
  };
  if (!can_access.value()) return unsupported("the driver reports no peer access between them");
  if (device_.pool == nullptr)
    return unsupported(device_.config.pool_enabled
                           ? "the latter does not support virtual memory management"
                           : "VPMM_PAGE_SIZE switches the virtual memory pool off");
  if (device_.driver_pool != nullptr)
    return unsupported(
        device_.config.small == settings::SmallRequests::stream_ordered
            ? "VPMM_SMALL=stream_ordered takes requests below a page from the driver's own pool"
            : "with this VPMM_PAGE_SIZE requests below a page come from the driver's own pool");
  if (device_.guard != nullptr) return unsupported("VPMM_GUARD is on");
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  VPMM_TRY(device_.primary.noted(device_.pool->set_peer_access(visit.lock(), peer)));
  parts_.peers.add(peer);
  return {};
}

}  // namespace vpmm::context
