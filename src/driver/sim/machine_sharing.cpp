// driver/sim: device memory that goes from process to process by handle.
#include <unistd.h>

#include <algorithm>

#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {

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
  Import made;
  made.device = device;
  if (const CuResult error = read_cookie(handle, made.cookie); error != CuResult::success) return error;
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
  if (--open->second.opens != 0) return CuResult::success;
  const Actor host = timeline_.begin_host(unmap_name_);
  memory_.for_each_part(open->second.mapped,
                        [&](const Mapping* mapping, AddressRange) { check_unused(*mapping, host); });
  memory_.unplug_shared(open->second.mapped);
  imports_.erase(open);
  return CuResult::success;
}

}  // namespace vpmm::driver::sim
