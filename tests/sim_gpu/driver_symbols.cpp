// SPDX-License-Identifier: Apache-2.0
// sim_gpu: libcuda's cuGetProcAddress, which hands out what driver_*.cpp define.
#include <cuda.h>

#include <string>
#include <unordered_map>

#include "sim_gpu/machine.hpp"

namespace {

// The interface of CUDA 11.3 to 12.2, without edges.
CUresult stream_get_capture_info_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                    CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  return cuStreamGetCaptureInfo(stream, status, id, graph, nodes, nullptr, count);
}

constexpr int kFirstVersionWithEdges = 12030;

#define VPMM_SYMBOL(name) {#name, reinterpret_cast<void*>(&name)},

const std::unordered_map<std::string, void*>& symbols() {
  static const auto* const table = new std::unordered_map<std::string, void*>{
#include "sim_gpu/driver_symbols.def"
  };
  return *table;
}

void* find(const std::string& symbol, int version) {
  if (symbol == "cuStreamGetCaptureInfo" && version < kFirstVersionWithEdges) {
    return reinterpret_cast<void*>(&stream_get_capture_info_v2);
  }
  const auto found = symbols().find(symbol);
  return found != symbols().end() ? found->second : vpmm::sim_gpu::find_refusing(symbol.c_str());
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  *function = find(symbol, version);
  if (status != nullptr) {
    *status =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
