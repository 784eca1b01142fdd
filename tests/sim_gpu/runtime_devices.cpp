// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the CUDA runtime's functions about errors, versions, devices and peers.
#include <cuda_profiler_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "sim_gpu/runtime.hpp"
#include "sim_gpu/sim_gpu.h"

using vpmm::sim_gpu::answer;
using vpmm::sim_gpu::in_context;

namespace {

struct ThreadState {
  int device = 0;  // while no context is current
  cudaError_t last_error = cudaSuccess;
};

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

// One reference to each primary context, kept for good.
CUresult context_of(int device, CUcontext& context) {
  static std::mutex mutex;
  static std::array<CUcontext, 64> contexts{};
  const std::lock_guard lock(mutex);
  if (device < 0 || device >= static_cast<int>(contexts.size())) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext& kept = contexts[static_cast<size_t>(device)];
  unsigned flags = 0;
  int is_active = 0;
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return result;
  if (const CUresult result = cuDevicePrimaryCtxGetState(device, &flags, &is_active);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (kept == nullptr || is_active == 0) {
    if (const CUresult result = cuDevicePrimaryCtxRetain(&kept, device); result != CUDA_SUCCESS)
      return result;
  }
  context = kept;
  return CUDA_SUCCESS;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define VPMM_ERROR(name, text) {name, #name, text},
constexpr std::array kErrors = std::to_array<ErrorText>({
    // clang-format off
    VPMM_ERROR(cudaSuccess, "no error")
    VPMM_ERROR(cudaErrorInvalidValue, "invalid argument")
    VPMM_ERROR(cudaErrorMemoryAllocation, "out of memory")
    VPMM_ERROR(cudaErrorInitializationError, "initialization error")
    VPMM_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")
    VPMM_ERROR(cudaErrorInvalidDevice, "invalid device ordinal")
    VPMM_ERROR(cudaErrorDeviceUninitialized, "invalid device context")
    VPMM_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")
    VPMM_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state")
    VPMM_ERROR(cudaErrorNotReady, "device not ready")
    VPMM_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    VPMM_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")
    VPMM_ERROR(cudaErrorContextIsDestroyed, "context is destroyed")
    VPMM_ERROR(cudaErrorHostMemoryAlreadyRegistered,
               "part or all of the requested memory range is already mapped")
    VPMM_ERROR(cudaErrorHostMemoryNotRegistered,
               "pointer does not correspond to a registered memory region")
    VPMM_ERROR(cudaErrorNotSupported, "operation not supported")
    VPMM_ERROR(cudaErrorStreamCaptureUnsupported,
               "operation not permitted when stream is capturing")
    VPMM_ERROR(cudaErrorStreamCaptureInvalidated,
               "operation failed due to a previous error during capture")
    VPMM_ERROR(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capturing stream")
    VPMM_ERROR(cudaErrorCapturedEvent,
               "operation not permitted on an event last recorded in a capturing stream")
    // clang-format on
});

const ErrorText* find_error(cudaError_t error) {
  const auto* const found = std::find_if(
      kErrors.begin(), kErrors.end(), [&](const ErrorText& each) { return each.error == error; });
  return found == kErrors.end() ? nullptr : found;
}

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  cuDeviceGetAttribute(&value, which, device);
  return value;
}

void fill_limits(cudaDeviceProp& prop, int device) {
  const auto get = [&](CUdevice_attribute which) { return attribute(which, device); };
  const auto size = [&](CUdevice_attribute which) { return static_cast<size_t>(get(which)); };
  prop.major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  prop.minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  prop.multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  prop.warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  prop.maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  prop.maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  prop.maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  for (int axis = 0; axis < 3; ++axis) {
    prop.maxThreadsDim[axis] =
        get(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis));
    prop.maxGridSize[axis] =
        get(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis));
  }
  prop.sharedMemPerBlock = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  prop.sharedMemPerBlockOptin = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  prop.sharedMemPerMultiprocessor = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  prop.regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  prop.regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  prop.totalConstMem = size(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  prop.textureAlignment = size(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  prop.l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
}

void fill_abilities(cudaDeviceProp& prop, int device) {
  const auto get = [&](CUdevice_attribute which) { return attribute(which, device); };
  prop.canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  prop.unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  prop.managedMemory = get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  prop.concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  prop.streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  prop.hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  prop.memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  prop.cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  prop.pciBusID = device + 1;
}

}  // namespace

namespace vpmm::sim_gpu {

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) this_thread().last_error = error;
  return error;
}

cudaError_t answer(CUresult result) { return answer(static_cast<cudaError_t>(result)); }

CUresult enter() {
  CUcontext current = nullptr;
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return result;
  if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) return CUDA_SUCCESS;
  CUcontext context = nullptr;
  if (const CUresult result = context_of(this_thread().device, context); result != CUDA_SUCCESS)
    return result;
  return cuCtxSetCurrent(context);
}

cudaError_t unsupported(const char* function) {
  vpmm_sim_gpu_say_unsupported(function);
  return answer(cudaErrorNotSupported);
}

int refuse(const char* function) { return unsupported(function); }

}  // namespace vpmm::sim_gpu

// --- errors and versions ---

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const found = find_error(error);
  if (found != nullptr) return found->name;
  const char* name = nullptr;
  cuGetErrorName(static_cast<CUresult>(error), &name);
  return name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const found = find_error(error);
  return found != nullptr ? found->text : cudaGetErrorName(error);
}

cudaError_t cudaDriverGetVersion(int* version) { return answer(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found{};
  const CUresult result =
      cuGetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : answer(result);  // the status says it
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }

cudaError_t cudaProfilerStop() { return cudaSuccess; }

// --- devices ---

cudaError_t cudaGetDeviceCount(int* count) {
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return answer(result);
  return answer(cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int* device) {
  CUcontext current = nullptr;
  if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr)
    return answer(cuCtxGetDevice(device));
  *device = this_thread().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  CUcontext context = nullptr;
  if (const CUresult result = context_of(device, context); result != CUDA_SUCCESS)
    return answer(result);
  this_thread().device = device;
  return answer(cuCtxSetCurrent(context));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  cudaDeviceProp made{};
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return answer(result);
  const CUresult result = cuDeviceGetName(made.name, static_cast<int>(sizeof made.name), device);
  if (result != CUDA_SUCCESS) return answer(result);
  cuDeviceGetUuid(&made.uuid, device);
  cuDeviceTotalMem(&made.totalGlobalMem, device);
  fill_limits(made, device);
  fill_abilities(made, device);
  *prop = made;
  return cudaSuccess;
}

// The runtime's attributes have the driver's numbers.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return answer(result);
  return answer(cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device));
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", static_cast<unsigned>(device) + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return in_context(cuCtxSynchronize); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return answer(cuCtxGetStreamPriorityRange(least, greatest));
}

// --- peers ---

cudaError_t cudaDeviceCanAccessPeer(int* answer_out, int device, int peer) {
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return answer(result);
  return answer(cuDeviceCanAccessPeer(answer_out, device, peer));
}

// Nothing but the answer changes: what runs on a device touches the other's memory in copies alone,
// and those need none.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  int device = 0, can = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, device, peer); error != cudaSuccess)
    return error;
  if (can == 0) return answer(cudaErrorPeerAccessUnsupported);
  const std::lock_guard lock(mutex);
  return enabled.emplace(device, peer).second ? cudaSuccess
                                              : answer(cudaErrorPeerAccessAlreadyEnabled);
}
