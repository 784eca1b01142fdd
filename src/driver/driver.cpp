// SPDX-License-Identifier: Apache-2.0
// driver: names of calls and results, and the results that end a context.
#include "driver/driver.hpp"

namespace vpmm::driver {
namespace {

enum CudaNumber : int {
#define VPMM_CU_RESULT(name, number) name = number,
#include "driver/results.def"
#undef VPMM_CU_RESULT
};

}  // namespace

const char* to_string(Call call) {
  switch (call) {
#define VPMM_DRIVER_CALL(name, kind) \
  case Call::name:                   \
    return #name;
#include "driver/calls.def"
#undef VPMM_DRIVER_CALL
  }
  return "unrecognised call";
}

bool is_memory_call(Call call) {
  enum class Kind { memory, other };
  switch (call) {
#define VPMM_DRIVER_CALL(name, kind) \
  case Call::name:                   \
    return Kind::kind == Kind::memory;
#include "driver/calls.def"
#undef VPMM_DRIVER_CALL
  }
  return false;
}

const char* to_string(CuResult result) {
  switch (static_cast<int>(result)) {
#define VPMM_CU_RESULT(name, number) \
  case number:                       \
    return #name;
#include "driver/results.def"
#undef VPMM_CU_RESULT
    default: return "unrecognised CUresult";
  }
}

bool is_sticky(CuResult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_DEINITIALIZED:  // the driver itself is shutting down
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
  }
}

}  // namespace vpmm::driver
