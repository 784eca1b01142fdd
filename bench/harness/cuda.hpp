// SPDX-License-Identifier: Apache-2.0
// bench/harness: the few calls of libcuda that the benchmarks themselves make, found at run time:
// no toolkit is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vpmm::bench {

using CudaStatus = int;  // CUresult; 0 is success
using CudaStream = void*;
using CudaEvent = void*;
using DevicePtr = unsigned long long;

struct CudaPoolProperties {  // CUmemPoolProps
  int allocation_type = 1;   // pinned
  int handle_types = 0;
  struct {
    int type = 1;  // a device
    int id = 0;
  } location;
  void* win32_security_attributes = nullptr;
  std::size_t max_size = 0;
  unsigned char reserved[56] = {};
};

enum class PoolAttribute : int { release_threshold = 4, reserved_now = 5, reserved_high = 6 };

struct Cuda {
#define VPMM_BENCH_CUDA(symbol, version, parameters) CudaStatus(*symbol) parameters = nullptr;
#include "harness/cuda_symbols.def"
#undef VPMM_BENCH_CUDA
};

// Which libcuda answers. `zero_cost` is ours (zero_cost/libcuda.cpp): it does nothing, at once, and
// needs no GPU.
enum class Library { real, zero_cost };

// Opens the library for the whole process and makes device 0's primary context current in the
// calling thread. Whatever opens libcuda.so.1 later, the pool included, gets the same one. Throws
// Unavailable.
void open_cuda(Library library);
const Cuda& cuda();
// Every thread but the one that called open_cuda must call it before anything else.
void enter_context();

// Ends the process when `status` is no success: a benchmark that goes on after that measures
// something else.
void must(CudaStatus status, const char* what);

// Lives as long as the process, for PyTorch's expandable segments synchronise with the stream that
// they were made for whenever they are given back, even if it was destroyed meanwhile.
class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CudaStream handle() const { return handle_; }

 private:
  CudaStream handle_ = nullptr;
};

}  // namespace vpmm::bench
