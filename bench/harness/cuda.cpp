// SPDX-License-Identifier: Apache-2.0
// bench/harness: opening libcuda and entering its context.
#include "harness/cuda.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

using GetProcAddress = CudaStatus (*)(const char* symbol, void** function, int version,
                                      std::uint64_t flags, int* status);
constexpr std::uint64_t kLegacyStream = 1;  // handle 0 means the same here as in the peers
constexpr unsigned kNonBlocking = 1;

Cuda g_cuda;
void* g_context = nullptr;

void* open_library(Library library) {
  // Its soname is libcuda.so.1, so the loader takes it for that from now on.
  const char* name =
      library == Library::zero_cost ? VPMM_BENCH_FOLDER "/zero_cost/libcuda.so.1" : "libcuda.so.1";
  void* const opened = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr) throw Unavailable(dlerror());
  return opened;
}

void find(GetProcAddress get, const char* symbol, int version, void** function) {
  int found = 0;
  if (get(symbol, function, version, kLegacyStream, &found) != 0 || *function == nullptr) {
    throw Unavailable(std::string("the CUDA driver has no ") + symbol);
  }
}

}  // namespace

void open_cuda(Library library) {
  void* const opened = open_library(library);
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(opened, "cuGetProcAddress_v2"));
  if (get == nullptr) throw Unavailable("the CUDA driver is older than 12.0");
#define VPMM_BENCH_CUDA(symbol, version, parameters) \
  find(get, #symbol, version, reinterpret_cast<void**>(&g_cuda.symbol));
#include "harness/cuda_symbols.def"
#undef VPMM_BENCH_CUDA
  if (g_cuda.cuInit(0) != 0) throw Unavailable("cuInit failed: no usable GPU");
  must(g_cuda.cuDevicePrimaryCtxRetain(&g_context, 0), "cuDevicePrimaryCtxRetain");
  enter_context();
}

const Cuda& cuda() { return g_cuda; }

void enter_context() { must(g_cuda.cuCtxSetCurrent(g_context), "cuCtxSetCurrent"); }

void must(CudaStatus status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s failed with %d\n", what, status);
  std::_Exit(1);
}

Stream::Stream() { must(cuda().cuStreamCreate(&handle_, kNonBlocking), "cuStreamCreate"); }

}  // namespace vpmm::bench
