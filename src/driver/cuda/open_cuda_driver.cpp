// SPDX-License-Identifier: Apache-2.0
// driver/cuda: opens libcuda, and words the errors of a missing one.
#include <dlfcn.h>
#include <fmt/format.h>

#include "driver/cuda/cuda_driver.hpp"

namespace vpmm::driver::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Error no_library(const char* reason) {
  return {
      ErrorCode::no_driver,
      fmt::format("no CUDA driver: {} was not found; use the simulator with VPMM_DRIVER=sim ({})",
                  kLibrary, reason)};
}

Error init_failed(CuResult result) {
  const bool no_gpu = result == CuResult::no_device;
  return {
      no_gpu ? ErrorCode::no_driver : ErrorCode::driver_failed,
      fmt::format("the CUDA driver is installed but cuInit failed with {} ({}){}; without a usable "
                  "GPU, use the "
                  "simulator with VPMM_DRIVER=sim",
                  to_string(result), static_cast<int>(result), no_gpu ? ": it sees no GPU" : "")};
}

}  // namespace

Result<std::unique_ptr<Driver>> open_cuda_driver() {
  // Stays open: other libraries of the process use it, and its threads outlive us at exit.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    return no_library(reason ? reason : "no reason given");
  }
  return open_cuda_driver([library](const char* name) { return dlsym(library, name); });
}

Result<std::unique_ptr<Driver>> open_cuda_driver(const ExportLookup& exports) {
  VPMM_TRY_ASSIGN(const SymbolFinder finder, SymbolFinder::create(exports));
  VPMM_TRY_ASSIGN(const CudaSymbols symbols, CudaSymbols::load(finder));
  const CuResult result = symbols.init(0);
  if (result != CuResult::success) return init_failed(result);
  return std::unique_ptr<Driver>(std::make_unique<CudaDriver>(finder, symbols));
}

}  // namespace vpmm::driver::cuda
