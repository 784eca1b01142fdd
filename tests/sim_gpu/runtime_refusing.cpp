// SPDX-License-Identifier: Apache-2.0
// sim_gpu: functions of the CUDA runtime that PyTorch's libraries must find and nothing here can
// do; no CUDA headers, so that one parameter list fits all.
namespace vpmm::sim_gpu {
int refuse(const char* function);  // runtime.hpp's unsupported(), without CUDA's types
}  // namespace vpmm::sim_gpu

#define VPMM_REFUSING(name) \
  extern "C" int name() { return vpmm::sim_gpu::refuse(#name); }

VPMM_REFUSING(cudaDeviceGetGraphMemAttribute)
VPMM_REFUSING(cudaDeviceSetGraphMemAttribute)
VPMM_REFUSING(cudaGetSymbolAddress)
VPMM_REFUSING(cudaGraphAddNode)
VPMM_REFUSING(cudaGraphConditionalHandleCreate)
VPMM_REFUSING(cudaGraphDebugDotPrint)
VPMM_REFUSING(cudaGraphNodeGetDependencies)
VPMM_REFUSING(cudaGraphRetainUserObject)
VPMM_REFUSING(cudaKernelSetAttributeForDevice)
VPMM_REFUSING(cudaLaunchHostFunc)
VPMM_REFUSING(cudaLibraryGetGlobal)
VPMM_REFUSING(cudaLibraryGetKernel)
VPMM_REFUSING(cudaLibraryGetKernelCount)
VPMM_REFUSING(cudaLibraryGetManaged)
VPMM_REFUSING(cudaLibraryGetUnifiedFunction)
VPMM_REFUSING(cudaLibraryLoadData)
VPMM_REFUSING(cudaLibraryLoadFromFile)
VPMM_REFUSING(cudaLibraryUnload)
VPMM_REFUSING(cudaMemPoolSetAccess)
VPMM_REFUSING(cudaMemcpy2DAsync)
VPMM_REFUSING(cudaMemcpyToSymbol)
VPMM_REFUSING(cudaStreamAddCallback)
VPMM_REFUSING(cudaStreamBeginCaptureToGraph)
VPMM_REFUSING(cudaStreamUpdateCaptureDependencies)
VPMM_REFUSING(cudaUserObjectCreate)
VPMM_REFUSING(cudaUserObjectRelease)
