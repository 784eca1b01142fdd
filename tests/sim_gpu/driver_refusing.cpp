// SPDX-License-Identifier: Apache-2.0
// sim_gpu: functions of libcuda that PyTorch's libraries must find and nothing here can do; no CUDA
// headers, so that one parameter list fits all.
#include <cstring>

namespace vpmm::sim_gpu {
void say_unsupported(const char* function);
void* find_refusing(const char* symbol);
}  // namespace vpmm::sim_gpu

namespace {

constexpr int kNotSupported = 801;

int refuse(const char* function) {
  vpmm::sim_gpu::say_unsupported(function);
  return kNotSupported;
}

}  // namespace

#define VPMM_REFUSING(X)                         \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuFuncSetCacheConfig)                        \
  X(cuLaunchCooperativeKernel)                   \
  X(cuLaunchKernel)                              \
  X(cuLinkAddData_v2)                            \
  X(cuLinkComplete)                              \
  X(cuLinkCreate_v2)                             \
  X(cuMemGetAllocationPropertiesFromHandle)      \
  X(cuMemRetainAllocationHandle)                 \
  X(cuModuleGetFunction)                         \
  X(cuModuleLoad)                                \
  X(cuModuleLoadData)                            \
  X(cuModuleLoadDataEx)                          \
  X(cuModuleUnload)                              \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuStreamWriteValue32)                        \
  X(cuTensorMapEncodeTiled)

#define VPMM_DEFINE(name) \
  extern "C" int name() { return refuse(#name); }
VPMM_REFUSING(VPMM_DEFINE)

void* vpmm::sim_gpu::find_refusing(const char* symbol) {
#define VPMM_FIND(name) \
  if (std::strcmp(symbol, #name) == 0) return reinterpret_cast<void*>(&name);
  VPMM_REFUSING(VPMM_FIND)
  return nullptr;
}
