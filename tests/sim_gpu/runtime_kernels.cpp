// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the CUDA runtime's functions about kernels, which take their time on a stream and
// compute nothing.
//
// A kernel takes kKernelNs of the virtual clock. PyTorch's `spin_kernel`, which torch.cuda._sleep
// launches, takes a nanosecond for each of its cycles: so a test says how long a stream is busy.
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "sim_gpu/runtime.hpp"
#include "sim_gpu/sim_gpu.h"

using vpmm::sim_gpu::answer;
using vpmm::sim_gpu::in_context;

namespace {

constexpr unsigned long long kKernelNs = 5000;

struct Spins {
  std::mutex mutex;
  std::unordered_set<const void*> functions;
};

Spins& spins() {
  static auto* const known = new Spins;
  return *known;
}

struct LaunchConfiguration {
  dim3 grid, block;
  size_t shared_memory = 0;
  cudaStream_t stream = nullptr;
};

std::vector<LaunchConfiguration>& prepared() {
  thread_local std::vector<LaunchConfiguration> launches;
  return launches;
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  unsigned long long duration_ns = kKernelNs;
  {
    const std::lock_guard lock(spins().mutex);
    if (spins().functions.count(function) != 0)
      std::memcpy(&duration_ns, arguments[0], sizeof duration_ns);
  }
  return in_context([&] { return vpmm_sim_gpu_launch("kernel", duration_ns, stream); });
}

}  // namespace

// --- what compiled device code calls when its library is loaded, and when a kernel is launched ---

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  if (std::strstr(name, "spin_kernel") == nullptr) return;
  const std::lock_guard lock(spins().mutex);
  spins().functions.insert(host_function);
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_memory,
                                     cudaStream_t stream) {
  prepared().push_back({grid, block, shared_memory, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_memory,
                                       void* stream) {
  if (prepared().empty()) return answer(cudaErrorMissingConfiguration);
  const LaunchConfiguration configuration = prepared().back();
  prepared().pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_memory = configuration.shared_memory;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t,
                               cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  return launch(function, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function,
                                void** arguments) {
  return launch(function, arguments, configuration->stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, size_t,
                                        cudaStream_t stream) {
  return launch(function, arguments, stream);
}

// --- what a kernel needs: nothing ---

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  cudaFuncAttributes made{};
  made.maxThreadsPerBlock = 1024;
  made.numRegs = 32;
  made.binaryVersion = made.ptxVersion = 90;
  *attributes = made;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
