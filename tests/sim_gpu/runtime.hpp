// SPDX-License-Identifier: Apache-2.0
// sim_gpu: what the simulated CUDA runtime keeps per thread: the device, the last error, the launch
// being prepared.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace vpmm::sim_gpu {

// Keeps the error for cudaGetLastError. Both interfaces use the same numbers.
cudaError_t answer(CUresult result);
cudaError_t answer(cudaError_t error);

// The device's primary context is current from here on, as with any call of the runtime that needs
// one.
CUresult enter();

// answer(call()), in the context of the thread's device.
template <typename Call>
cudaError_t in_context(Call&& call) {
  const CUresult entered = enter();
  return answer(entered == CUDA_SUCCESS ? call() : entered);
}

cudaError_t unsupported(const char* function);  // says so, and fails
int refuse(const char* function);               // the same, for a file without CUDA's headers

inline CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
inline void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace vpmm::sim_gpu
