// sim_gpu: functions of the CUDA runtime that PyTorch's libraries must find and nothing here can
// do; no CUDA headers, so that one parameter list fits all.
namespace vpmm::sim_gpu {
int refuse(const char* function);  // runtime.hpp's unsupported(), without CUDA's types
}  // namespace vpmm::sim_gpu

#define VPMM_REFUSING(name) \
  extern "C" int name() { return vpmm::sim_gpu::refuse(#name); }

VPMM_REFUSING(cudaGetSymbolAddress)
VPMM_REFUSING(cudaGraphDebugDotPrint)
VPMM_REFUSING(cudaGraphNodeGetDependencies)
VPMM_REFUSING(cudaLaunchHostFunc)
VPMM_REFUSING(cudaMemPoolSetAccess)
VPMM_REFUSING(cudaMemcpy2DAsync)
VPMM_REFUSING(cudaMemcpyToSymbol)
VPMM_REFUSING(cudaStreamAddCallback)
