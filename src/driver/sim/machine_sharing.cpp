// SPDX-License-Identifier: Apache-2.0
// driver/sim: device memory passed between processes by handle or by descriptor.
#include <unistd.h>

#include <algorithm>

#include "base/check.hpp"
#include "driver/sim/costs.hpp"
#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {

CuResult Machine::mem_export_to_shareable_handle(ChunkHandle handle, int& file) {
  SimChunk* chunk = memory_.find_chunk(handle);
  if (chunk == nullptr) return CuResult::invalid_value;
  if (const CuResult error = vmm_error(chunk->device); error != CuResult::success) return error;
  if (chunk->sharing == SimChunk::ExportState::refused) return CuResult::invalid_value;
  charge(kExportCost.at(chunk->size));
  const CuResult result =
      export_chunk(chunk->file, {chunk->offset, chunk->size, chunk->device}, file);
  if (result == CuResult::success) chunk->sharing = SimChunk::ExportState::exported;
  return result;
}

CuResult Machine::mem_import_from_shareable_handle(int file, ChunkHandle& handle) {
  if (!options_.posix_file_descriptor_supported) return CuResult::not_supported;
  SharedChunk shared;
  if (const CuResult error = read_chunk(file, shared); error != CuResult::success) return error;
  if (const CuResult error = vmm_error(shared.device); error != CuResult::success) return error;
  SimChunk* chunk = nullptr;
  const CuResult result = memory_.import(shared, file, chunk);
  if (result == CuResult::success) handle = chunk->handle;
  return result;
}

CuResult Machine::ipc_get_mem_handle(DevicePtr ptr, IpcMemHandle& handle) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  AddressRange range;
  DeviceOrdinal home = 0;
  if (const auto large = plain_.find(ptr); large != plain_.end()) {
    if (large->second.kind == PlainAllocation::Kind::managed) return CuResult::invalid_value;
    range = large->second.range;
    home = large->second.device;
  } else if (const AsyncPool* pool = find_small(ptr)) {
    range = pool->find(ptr);
    home = pool->device();
  } else {
    return CuResult::invalid_value;
  }
  return exports_[static_cast<std::size_t>(home)].publish(ptr, memory_.locate(range), handle);
}

CuResult Machine::ipc_open_mem_handle(const IpcMemHandle& handle, DevicePtr& ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  SimImport made;
  made.device = device;
  if (const CuResult error = read_cookie(handle, made.cookie); error != CuResult::success)
    return error;
  const auto open = std::find_if(imports_.begin(), imports_.end(), [&](const auto& entry) {
    return entry.second.cookie == made.cookie && entry.second.device == device;
  });
  if (open != imports_.end()) {
    ++open->second.opens;
    ptr = open->first;
    return CuResult::success;
  }
  OpenedHandle opened;
  if (const CuResult error = open_handle(handle, opened); error != CuResult::success) return error;
  const CuResult result = memory_.plug_shared(opened.memory, opened.file, device, made.mapped);
  close(opened.file);
  if (result != CuResult::success) return result;
  made.range = {made.mapped.begin + opened.memory.begin, opened.memory.size};
  ptr = made.range.begin;
  imports_.emplace(ptr, made);
  return CuResult::success;
}

CuResult Machine::ipc_close_mem_handle(DevicePtr ptr) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  const auto open = imports_.find(ptr);
  if (open == imports_.end()) return CuResult::invalid_value;
  --open->second.opens;
  if (open->second.opens != 0) return CuResult::success;
  const Actor host = timeline_.begin_host(unmap_name_);
  memory_.for_each_part(open->second.mapped, [&](const SimMapping* mapping, AddressRange) {
    VPMM_CHECK(mapping != nullptr, "an import is mapped until it is closed");
    check_unused(*mapping, host);
  });
  memory_.unplug_shared(open->second.mapped);
  imports_.erase(open);
  return CuResult::success;
}

}  // namespace vpmm::driver::sim
