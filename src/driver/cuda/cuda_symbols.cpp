// SPDX-License-Identifier: Apache-2.0
// driver/cuda: finds libcuda's entry points, some of them optional.
#include "driver/cuda/cuda_symbols.hpp"

#include <fmt/format.h>

namespace vpmm::driver::cuda {
namespace {

enum class Need { required, optional };

Error missing_symbol(const char* symbol, int version, CuResult result) {
  return {ErrorCode::unsupported,
          fmt::format("the CUDA driver does not offer {} as of CUDA {}.{} ({}); a driver for CUDA "
                      "11.4 or newer is needed",
                      symbol, version / 1000, version % 1000 / 10, to_string(result))};
}

}  // namespace

Result<SymbolFinder> SymbolFinder::create(const ExportLookup& exports) {
  SymbolFinder finder;
  finder.current_ = reinterpret_cast<GetProcAddress>(exports("cuGetProcAddress_v2"));
  if (!finder.current_)
    finder.old_ = reinterpret_cast<GetProcAddressV1>(exports("cuGetProcAddress"));
  if (!finder.current_ && !finder.old_) {
    return Error{ErrorCode::unsupported,
                 "the CUDA driver does not export cuGetProcAddress; a driver for CUDA 11.4 or "
                 "newer is needed"};
  }
  return finder;
}

void* SymbolFinder::find(const char* symbol, int version, CuResult& result) const {
  void* function = nullptr;
  int status = 0;
  result = current_ ? current_(symbol, &function, version, kProcAddressLegacyStream, &status)
                    : old_(symbol, &function, version, kProcAddressLegacyStream);
  if (result != CuResult::success) return nullptr;
  if (!function) result = CuResult::not_found;  // newer drivers answer success with a null pointer
  return function;
}

Result<CudaSymbols> CudaSymbols::load(const SymbolFinder& finder) {
  CudaSymbols symbols;
  CuResult result = CuResult::success;
#define VPMM_CUDA_SYMBOL(call, symbol, version, need, parameters)                                 \
  symbols.call = reinterpret_cast<decltype(symbols.call)>(finder.find(#symbol, version, result)); \
  if (!symbols.call && Need::need == Need::required)                                              \
    return missing_symbol(#symbol, version, result);
#include "driver/cuda/cuda_symbols.def"
#undef VPMM_CUDA_SYMBOL
  return symbols;
}

bool CudaSymbols::has(Call which) const {
  switch (which) {
#define VPMM_CUDA_SYMBOL(call, symbol, version, need, parameters) \
  case Call::call:                                                \
    return this->call != nullptr;
#include "driver/cuda/cuda_symbols.def"
#undef VPMM_CUDA_SYMBOL
  }
  return false;
}

}  // namespace vpmm::driver::cuda
