// SPDX-License-Identifier: Apache-2.0
// driver/sim: memory calls: mapping, plain and stream-ordered memory.
#include <iterator>

#include "driver/sim/costs.hpp"
#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kSmallPlain = kMiB;  // smaller plain allocations share pages

}  // namespace

CuResult Machine::vmm_error(DeviceOrdinal device) {
  if (!options_.vmm_supported) return CuResult::not_supported;
  return device_error(device);
}

CuResult Machine::mem_get_info(MemInfo& info) {
  charge(costs_.mem_get_info_ns);
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  info = {memory_.free(device), options_.capacity};
  return CuResult::success;
}

CuResult Machine::mem_get_allocation_granularity(const ChunkProperties& properties, Granularity,
                                                 Bytes& granularity) {
  if (const CuResult error = vmm_error(properties.device); error != CuResult::success) return error;
  granularity = options_.granularity;
  return CuResult::success;
}

CuResult Machine::mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                                      DevicePtr& begin) {
  if (!options_.vmm_supported) return CuResult::not_supported;
  if (const CuResult error = caller_error(); error != CuResult::success) return error;
  return memory_.reserve(size, alignment, hint, SimMemory::ReservedFor::user, begin);
}

CuResult Machine::mem_address_free(AddressRange reservation) {
  if (!options_.vmm_supported) return CuResult::not_supported;
  if (const CuResult error = caller_error(); error != CuResult::success) return error;
  return memory_.free_reservation(reservation, SimMemory::ReservedFor::user);
}

CuResult Machine::mem_create(Bytes size, const ChunkProperties& properties, ChunkHandle& handle) {
  if (const CuResult error = vmm_error(properties.device); error != CuResult::success) return error;
  if (properties.posix_file_descriptor && !options_.posix_file_descriptor_supported)
    return CuResult::not_supported;
  charge(costs_.create.at(size));
  SimChunk* chunk = nullptr;
  const CuResult result = memory_.create(size, properties.device, TouchRight::none, chunk);
  if (result != CuResult::success) return result;
  if (properties.posix_file_descriptor) chunk->sharing = SimChunk::ExportState::allowed;
  handle = chunk->handle;
  return result;
}

CuResult Machine::mem_release(ChunkHandle handle) {
  SimChunk* chunk = memory_.find_chunk(handle);
  if (chunk == nullptr) return CuResult::invalid_value;
  if (const CuResult error = vmm_error(chunk->device); error != CuResult::success) return error;
  charge(costs_.release.at(chunk->size));
  memory_.release(*chunk);
  return CuResult::success;
}

CuResult Machine::mem_map(AddressRange range, Bytes offset, ChunkHandle handle) {
  SimChunk* chunk = memory_.find_chunk(handle);
  if (chunk == nullptr) return CuResult::invalid_value;
  if (const CuResult error = vmm_error(chunk->device); error != CuResult::success) return error;
  charge(costs_.map.at(chunk->size));
  if (range.empty()) return CuResult::invalid_value;
  if (offset != 0 || range.size != chunk->size) return CuResult::not_supported;
  return memory_.map(range, *chunk);
}

CuResult Machine::mem_unmap(AddressRange range) {
  if (!memory_.whole_mappings(range, mappings_)) return CuResult::invalid_value;
  for (const SimMapping* mapping : mappings_) {
    if (const CuResult error = vmm_error(mapping->chunk->device); error != CuResult::success)
      return error;
  }
  for (const SimMapping* mapping : mappings_) charge(costs_.unmap.at(mapping->range.size));
  const Actor host = timeline_.begin_host(unmap_name_);
  for (const SimMapping* mapping : mappings_) check_unused(*mapping, host);
  return memory_.unmap(mappings_);
}

// Work that went through this mapping must be known to be over, even if the chunk lives on
// elsewhere.
void Machine::check_unused(const SimMapping& mapping, const Actor& host) {
  for (const Position& use : mapping.uses) {
    if (!timeline_.host_knows(use)) checker_.unmapped_too_early(mapping.range, use, host);
  }
}

CuResult Machine::mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) {
  if (access.empty() || !memory_.whole_mappings(range, mappings_)) return CuResult::invalid_value;
  std::uint64_t devices = 0;
  for (const AccessDescriptor& descriptor : access) {
    if (!is_device(descriptor.device)) return CuResult::invalid_value;
    if (const CuResult error = vmm_error(descriptor.device); error != CuResult::success)
      return error;
    devices |= std::uint64_t{1} << descriptor.device;
  }
  for (const SimMapping* mapping : mappings_) {
    if (const CuResult error = vmm_error(mapping->chunk->device); error != CuResult::success)
      return error;
    for (const AccessDescriptor& descriptor : access)
      if (descriptor.device != mapping->chunk->device &&
          !can_access(descriptor.device, mapping->chunk->device))
        return CuResult::invalid_device;
    const bool is_imported = mapping->chunk->home == SimChunk::Home::imported;
    charge((is_imported ? kSetAccessOfImportCost : costs_.set_access).at(mapping->range.size));
  }
  return memory_.set_access(mappings_, devices);
}

CuResult Machine::mem_alloc(Bytes size, DevicePtr& ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  if (size == 0) return CuResult::invalid_value;
  if (size > options_.capacity) return CuResult::out_of_memory;
  charge(kPlainAllocCost.at(size));
  return size < kSmallPlain ? alloc_small(device, size, ptr) : alloc_large(device, size, ptr);
}

CuResult Machine::alloc_small(DeviceOrdinal device, Bytes size, DevicePtr& ptr) {
  auto& pool = small_plain_[static_cast<std::size_t>(device)];
  if (!pool) pool = std::make_unique<AsyncPool>(memory_, timeline_, device);
  AddressRange range;
  const CuResult result = pool->allocate(size, kHostSlot, range);
  if (result != CuResult::success) return result;
  mark_allocated(range, timeline_.begin_host(kAllocateName));
  ptr = range.begin;
  return CuResult::success;
}

CuResult Machine::alloc_large(DeviceOrdinal device, Bytes size, DevicePtr& ptr) {
  AddressRange range;
  const CuResult result =
      memory_.plug(round_up(size, options_.granularity), device, TouchRight::driver, range);
  if (result != CuResult::success) return result;
  plain_.emplace(range.begin, PlainAllocation{range, device, PlainAllocation::Kind::of_device});
  ptr = range.begin;
  return CuResult::success;
}

// Device memory that every device may use, and the host, as all device memory here. Unlike the real
// driver's it stays on the device, so more than the device has is refused.
CuResult Machine::mem_alloc_managed(Bytes size, unsigned flags, DevicePtr& ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  if (size == 0 || (flags != kManagedAttachGlobal && flags != kManagedAttachHost))
    return CuResult::invalid_value;
  if (size > options_.capacity) return CuResult::out_of_memory;
  charge(kPlainAllocCost.at(size));
  const CuResult result = alloc_large(device, size, ptr);
  if (result != CuResult::success) return result;
  plain_.at(ptr).kind = PlainAllocation::Kind::managed;
  return memory_.set_access({memory_.find(ptr)}, ~std::uint64_t{0});
}

AsyncPool* Machine::find_small(DevicePtr ptr) {
  for (const auto& pool : small_plain_) {
    if (pool && !pool->find(ptr).empty()) return pool.get();
  }
  return nullptr;
}

CuResult Machine::mem_free(DevicePtr ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (is_null(ptr)) return CuResult::success;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  const auto large = plain_.find(ptr);
  if (large != plain_.end()) {
    charge(kPlainFreeCost.at(large->second.range.size));
    timeline_.host_wait_device(large->second.device);
    check_unused(*memory_.find(ptr), timeline_.begin_host(kDeallocateName));
    exports_[static_cast<std::size_t>(large->second.device)].withdraw(ptr);
    memory_.unplug(large->second.range);
    plain_.erase(large);
    return CuResult::success;
  }
  PoolEntry* const entry = find_pool_of(ptr);
  AsyncPool* const pool = entry != nullptr ? entry->pool.get() : find_small(ptr);
  if (pool == nullptr) return CuResult::invalid_value;
  charge(kPlainFreeCost.at(0));
  timeline_.host_wait_device(pool->device());
  exports_[static_cast<std::size_t>(pool->device())].withdraw(ptr);
  free_block(*pool, pool->find(ptr), timeline_.begin_host(kDeallocateName));
  return CuResult::success;
}

CuResult Machine::mem_get_address_range(DevicePtr inside, AddressRange& range) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  const AddressRange found = find_allocation(inside);
  if (found.empty()) return CuResult::not_found;
  range = found;
  return CuResult::success;
}

CuResult Machine::pointer_get_device(DevicePtr ptr, DeviceOrdinal& device) {
  if (const CuResult error = caller_error(); error != CuResult::success) return error;
  const SimMapping* const mapping = memory_.find(ptr);
  if (mapping == nullptr) return CuResult::invalid_value;
  device = mapping->chunk->device;
  return CuResult::success;
}

// In the driver's own reservations allocations count, not mappings.
AddressRange Machine::find_allocation(DevicePtr inside) {
  if (const AddressRange mapping = memory_.find_user_mapping(inside); !mapping.empty())
    return mapping;
  if (const auto after = plain_.upper_bound(inside); after != plain_.begin()) {
    if (const AddressRange large = std::prev(after)->second.range; large.contains(inside))
      return large;
  }
  if (const auto after = imports_.upper_bound(inside); after != imports_.begin()) {
    if (const AddressRange import = std::prev(after)->second.range; import.contains(inside))
      return import;
  }
  for (const auto& pool : small_plain_) {
    if (const AddressRange block = pool ? pool->find_around(inside) : AddressRange{};
        !block.empty())
      return block;
  }
  for (const auto& [handle, entry] : pools_) {
    if (const AddressRange block = entry.pool->find_around(inside); !block.empty()) return block;
  }
  return find_pinned({inside, 1});
}

void Machine::free_block(AsyncPool& pool, AddressRange range, const Actor& actor) {
  mark_deallocated(range, actor);
  pool.free(range.begin, actor.at, actor.clock);
  if (pool.live() != 0) return;
  std::erase_if(pools_, [&](const auto& entry) {
    return entry.second.is_destroyed && entry.second.pool.get() == &pool;
  });
}

CuResult Machine::mem_pool_create(DeviceOrdinal device, MemPoolHandle& pool) {
  if (const CuResult error = device_error(device); error != CuResult::success) return error;
  if (!options_.memory_pools_supported) return CuResult::not_supported;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  const std::uint64_t handle = next_pool_++;
  pools_.emplace(handle, PoolEntry{std::make_unique<AsyncPool>(memory_, timeline_, device), false});
  pool = MemPoolHandle{handle};
  return CuResult::success;
}

Machine::PoolEntry* Machine::find_pool(MemPoolHandle pool) {
  const auto found = pools_.find(static_cast<std::uintptr_t>(pool));
  return found == pools_.end() || found->second.is_destroyed ? nullptr : &found->second;
}

Machine::PoolEntry* Machine::find_pool_of(DevicePtr ptr) {
  for (auto& [handle, entry] : pools_) {
    if (!entry.pool->find(ptr).empty()) return &entry;
  }
  return nullptr;
}

CuResult Machine::mem_pool_destroy(MemPoolHandle pool) {
  PoolEntry* entry = find_pool(pool);
  if (entry == nullptr) return CuResult::invalid_value;
  if (const CuResult error = device_error(entry->pool->device()); error != CuResult::success)
    return error;
  if (entry->pool->live() == 0) {
    pools_.erase(static_cast<std::uintptr_t>(pool));
  } else {
    entry->is_destroyed = true;
  }
  return CuResult::success;
}

CuResult Machine::mem_pool_set_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                         std::uint64_t value) {
  PoolEntry* entry = find_pool(pool);
  if (entry == nullptr) return CuResult::invalid_value;
  if (const CuResult error = device_error(entry->pool->device()); error != CuResult::success)
    return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  return entry->pool->set_attribute(attribute, value);
}

CuResult Machine::mem_pool_get_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                         std::uint64_t& value) {
  PoolEntry* entry = find_pool(pool);
  if (entry == nullptr) return CuResult::invalid_value;
  if (const CuResult error = device_error(entry->pool->device()); error != CuResult::success)
    return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  return entry->pool->get_attribute(attribute, value);
}

CuResult Machine::mem_pool_trim_to(MemPoolHandle pool, Bytes bytes_to_keep) {
  PoolEntry* entry = find_pool(pool);
  if (entry == nullptr) return CuResult::invalid_value;
  if (const CuResult error = device_error(entry->pool->device()); error != CuResult::success)
    return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  entry->pool->trim_to(bytes_to_keep);
  return CuResult::success;
}

CuResult Machine::mem_alloc_from_pool_async(Bytes size, MemPoolHandle pool, StreamHandle stream,
                                            DevicePtr& ptr) {
  PoolEntry* entry = find_pool(pool);
  if (entry == nullptr) return CuResult::invalid_value;
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (captures_.of_stream(slot) != nullptr) return CuResult::stream_capture_unsupported;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  AddressRange range;
  const CuResult result = entry->pool->allocate(size, slot, range);
  if (result != CuResult::success) return result;
  mark_allocated(range, timeline_.begin(slot, kAllocateName));
  ptr = range.begin;
  return CuResult::success;
}

CuResult Machine::mem_free_async(DevicePtr ptr, StreamHandle stream) {
  if (is_null(ptr)) return CuResult::invalid_value;
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (captures_.of_stream(slot) != nullptr) return CuResult::stream_capture_unsupported;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  PoolEntry* entry = find_pool_of(ptr);
  if (entry == nullptr) return CuResult::invalid_value;
  free_block(*entry->pool, entry->pool->find(ptr), timeline_.begin(slot, kDeallocateName));
  return CuResult::success;
}

}  // namespace vpmm::driver::sim
