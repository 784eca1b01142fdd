// SPDX-License-Identifier: Apache-2.0
// driver/sim: host memory that the device may use: pinned by the driver, or registered by its
// owner.
#include <cstdlib>
#include <iterator>

#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kHostPage = 4 * kKiB;
constexpr Bytes kAddresses = Bytes{1} << 56;  // of a process, with room to spare
constexpr unsigned kAllocFlags =
    kHostMemoryPortable | kHostMemoryDeviceMap | kHostMemoryWriteCombined;
// CUDA's flags without a counterpart here: I/O memory, and memory that a device may only read.
constexpr unsigned kOtherRegisterFlags = 4 | 8;
constexpr unsigned kRegisterFlags = kHostMemoryPortable | kHostMemoryDeviceMap;

DevicePtr device_pointer(const void* host) {
  return DevicePtr{reinterpret_cast<std::uint64_t>(host)};
}

// Memory is pinned by whole pages.
AddressRange pages_of(AddressRange range) {
  const DevicePtr begin{round_down(to_integer(range.begin), kHostPage)};
  return {begin, align_up(range.end(), kHostPage) - begin};
}

}  // namespace

CuResult Machine::mem_host_alloc(Bytes size, unsigned flags, void*& host) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  if ((flags & ~kAllocFlags) != 0) return CuResult::invalid_value;
  if (size == 0) {  // seen on an H200; the address was not looked at
    host = nullptr;
    return CuResult::success;
  }
  void* const made = std::aligned_alloc(kHostPage, round_up(size, kHostPage));
  if (made == nullptr) return CuResult::out_of_memory;
  pinned_.emplace(device_pointer(made), PinnedMemory{size, PinnedMemory::HostOwner::driver});
  host = made;
  return CuResult::success;
}

CuResult Machine::mem_free_host(void* host) {
  const CuResult result = unpin(host, PinnedMemory::HostOwner::driver, CuResult::invalid_value);
  if (result == CuResult::success) std::free(host);
  return result;
}

CuResult Machine::mem_host_register(void* host, Bytes size, unsigned flags) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  const AddressRange range{device_pointer(host), size};
  if (host == nullptr || size == 0 || size > kAddresses) return CuResult::invalid_value;
  if ((flags & ~(kRegisterFlags | kOtherRegisterFlags)) != 0) return CuResult::invalid_value;
  if ((flags & kOtherRegisterFlags) != 0) return CuResult::not_supported;
  const AddressRange pages = pages_of(range);
  const auto after = pinned_.lower_bound(pages.end());
  if (after != pinned_.begin()) {
    const auto& [begin, memory] = *std::prev(after);
    if (pages_of({begin, memory.size}).overlaps(pages))
      return CuResult::host_memory_already_registered;
  }
  pinned_.emplace(range.begin, PinnedMemory{size, PinnedMemory::HostOwner::caller});
  return CuResult::success;
}

CuResult Machine::mem_host_unregister(void* host) {
  if (host == nullptr) return CuResult::invalid_value;
  return unpin(host, PinnedMemory::HostOwner::caller, CuResult::host_memory_not_registered);
}

CuResult Machine::unpin(void* host, PinnedMemory::HostOwner owner, CuResult if_missing) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  const auto found = pinned_.find(device_pointer(host));
  if (found == pinned_.end() || found->second.owner != owner) return if_missing;
  pinned_.erase(found);
  return CuResult::success;
}

CuResult Machine::mem_host_get_device_pointer(void* host, DevicePtr& ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (find_pinned({device_pointer(host), 1}).empty()) return CuResult::invalid_value;
  ptr = device_pointer(host);
  return CuResult::success;
}

AddressRange Machine::find_pinned(AddressRange inside) const {
  const auto after = pinned_.upper_bound(inside.begin);
  if (after == pinned_.begin()) return {};
  const auto& [begin, memory] = *std::prev(after);
  const AddressRange range{begin, memory.size};
  return range.contains(inside) ? range : AddressRange{};
}

}  // namespace vpmm::driver::sim
