// SPDX-License-Identifier: Apache-2.0
// vm: mapping with undo, and the retry of NOT_READY.
#include "vm/mapper.hpp"

#include <algorithm>
#include <thread>

#include "base/host_memory.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::vm {

using driver::Call;
using driver::CuResult;

namespace {
constexpr int kAttempts = 100;
}

Mapper::Mapper(driver::Driver& driver, const driver::ChunkProperties& properties)
    : driver_(driver), properties_(properties), access_{{properties.device}} {}

// Note [NOT_READY is retried]
// cuMemMap and cuMemSetAccess may answer NOT_READY on a busy GPU; the error is not sticky and goes
// away.
template <typename F>
CuResult Mapper::retried(F call) {
  CuResult result = call();
  for (int attempt = 1; result == CuResult::not_ready && attempt < kAttempts; ++attempt) {
    std::this_thread::yield();
    result = call();
  }
  return result;
}

Result<AddressRange> Mapper::reserve(Bytes size, Bytes alignment) {
  DevicePtr begin{};
  const CuResult result =
      retried([&] { return driver_.mem_address_reserve(size, alignment, DevicePtr{}, begin); });
  VPMM_TRY(driver::checked(Call::mem_address_reserve, result));
  return AddressRange{begin, size};
}

Result<void> Mapper::free_reservation(AddressRange reservation) {
  return driver::checked(Call::mem_address_free,
                         retried([&] { return driver_.mem_address_free(reservation); }));
}

// Note [Optional chunk properties are given up one by one]
// A device may claim sharing or RDMA of chunks, and then not permit it (containers, missing
// modules). Memory without the extra is better than none.
Result<driver::ChunkHandle> Mapper::create(Bytes size) {
  const MutexLock lock(mapping_);
  for (;;) {
    driver::ChunkHandle chunk{};
    const driver::ChunkProperties properties = properties_;
    const CuResult result = retried([&] { return driver_.mem_create(size, properties, chunk); });
    if (result == CuResult::success) return chunk;
    const bool is_refused = result == CuResult::not_permitted || result == CuResult::not_supported;
    if (is_refused && properties_.gpu_direct_rdma_capable)
      properties_.gpu_direct_rdma_capable = false;
    else if (is_refused && properties_.posix_file_descriptor)
      properties_.posix_file_descriptor = false;
    else
      return driver::driver_error(Call::mem_create, result);
  }
}

bool Mapper::can_export() {
  const MutexLock lock(mapping_);
  return properties_.posix_file_descriptor;
}

Result<void> Mapper::release(driver::ChunkHandle chunk) {
  const MutexLock lock(mapping_);
  return driver::checked(Call::mem_release, retried([&] { return driver_.mem_release(chunk); }));
}

Vector<Placement> Mapper::undo(const Vector<Placement>& placements, std::size_t mapped) {
  Vector<Placement> stuck;
  for (std::size_t i = mapped; i-- > 0;)
    if (retried([&] { return driver_.mem_unmap(placements[i].range); }) != CuResult::success)
      stuck.push_back(placements[i]);
  return stuck;
}

MapOutcome Mapper::map_run(AddressRange whole, const Vector<Placement>& placements) {
  const MutexLock lock(mapping_);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const CuResult result =
        retried([&] { return driver_.mem_map(placements[i].range, 0, placements[i].handle); });
    if (result != CuResult::success)
      return {driver::driver_error(Call::mem_map, result), undo(placements, i)};
  }
  return set_access_or_undo(whole, placements);
}

MapOutcome Mapper::catch_up(AddressRange whole, const Vector<Placement>& placements) {
  const MutexLock lock(mapping_);
  return set_access_or_undo(whole, placements);
}

MapOutcome Mapper::set_access_or_undo(AddressRange whole, const Vector<Placement>& placements) {
  const std::span<const driver::AccessDescriptor> access = access_;
  const CuResult result = retried([&] { return driver_.mem_set_access(whole, access); });
  if (result != CuResult::success)
    return {driver::driver_error(Call::mem_set_access, result),
            undo(placements, placements.size())};
  return {std::nullopt, {}, access_version_.load()};
}

void Mapper::add_device(driver::DeviceOrdinal device) {
  const MutexLock lock(mapping_);
  access_.push_back({device});
  ++access_version_;
}

void Mapper::remove_device(driver::DeviceOrdinal device) {
  const MutexLock lock(mapping_);
  std::erase_if(access_,
                [&](const driver::AccessDescriptor& access) { return access.device == device; });
}

Result<void> Mapper::set_access(AddressRange range, driver::DeviceOrdinal device) {
  const MutexLock lock(mapping_);
  const driver::AccessDescriptor access{device};
  return driver::checked(Call::mem_set_access, retried([&] {
                           return driver_.mem_set_access(range, {&access, 1});
                         }));
}

Result<void> Mapper::unmap(AddressRange range) {
  const MutexLock lock(mapping_);
  return driver::checked(Call::mem_unmap, retried([&] { return driver_.mem_unmap(range); }));
}

}  // namespace vpmm::vm
