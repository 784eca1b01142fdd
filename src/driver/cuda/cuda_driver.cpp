// SPDX-License-Identifier: Apache-2.0
// driver/cuda: each call of the door as one libcuda call.
#include "driver/cuda/cuda_driver.hpp"

#include <array>
#include <chrono>
#include <thread>
#include <vector>

namespace vpmm::driver::cuda {
namespace {

// Writes the output on success only, as the door promises; libcuda promises less.
template <typename T, typename Call>
CuResult fetch(T& out, Call call) {
  T value{};
  const CuResult result = call(&value);
  if (result == CuResult::success) out = value;
  return result;
}

MemLocation on_device(DeviceOrdinal device) { return {kMemLocationTypeDevice, device}; }

MemAllocationProp to_cuda(const ChunkProperties& properties) {
  MemAllocationProp prop;
  prop.type = kMemAllocationTypePinned;
  prop.requested_handle_types =
      properties.posix_file_descriptor ? kMemHandleTypePosixFileDescriptor : 0;
  prop.location = on_device(properties.device);
  prop.flags.gpu_direct_rdma_capable = properties.gpu_direct_rdma_capable ? 1 : 0;
  return prop;
}

}  // namespace

void* CudaDriver::symbol(const char* name, int version) const {
  CuResult result = CuResult::success;
  return finder_.find(name, version, result);
}

std::uint64_t CudaDriver::now_ns() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count());
}

void CudaDriver::sleep_ns(std::uint64_t ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

// --- driver and devices ---

CuResult CudaDriver::init() { return cuda_.init(0); }

CuResult CudaDriver::driver_get_version(int& version) {
  return fetch(version, cuda_.driver_get_version);
}

CuResult CudaDriver::device_get_count(int& count) { return fetch(count, cuda_.device_get_count); }

CuResult CudaDriver::device_get_name(DeviceOrdinal device, std::string& name) {
  std::array<char, 256> text{};
  const CuResult result = cuda_.device_get_name(text.data(), static_cast<int>(text.size()), device);
  if (result == CuResult::success) name = text.data();
  return result;
}

CuResult CudaDriver::device_get_uuid(DeviceOrdinal device, Uuid& uuid) {
  return fetch(uuid, [&](Uuid* out) { return cuda_.device_get_uuid(out, device); });
}

CuResult CudaDriver::device_get_attribute(DeviceAttribute attribute, DeviceOrdinal device,
                                          int& value) {
  return fetch(value, [&](int* out) { return cuda_.device_get_attribute(out, attribute, device); });
}

CuResult CudaDriver::device_total_mem(DeviceOrdinal device, Bytes& total) {
  return fetch(total, [&](Bytes* out) { return cuda_.device_total_mem(out, device); });
}

CuResult CudaDriver::device_can_access_peer(DeviceOrdinal device, DeviceOrdinal peer, bool& can) {
  int answer = 0;
  const CuResult result = cuda_.device_can_access_peer(&answer, device, peer);
  if (result == CuResult::success) can = answer != 0;
  return result;
}

// --- contexts ---

CuResult CudaDriver::device_primary_ctx_get_state(DeviceOrdinal device, bool& is_active) {
  unsigned flags = 0;
  int active = 0;
  const CuResult result = cuda_.device_primary_ctx_get_state(device, &flags, &active);
  if (result == CuResult::success) is_active = active != 0;
  return result;
}

CuResult CudaDriver::device_primary_ctx_retain(DeviceOrdinal device, ContextHandle& context) {
  return fetch(context,
               [&](ContextHandle* out) { return cuda_.device_primary_ctx_retain(out, device); });
}

CuResult CudaDriver::device_primary_ctx_release(DeviceOrdinal device) {
  return cuda_.device_primary_ctx_release(device);
}

CuResult CudaDriver::device_primary_ctx_reset(DeviceOrdinal device) {
  return cuda_.device_primary_ctx_reset(device);
}

CuResult CudaDriver::ctx_get_current(ContextHandle& context) {
  return fetch(context, cuda_.ctx_get_current);
}

CuResult CudaDriver::ctx_set_current(ContextHandle context) {
  return cuda_.ctx_set_current(context);
}

CuResult CudaDriver::ctx_get_id(ContextHandle context, ContextId& id) {
  if (!cuda_.ctx_get_id) return CuResult::not_supported;
  unsigned long long number = 0;
  const CuResult result = cuda_.ctx_get_id(context, &number);
  if (result == CuResult::success) id = ContextId{number};
  return result;
}

CuResult CudaDriver::ctx_get_device(DeviceOrdinal& device) {
  return fetch(device, cuda_.ctx_get_device);
}

CuResult CudaDriver::ctx_synchronize() { return cuda_.ctx_synchronize(); }

CuResult CudaDriver::ctx_record_event(ContextHandle context, EventHandle event) {
  return cuda_.ctx_record_event ? cuda_.ctx_record_event(context, event) : CuResult::not_supported;
}

// --- memory: virtual memory management ---

CuResult CudaDriver::mem_get_info(MemInfo& info) {
  return fetch(info, [&](MemInfo* out) { return cuda_.mem_get_info(&out->free, &out->total); });
}

CuResult CudaDriver::mem_get_allocation_granularity(const ChunkProperties& properties,
                                                    Granularity kind, Bytes& granularity) {
  const MemAllocationProp prop = to_cuda(properties);
  return fetch(granularity,
               [&](Bytes* out) { return cuda_.mem_get_allocation_granularity(out, &prop, kind); });
}

CuResult CudaDriver::mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                                         DevicePtr& begin) {
  return fetch(begin, [&](DevicePtr* out) {
    return cuda_.mem_address_reserve(out, size, alignment, hint, 0);
  });
}

CuResult CudaDriver::mem_address_free(AddressRange reservation) {
  return cuda_.mem_address_free(reservation.begin, reservation.size);
}

CuResult CudaDriver::mem_create(Bytes size, const ChunkProperties& properties, ChunkHandle& chunk) {
  const MemAllocationProp prop = to_cuda(properties);
  return fetch(chunk, [&](ChunkHandle* out) { return cuda_.mem_create(out, size, &prop, 0); });
}

CuResult CudaDriver::mem_release(ChunkHandle chunk) { return cuda_.mem_release(chunk); }

CuResult CudaDriver::mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) {
  return cuda_.mem_map(range.begin, range.size, offset, chunk, 0);
}

CuResult CudaDriver::mem_unmap(AddressRange range) {
  return cuda_.mem_unmap(range.begin, range.size);
}

CuResult CudaDriver::mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) {
  std::vector<MemAccessDesc> descriptors;
  descriptors.reserve(access.size());
  for (const AccessDescriptor& one : access)
    descriptors.push_back({on_device(one.device), kMemAccessReadWrite});
  return cuda_.mem_set_access(range.begin, range.size, descriptors.data(), descriptors.size());
}

CuResult CudaDriver::mem_export_to_shareable_handle(ChunkHandle chunk, int& file) {
  return fetch(file, [&](int* out) {
    return cuda_.mem_export_to_shareable_handle(out, chunk, kMemHandleTypePosixFileDescriptor, 0);
  });
}

CuResult CudaDriver::mem_import_from_shareable_handle(int file, ChunkHandle& chunk) {
  void* const shareable =
      reinterpret_cast<void*>(static_cast<std::uintptr_t>(file));  // a descriptor goes by value
  return fetch(chunk, [&](ChunkHandle* out) {
    return cuda_.mem_import_from_shareable_handle(out, shareable,
                                                  kMemHandleTypePosixFileDescriptor);
  });
}

// --- memory: plain, stream-ordered, host ---

CuResult CudaDriver::mem_alloc(Bytes size, DevicePtr& ptr) {
  return fetch(ptr, [&](DevicePtr* out) { return cuda_.mem_alloc(out, size); });
}

CuResult CudaDriver::mem_free(DevicePtr ptr) { return cuda_.mem_free(ptr); }

CuResult CudaDriver::mem_pool_create(DeviceOrdinal device, MemPoolHandle& pool) {
  MemPoolProps props;
  props.allocation_type = kMemAllocationTypePinned;
  props.location = on_device(device);
  return fetch(pool, [&](MemPoolHandle* out) { return cuda_.mem_pool_create(out, &props); });
}

CuResult CudaDriver::mem_pool_destroy(MemPoolHandle pool) { return cuda_.mem_pool_destroy(pool); }

CuResult CudaDriver::mem_pool_set_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                            std::uint64_t value) {
  return cuda_.mem_pool_set_attribute(pool, attribute, &value);
}

CuResult CudaDriver::mem_pool_get_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                            std::uint64_t& value) {
  return fetch(value, [&](std::uint64_t* out) {
    return cuda_.mem_pool_get_attribute(pool, attribute, out);
  });
}

CuResult CudaDriver::mem_pool_trim_to(MemPoolHandle pool, Bytes bytes_to_keep) {
  return cuda_.mem_pool_trim_to(pool, bytes_to_keep);
}

CuResult CudaDriver::mem_alloc_from_pool_async(Bytes size, MemPoolHandle pool, StreamHandle stream,
                                               DevicePtr& ptr) {
  return fetch(ptr, [&](DevicePtr* out) {
    return cuda_.mem_alloc_from_pool_async(out, size, pool, stream);
  });
}

CuResult CudaDriver::mem_free_async(DevicePtr ptr, StreamHandle stream) {
  return cuda_.mem_free_async(ptr, stream);
}

CuResult CudaDriver::mem_host_alloc(Bytes size, unsigned flags, void*& host) {
  return fetch(host, [&](void** out) { return cuda_.mem_host_alloc(out, size, flags); });
}

CuResult CudaDriver::mem_free_host(void* host) { return cuda_.mem_free_host(host); }

// --- memory: of the host and of host and device together ---

CuResult CudaDriver::mem_host_register(void* host, Bytes size, unsigned flags) {
  return cuda_.mem_host_register(host, size, flags);
}

CuResult CudaDriver::mem_host_unregister(void* host) { return cuda_.mem_host_unregister(host); }

CuResult CudaDriver::mem_host_get_device_pointer(void* host, DevicePtr& ptr) {
  return fetch(ptr,
               [&](DevicePtr* out) { return cuda_.mem_host_get_device_pointer(out, host, 0); });
}

CuResult CudaDriver::mem_alloc_managed(Bytes size, unsigned flags, DevicePtr& ptr) {
  return fetch(ptr, [&](DevicePtr* out) { return cuda_.mem_alloc_managed(out, size, flags); });
}

CuResult CudaDriver::mem_get_address_range(DevicePtr inside, AddressRange& range) {
  return fetch(range, [&](AddressRange* out) {
    return cuda_.mem_get_address_range(&out->begin, &out->size, inside);
  });
}

CuResult CudaDriver::pointer_get_device(DevicePtr ptr, DeviceOrdinal& device) {
  return fetch(device, [&](DeviceOrdinal* out) {
    return cuda_.pointer_get_device(out, PointerAttribute::device_ordinal, ptr);
  });
}

// --- memory: of other processes ---

CuResult CudaDriver::ipc_get_mem_handle(DevicePtr ptr, IpcMemHandle& handle) {
  return fetch(handle, [&](IpcMemHandle* out) { return cuda_.ipc_get_mem_handle(out, ptr); });
}

CuResult CudaDriver::ipc_open_mem_handle(const IpcMemHandle& handle, DevicePtr& ptr) {
  return fetch(ptr, [&](DevicePtr* out) {
    return cuda_.ipc_open_mem_handle(out, handle, kIpcLazyEnablePeerAccess);
  });
}

CuResult CudaDriver::ipc_close_mem_handle(DevicePtr ptr) { return cuda_.ipc_close_mem_handle(ptr); }

// --- copies and fills ---

CuResult CudaDriver::memcpy_host_to_device(DevicePtr to, const void* from, Bytes size) {
  return cuda_.memcpy_host_to_device(to, from, size);
}

CuResult CudaDriver::memcpy_device_to_host(void* to, DevicePtr from, Bytes size) {
  return cuda_.memcpy_device_to_host(to, from, size);
}

CuResult CudaDriver::memcpy_host_to_device_async(DevicePtr to, const void* from, Bytes size,
                                                 StreamHandle stream) {
  return cuda_.memcpy_host_to_device_async(to, from, size, stream);
}

CuResult CudaDriver::memcpy_device_to_host_async(void* to, DevicePtr from, Bytes size,
                                                 StreamHandle stream) {
  return cuda_.memcpy_device_to_host_async(to, from, size, stream);
}

CuResult CudaDriver::memcpy_device_to_device_async(DevicePtr to, DevicePtr from, Bytes size,
                                                   StreamHandle stream) {
  return cuda_.memcpy_device_to_device_async(to, from, size, stream);
}

CuResult CudaDriver::memset_d8(DevicePtr to, std::uint8_t value, Bytes size) {
  return cuda_.memset_d8(to, value, size);
}

CuResult CudaDriver::memset_d8_async(DevicePtr to, std::uint8_t value, Bytes size,
                                     StreamHandle stream) {
  return cuda_.memset_d8_async(to, value, size, stream);
}

// --- streams ---

CuResult CudaDriver::stream_create(StreamFlags flags, StreamHandle& stream) {
  return fetch(stream, [&](StreamHandle* out) { return cuda_.stream_create(out, flags); });
}

CuResult CudaDriver::stream_destroy(StreamHandle stream) { return cuda_.stream_destroy(stream); }

CuResult CudaDriver::stream_get_id(StreamHandle stream, StreamId& id) {
  if (!cuda_.stream_get_id) return CuResult::not_supported;
  unsigned long long number = 0;
  const CuResult result = cuda_.stream_get_id(stream, &number);
  if (result == CuResult::success) id = StreamId{number};
  return result;
}

CuResult CudaDriver::stream_get_ctx(StreamHandle stream, ContextHandle& context) {
  return fetch(context, [&](ContextHandle* out) { return cuda_.stream_get_ctx(stream, out); });
}

CuResult CudaDriver::stream_is_capturing(StreamHandle stream, CaptureStatus& status) {
  return fetch(status, [&](CaptureStatus* out) { return cuda_.stream_is_capturing(stream, out); });
}

CuResult CudaDriver::stream_get_capture_info(StreamHandle stream, CaptureInfo& info) {
  return fetch(info, [&](CaptureInfo* out) {
    return cuda_.stream_get_capture_info(stream, &out->status, &out->id, &out->graph, nullptr,
                                         nullptr);
  });
}

CuResult CudaDriver::stream_wait_event(StreamHandle stream, EventHandle event) {
  return cuda_.stream_wait_event(stream, event, 0);
}

CuResult CudaDriver::stream_query(StreamHandle stream) { return cuda_.stream_query(stream); }

CuResult CudaDriver::stream_synchronize(StreamHandle stream) {
  return cuda_.stream_synchronize(stream);
}

CuResult CudaDriver::stream_begin_capture(StreamHandle stream, CaptureMode mode) {
  return cuda_.stream_begin_capture(stream, mode);
}

CuResult CudaDriver::stream_end_capture(StreamHandle stream, GraphHandle& graph) {
  return fetch(graph, [&](GraphHandle* out) { return cuda_.stream_end_capture(stream, out); });
}

// --- events ---

CuResult CudaDriver::event_create(EventHandle& event) {
  return fetch(event,
               [&](EventHandle* out) { return cuda_.event_create(out, kEventDisableTiming); });
}

CuResult CudaDriver::event_record(EventHandle event, StreamHandle stream) {
  return cuda_.event_record(event, stream);
}

CuResult CudaDriver::event_query(EventHandle event) { return cuda_.event_query(event); }

CuResult CudaDriver::event_synchronize(EventHandle event) { return cuda_.event_synchronize(event); }

CuResult CudaDriver::event_destroy(EventHandle event) { return cuda_.event_destroy(event); }

// --- capture and graphs ---

CuResult CudaDriver::thread_exchange_stream_capture_mode(CaptureMode& mode) {
  return cuda_.thread_exchange_stream_capture_mode(&mode);
}

CuResult CudaDriver::graph_instantiate(GraphHandle graph, GraphExecHandle& exec) {
  return fetch(exec, [&](GraphExecHandle* out) { return cuda_.graph_instantiate(out, graph, 0); });
}

CuResult CudaDriver::graph_launch(GraphExecHandle exec, StreamHandle stream) {
  return cuda_.graph_launch(exec, stream);
}

CuResult CudaDriver::graph_destroy(GraphHandle graph) { return cuda_.graph_destroy(graph); }

CuResult CudaDriver::graph_exec_destroy(GraphExecHandle exec) {
  return cuda_.graph_exec_destroy(exec);
}

CuResult CudaDriver::user_object_create(void* argument, UserObjectDestructor destroy,
                                        UserObjectHandle& object) {
  return fetch(object, [&](UserObjectHandle* out) {
    return cuda_.user_object_create(out, argument, destroy, 1, kUserObjectNoDestructorSync);
  });
}

CuResult CudaDriver::user_object_release(UserObjectHandle object) {
  return cuda_.user_object_release(object, 1);
}

CuResult CudaDriver::graph_retain_user_object(GraphHandle graph, UserObjectHandle object) {
  return cuda_.graph_retain_user_object(graph, object, 1, kGraphUserObjectMove);
}

}  // namespace vpmm::driver::cuda
