// SPDX-License-Identifier: Apache-2.0
// driver/cuda: the entry points of libcuda, looked up once.
#pragma once

#include <functional>

#include "base/result.hpp"
#include "driver/cuda/cuda_abi.hpp"
#include "driver/driver.hpp"

namespace vpmm::driver::cuda {

// Finds an export of libcuda by name; dlsym, except in tests.
using ExportLookup = std::function<void*(const char* name)>;

// Finds entry points by name and interface version through cuGetProcAddress. Always the variants of
// the legacy default stream: handle 0 must mean the same as in the caller's own CUDA calls.
class SymbolFinder {
 public:
  static Result<SymbolFinder> create(const ExportLookup& exports);

  // Null if this driver lacks the entry point, with the driver's answer in `result`.
  void* find(const char* symbol, int version, CuResult& result) const;

 private:
  GetProcAddress current_ = nullptr;
  GetProcAddressV1 old_ = nullptr;  // only where `current_` is null
};

// A pointer per call, null where an optional symbol is missing.
struct CudaSymbols {
#define VPMM_CUDA_SYMBOL(call, symbol, version, need, parameters) \
  CuResult(*call) parameters = nullptr;
#include "driver/cuda/cuda_symbols.def"
#undef VPMM_CUDA_SYMBOL

  static Result<CudaSymbols> load(const SymbolFinder& finder);
  bool has(Call which) const;
};

}  // namespace vpmm::driver::cuda
