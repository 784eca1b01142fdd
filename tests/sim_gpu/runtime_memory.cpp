// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the CUDA runtime's functions about memory: allocation, copies, fills, what a pointer is,
// other processes.
#include <cstring>

#include "sim_gpu/runtime.hpp"

using vpmm::sim_gpu::address;
using vpmm::sim_gpu::answer;
using vpmm::sim_gpu::in_context;
using vpmm::sim_gpu::pointer_to;

namespace {

template <typename Call>
cudaError_t give_pointer(void** out, Call&& call) {
  CUdeviceptr made = 0;
  const cudaError_t error = in_context([&] { return call(&made); });
  if (error == cudaSuccess) *out = pointer_to(made);
  return error;
}

bool says_neither_end(cudaMemcpyKind kind) {
  return kind == cudaMemcpyDefault || kind == cudaMemcpyHostToHost;
}

CUresult copy_in_order(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                       CUstream stream) {
  if (says_neither_end(kind)) return cuMemcpyAsync(address(to), address(from), size, stream);
  if (kind == cudaMemcpyHostToDevice) return cuMemcpyHtoDAsync(address(to), from, size, stream);
  if (kind == cudaMemcpyDeviceToHost) return cuMemcpyDtoHAsync(to, address(from), size, stream);
  return cuMemcpyDtoDAsync(address(to), address(from), size, stream);
}

// Copies that the host is in end before the call does.
CUresult copy_now(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) return cuMemcpyHtoD(address(to), from, size);
  if (kind == cudaMemcpyDeviceToHost) return cuMemcpyDtoH(to, address(from), size);
  const CUresult result = copy_in_order(to, from, size, kind, nullptr);
  return result == CUDA_SUCCESS && says_neither_end(kind) ? cuStreamSynchronize(nullptr) : result;
}

}  // namespace

// --- allocation ---

cudaError_t cudaMalloc(void** ptr, size_t size) {
  if (size == 0) {
    *ptr = nullptr;
    return cudaSuccess;
  }
  return give_pointer(ptr, [&](CUdeviceptr* made) { return cuMemAlloc(made, size); });
}

cudaError_t cudaFree(void* ptr) {
  return in_context([&] { return ptr == nullptr ? CUDA_SUCCESS : cuMemFree(address(ptr)); });
}

cudaError_t cudaMallocManaged(void** ptr, size_t size, unsigned flags) {
  return give_pointer(ptr, [&](CUdeviceptr* made) { return cuMemAllocManaged(made, size, flags); });
}

cudaError_t cudaMallocAsync(void** ptr, size_t size, cudaStream_t stream) {
  return give_pointer(ptr, [&](CUdeviceptr* made) { return cuMemAllocAsync(made, size, stream); });
}

cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream) {
  return in_context([&] { return cuMemFreeAsync(address(ptr), stream); });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return in_context([&] { return cuMemGetInfo(free, total); });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return in_context([&] { return cuDeviceGetDefaultMemPool(pool, device); });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return in_context(
      [&] { return cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return in_context(
      [&] { return cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes_to_keep) {
  return in_context([&] { return cuMemPoolTrimTo(pool, bytes_to_keep); });
}

// --- host memory ---

cudaError_t cudaHostAlloc(void** host, size_t size, unsigned flags) {
  return in_context([&] { return cuMemHostAlloc(host, size, flags); });
}

cudaError_t cudaMallocHost(void** host, size_t size) { return cudaHostAlloc(host, size, 0); }

cudaError_t cudaFreeHost(void* host) {
  return in_context([&] { return host == nullptr ? CUDA_SUCCESS : cuMemFreeHost(host); });
}

cudaError_t cudaHostRegister(void* host, size_t size, unsigned flags) {
  return in_context([&] { return cuMemHostRegister(host, size, flags); });
}

cudaError_t cudaHostUnregister(void* host) {
  return in_context([&] { return cuMemHostUnregister(host); });
}

cudaError_t cudaHostGetDevicePointer(void** ptr, void* host, unsigned flags) {
  return give_pointer(
      ptr, [&](CUdeviceptr* made) { return cuMemHostGetDevicePointer(made, host, flags); });
}

// --- copies and fills ---

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return in_context([&] { return size == 0 ? CUDA_SUCCESS : copy_now(to, from, size, kind); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return in_context(
      [&] { return size == 0 ? CUDA_SUCCESS : copy_in_order(to, from, size, kind, stream); });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                cudaStream_t stream) {
  return in_context([&] {
    return size == 0
               ? CUDA_SUCCESS
               : cuMemcpyPeerAsync(address(to), nullptr, address(from), nullptr, size, stream);
  });
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  return in_context(
      [&] { return cuMemsetD8(address(to), static_cast<unsigned char>(value), size); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return in_context([&] {
    return cuMemsetD8Async(address(to), static_cast<unsigned char>(value), size, stream);
  });
}

// --- what a pointer is, and other processes ---

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  cudaPointerAttributes made{};
  CUmemorytype type{};
  made.type = cudaMemoryTypeUnregistered;
  made.device = cudaInvalidDeviceId;
  made.hostPointer = const_cast<void*>(ptr);
  const cudaError_t error = in_context([&] {
    const CUresult known =
        cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(ptr));
    if (known != CUDA_SUCCESS) return CUDA_SUCCESS;
    made.type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    made.devicePointer = made.hostPointer;
    if (type == CU_MEMORYTYPE_DEVICE) made.hostPointer = nullptr;
    return cuPointerGetAttribute(&made.device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(ptr));
  });
  if (error == cudaSuccess) *attributes = made;
  return error;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* ptr) {
  CUipcMemHandle made{};
  static_assert(sizeof made == sizeof *handle);
  const cudaError_t error = in_context([&] { return cuIpcGetMemHandle(&made, address(ptr)); });
  if (error == cudaSuccess) std::memcpy(handle, &made, sizeof made);
  return error;
}

cudaError_t cudaIpcOpenMemHandle(void** ptr, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  return give_pointer(ptr,
                      [&](CUdeviceptr* made) { return cuIpcOpenMemHandle(made, shared, flags); });
}

cudaError_t cudaIpcCloseMemHandle(void* ptr) {
  return in_context([&] { return cuIpcCloseMemHandle(address(ptr)); });
}
