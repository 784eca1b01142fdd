// SPDX-License-Identifier: Apache-2.0
// sim_gpu: libcuda's functions about the driver, devices and contexts.
#include <cuda.h>

#include <cstring>
#include <string>
#include <vector>

#include "sim_gpu/machine.hpp"

using vpmm::driver::ContextHandle;
using vpmm::driver::ContextId;
using vpmm::driver::CuResult;
using vpmm::driver::DeviceAttribute;
using vpmm::sim_gpu::handle;
using vpmm::sim_gpu::machine;
using vpmm::sim_gpu::pointer;
using vpmm::sim_gpu::to_cuda;

namespace {

// What the simulator has no opinion about; of a common GPU, so that programs choose ordinary ways.
// All others are 0.
int ordinary_attribute(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 233472;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 52428800;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;  // kHz: a cycle is a nanosecond
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: return 1;
    default: return 0;
  }
}

std::vector<CUcontext>& pushed() {
  thread_local std::vector<CUcontext> contexts;
  return contexts;
}

}  // namespace

CUresult cuInit(unsigned) { return to_cuda(machine().init()); }

CUresult cuDriverGetVersion(int* version) {
  return to_cuda(machine().driver_get_version(*version));
}

CUresult cuDeviceGetCount(int* count) { return to_cuda(machine().device_get_count(*count)); }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  int count = 0;
  const CuResult result = machine().device_get_count(count);
  if (result != CuResult::success) return to_cuda(result);
  if (ordinal < 0 || ordinal >= count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  std::string text;
  const CuResult result = machine().device_get_name(device, text);
  if (result == CuResult::success && size > 0) {
    std::strncpy(name, text.c_str(), static_cast<size_t>(size));
    name[size - 1] = '\0';
  }
  return to_cuda(result);
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  vpmm::driver::Uuid bytes{};
  const CuResult result = machine().device_get_uuid(device, bytes);
  static_assert(sizeof bytes == sizeof *uuid);
  if (result == CuResult::success) std::memcpy(uuid, &bytes, sizeof bytes);
  return to_cuda(result);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const CuResult result =
      machine().device_get_attribute(static_cast<DeviceAttribute>(attribute), device, *value);
  if (result != CuResult::invalid_value) return to_cuda(result);
  *value = ordinary_attribute(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* total, CUdevice device) {
  return to_cuda(machine().device_total_mem(device, *total));
}

CUresult cuDeviceCanAccessPeer(int* answer, CUdevice device, CUdevice peer) {
  bool can = false;
  const CuResult result = machine().device_can_access_peer(device, peer, can);
  if (result == CuResult::success) *answer = can ? 1 : 0;
  return to_cuda(result);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  bool is_active = false;
  const CuResult result = machine().device_primary_ctx_get_state(device, is_active);
  *flags = 0;
  *active = result == CuResult::success && is_active ? 1 : 0;
  return to_cuda(result);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ContextHandle made{};
  const CuResult result = machine().device_primary_ctx_retain(device, made);
  if (result == CuResult::success) *context = pointer<CUcontext>(made);
  return to_cuda(result);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return to_cuda(machine().device_primary_ctx_release(device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return to_cuda(machine().device_primary_ctx_reset(device));
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  ContextHandle current{};
  const CuResult result = machine().ctx_get_current(current);
  if (result == CuResult::success) *context = pointer<CUcontext>(current);
  return to_cuda(result);
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return to_cuda(machine().ctx_set_current(handle<ContextHandle>(context)));
}

CUresult cuCtxPushCurrent(CUcontext context) {
  CUcontext before = nullptr;
  if (const CUresult result = cuCtxGetCurrent(&before); result != CUDA_SUCCESS) return result;
  if (const CUresult result = cuCtxSetCurrent(context); result != CUDA_SUCCESS) return result;
  pushed().push_back(before);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (pushed().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  CUcontext popped = nullptr;
  if (const CUresult result = cuCtxGetCurrent(&popped); result != CUDA_SUCCESS) return result;
  if (const CUresult result = cuCtxSetCurrent(pushed().back()); result != CUDA_SUCCESS)
    return result;
  pushed().pop_back();
  if (context != nullptr) *context = popped;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  ContextId found{};
  const CuResult result = machine().ctx_get_id(handle<ContextHandle>(context), found);
  if (result == CuResult::success) *id = static_cast<unsigned long long>(found);
  return to_cuda(result);
}

CUresult cuCtxGetDevice(CUdevice* device) { return to_cuda(machine().ctx_get_device(*device)); }

CUresult cuCtxSynchronize() { return to_cuda(machine().ctx_synchronize()); }

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = vpmm::driver::to_string(static_cast<CuResult>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }
