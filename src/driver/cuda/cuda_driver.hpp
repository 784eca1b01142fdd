// SPDX-License-Identifier: Apache-2.0
// driver/cuda: the real CUDA driver behind the door; opens libcuda on demand, never at load.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "driver/cuda/cuda_symbols.hpp"
#include "driver/driver.hpp"

namespace vpmm::driver::cuda {

// Opens libcuda.so.1 and calls cuInit.
// no_driver: the library or a GPU is missing. unsupported: the driver is too old. driver_failed:
// cuInit failed otherwise.
Result<std::unique_ptr<Driver>> open_cuda_driver();
// Same over a library that is open already; for tests.
Result<std::unique_ptr<Driver>> open_cuda_driver(const ExportLookup& exports);

// Thread-safe: immutable after construction. The destructor makes no call, so it may run, or not
// run, at any point of process exit.
class CudaDriver final : public Driver {
 public:
  CudaDriver(const SymbolFinder& finder, const CudaSymbols& symbols)
      : finder_(finder), cuda_(symbols) {}

  // Any entry point of libcuda, beyond the door. Null if this driver lacks it.
  void* symbol(const char* name, int version) const;

  const char* name() const override { return "cuda"; }
  bool has(Call call) const override { return cuda_.has(call); }
  std::uint64_t now_ns() override;
  void sleep_ns(std::uint64_t ns) override;

#define VPMM_DRIVER_METHOD(name, parameters, arguments) CuResult name parameters override;
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

 private:
  const SymbolFinder finder_;
  const CudaSymbols cuda_;
};

}  // namespace vpmm::driver::cuda
