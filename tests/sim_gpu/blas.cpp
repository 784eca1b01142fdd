// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the functions of cuBLAS that PyTorch multiplies with; they take their time on a stream
// and compute nothing.
//
// The products need the handle alone, which comes first, so that one parameter list fits all.
#include <cuda.h>

#include "sim_gpu/sim_gpu.h"

namespace {

constexpr unsigned long long kProductNs = 20000;
constexpr int kSuccess = 0, kExecutionFailed = 13;  // cublasStatus_t

struct Handle {
  CUstream stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;
};

struct WayToMultiply {  // cublasLtMatmulHeuristicResult_t
  unsigned long long algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

int launch(CUstream stream) {
  return vpmm_sim_gpu_launch("matrix product", kProductNs, stream) == CUDA_SUCCESS
             ? kSuccess
             : kExecutionFailed;
}

}  // namespace

extern "C" {

int cublasCreate_v2(Handle** handle) {
  *handle = new Handle;
  return kSuccess;
}

int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kSuccess;
}

int cublasSetStream_v2(Handle* handle, CUstream stream) {
  handle->stream = stream;
  return kSuccess;
}

int cublasSetWorkspace_v2(Handle*, void*, size_t) { return kSuccess; }

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return kSuccess;
}

int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return kSuccess;
}

int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return kSuccess;
}

int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return kSuccess;
}

#define VPMM_PRODUCT(name) \
  int name(Handle* handle) { return launch(handle->stream); }
#define VPMM_PRODUCTS(type)           \
  VPMM_PRODUCT(cublas##type##gemm_v2) \
  VPMM_PRODUCT(cublas##type##gemv_v2) \
  VPMM_PRODUCT(cublas##type##gemmStridedBatched)
VPMM_PRODUCTS(S)
VPMM_PRODUCTS(D)
VPMM_PRODUCTS(C)
VPMM_PRODUCTS(Z)
VPMM_PRODUCT(cublasSgemmEx)
VPMM_PRODUCT(cublasGemmEx)
VPMM_PRODUCT(cublasGemmStridedBatchedEx)
VPMM_PRODUCT(cublasSdot_v2)
VPMM_PRODUCT(cublasDdot_v2)
VPMM_PRODUCT(cublasDotEx)

// Of cublasLt, whose descriptions of matrices need no GPU: the one way to multiply, and the
// product.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                   WayToMultiply* ways, int* count) {
  ways[0] = {};
  *count = 1;
  return kSuccess;
}

int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, size_t, CUstream stream) {
  return launch(stream);
}

}  // extern "C"
