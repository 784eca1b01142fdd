// SPDX-License-Identifier: Apache-2.0
// sim_gpu: libcuda's functions that make, map, free and describe memory.
#include <cuda.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "sim_gpu/machine.hpp"

using vpmm::AddressRange;
using vpmm::DevicePtr;
using vpmm::driver::AccessDescriptor;
using vpmm::driver::ChunkHandle;
using vpmm::driver::ChunkProperties;
using vpmm::driver::CuResult;
using vpmm::driver::MemPoolAttribute;
using vpmm::driver::MemPoolHandle;
using vpmm::sim_gpu::device_ptr;
using vpmm::sim_gpu::handle;
using vpmm::sim_gpu::machine;
using vpmm::sim_gpu::pointer;
using vpmm::sim_gpu::stream_of;
using vpmm::sim_gpu::to_cuda;

namespace {

ChunkProperties properties_of(const CUmemAllocationProp& prop) {
  ChunkProperties properties;
  properties.device = prop.location.id;
  properties.posix_file_descriptor =
      (prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  properties.gpu_direct_rdma_capable = prop.allocFlags.gpuDirectRDMACapable != 0;
  return properties;
}

// Passes an address on when the call that made it succeeded.
template <typename Call>
CUresult give_address(CUdeviceptr* out, Call&& call) {
  DevicePtr ptr{};
  const CuResult result = call(ptr);
  if (result == CuResult::success) *out = vpmm::to_integer(ptr);
  return to_cuda(result);
}

// The attributes of a pool about reuse are ints, the others 64 bits. Two of them the simulator's
// pools do not have.
bool is_int(CUmemPool_attribute attribute) {
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}
bool changes_nothing(CUmemPool_attribute attribute) {
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
}

bool is_pinned(CUdeviceptr ptr) {
  DevicePtr mapped{};
  return machine().mem_host_get_device_pointer(reinterpret_cast<void*>(ptr), mapped) ==
         CuResult::success;
}

}  // namespace

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  vpmm::driver::MemInfo info;
  const CuResult result = machine().mem_get_info(info);
  if (result == CuResult::success) {
    *free = info.free;
    *total = info.total;
  }
  return to_cuda(result);
}

// --- virtual memory management ---

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags kind) {
  return to_cuda(machine().mem_get_allocation_granularity(
      properties_of(*prop), static_cast<vpmm::driver::Granularity>(kind), *granularity));
}

CUresult cuMemAddressReserve(CUdeviceptr* begin, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long) {
  return give_address(begin, [&](DevicePtr& out) {
    return machine().mem_address_reserve(size, alignment, device_ptr(hint), out);
  });
}

CUresult cuMemAddressFree(CUdeviceptr begin, size_t size) {
  return to_cuda(machine().mem_address_free({device_ptr(begin), size}));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* chunk, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long) {
  ChunkHandle made{};
  const CuResult result = machine().mem_create(size, properties_of(*prop), made);
  if (result == CuResult::success) *chunk = static_cast<CUmemGenericAllocationHandle>(made);
  return to_cuda(result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle chunk) {
  return to_cuda(machine().mem_release(ChunkHandle{chunk}));
}

CUresult cuMemMap(CUdeviceptr begin, size_t size, size_t offset, CUmemGenericAllocationHandle chunk,
                  unsigned long long) {
  return to_cuda(machine().mem_map({device_ptr(begin), size}, offset, ChunkHandle{chunk}));
}

CUresult cuMemUnmap(CUdeviceptr begin, size_t size) {
  return to_cuda(machine().mem_unmap({device_ptr(begin), size}));
}

CUresult cuMemSetAccess(CUdeviceptr begin, size_t size, const CUmemAccessDesc* access,
                        size_t count) {
  std::vector<AccessDescriptor> devices;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_NOT_SUPPORTED;
    devices.push_back({access[i].location.id});
  }
  return to_cuda(machine().mem_set_access({device_ptr(begin), size}, devices));
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle chunk,
                                      CUmemAllocationHandleType type, unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return to_cuda(
      machine().mem_export_to_shareable_handle(ChunkHandle{chunk}, *static_cast<int*>(shareable)));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* chunk, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int file = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
  ChunkHandle imported{};
  const CuResult result = machine().mem_import_from_shareable_handle(file, imported);
  if (result == CuResult::success) *chunk = static_cast<CUmemGenericAllocationHandle>(imported);
  return to_cuda(result);
}

// --- plain and stream-ordered ---

CUresult cuMemAlloc(CUdeviceptr* ptr, size_t size) {
  return give_address(ptr, [&](DevicePtr& out) { return machine().mem_alloc(size, out); });
}

CUresult cuMemFree(CUdeviceptr ptr) { return to_cuda(machine().mem_free(device_ptr(ptr))); }

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  MemPoolHandle made{};
  const CuResult result = machine().mem_pool_create(props->location.id, made);
  if (result == CuResult::success) *pool = pointer<CUmemoryPool>(made);
  return to_cuda(result);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return to_cuda(machine().mem_pool_destroy(handle<MemPoolHandle>(pool)));
}

// The simulator has no such pool of its own: made when first asked for, and again after a reset
// took it.
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  static std::mutex mutex;
  static std::map<CUdevice, MemPoolHandle> pools;
  const std::lock_guard lock(mutex);
  MemPoolHandle& made = pools[device];
  std::uint64_t used = 0;
  if (machine().mem_pool_get_attribute(made, MemPoolAttribute::used_mem_current, used) !=
      CuResult::success) {
    const CuResult result = machine().mem_pool_create(device, made);
    if (result != CuResult::success) return to_cuda(result);
  }
  *pool = pointer<CUmemoryPool>(made);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (changes_nothing(attribute)) return CUDA_SUCCESS;
  const std::uint64_t number = is_int(attribute)
                                   ? static_cast<std::uint64_t>(*static_cast<int*>(value))
                                   : *static_cast<std::uint64_t*>(value);
  return to_cuda(machine().mem_pool_set_attribute(
      handle<MemPoolHandle>(pool), static_cast<MemPoolAttribute>(attribute), number));
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  std::uint64_t number = 1;
  const CuResult result =
      changes_nothing(attribute)
          ? CuResult::success
          : machine().mem_pool_get_attribute(handle<MemPoolHandle>(pool),
                                             static_cast<MemPoolAttribute>(attribute), number);
  if (result != CuResult::success) return to_cuda(result);
  if (is_int(attribute)) {
    *static_cast<int*>(value) = static_cast<int>(number);
  } else {
    *static_cast<std::uint64_t*>(value) = number;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes_to_keep) {
  return to_cuda(machine().mem_pool_trim_to(handle<MemPoolHandle>(pool), bytes_to_keep));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t size, CUmemoryPool pool,
                                 CUstream stream) {
  return give_address(ptr, [&](DevicePtr& out) {
    return machine().mem_alloc_from_pool_async(size, handle<MemPoolHandle>(pool), stream_of(stream),
                                               out);
  });
}

CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t size, CUstream stream) {
  CUdevice device = 0;
  CUmemoryPool pool = nullptr;
  if (const CuResult result = machine().ctx_get_device(device); result != CuResult::success)
    return to_cuda(result);
  if (const CUresult result = cuDeviceGetDefaultMemPool(&pool, device); result != CUDA_SUCCESS)
    return result;
  return cuMemAllocFromPoolAsync(ptr, size, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
  return to_cuda(machine().mem_free_async(device_ptr(ptr), stream_of(stream)));
}

// --- host memory, managed memory, and what a pointer is ---

CUresult cuMemHostAlloc(void** host, size_t size, unsigned flags) {
  return to_cuda(machine().mem_host_alloc(size, flags, *host));
}

CUresult cuMemFreeHost(void* host) { return to_cuda(machine().mem_free_host(host)); }

CUresult cuMemHostRegister(void* host, size_t size, unsigned flags) {
  return to_cuda(machine().mem_host_register(host, size, flags));
}

CUresult cuMemHostUnregister(void* host) { return to_cuda(machine().mem_host_unregister(host)); }

CUresult cuMemHostGetDevicePointer(CUdeviceptr* ptr, void* host, unsigned) {
  return give_address(
      ptr, [&](DevicePtr& out) { return machine().mem_host_get_device_pointer(host, out); });
}

CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t size, unsigned flags) {
  return give_address(
      ptr, [&](DevicePtr& out) { return machine().mem_alloc_managed(size, flags, out); });
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size, CUdeviceptr inside) {
  AddressRange range;
  const CuResult result = machine().mem_get_address_range(device_ptr(inside), range);
  if (result != CuResult::success) return to_cuda(result);
  if (begin != nullptr) *begin = vpmm::to_integer(range.begin);
  if (size != nullptr) *size = range.size;
  return CUDA_SUCCESS;
}

// Managed memory is told from the device's own by nothing here.
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  int device = 0;
  const bool is_device = machine().pointer_get_device(device_ptr(ptr), device) == CuResult::success;
  if (!is_device && !is_pinned(ptr)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<CUmemorytype*>(data) = is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data) = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = ptr;
      return CUDA_SUCCESS;
    default:
      vpmm::sim_gpu::say_unsupported("this attribute of cuPointerGetAttribute");
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// --- other processes ---

CUresult cuIpcGetMemHandle(CUipcMemHandle* shared, CUdeviceptr ptr) {
  vpmm::driver::IpcMemHandle bytes{};
  const CuResult result = machine().ipc_get_mem_handle(device_ptr(ptr), bytes);
  static_assert(sizeof bytes == sizeof *shared);
  if (result == CuResult::success) std::memcpy(shared, &bytes, sizeof bytes);
  return to_cuda(result);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* ptr, CUipcMemHandle shared, unsigned) {
  vpmm::driver::IpcMemHandle bytes{};
  std::memcpy(&bytes, &shared, sizeof bytes);
  return give_address(ptr,
                      [&](DevicePtr& out) { return machine().ipc_open_mem_handle(bytes, out); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  return to_cuda(machine().ipc_close_mem_handle(device_ptr(ptr)));
}
