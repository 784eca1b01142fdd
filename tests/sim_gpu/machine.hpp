// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the one simulated computer of the process, and CUDA's types in the words of the driver's
// door.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "driver/sim/sim_driver.hpp"

namespace vpmm::sim_gpu {

// Made by the first call from the environment: VPMM_SIM_GPU_DEVICES, VPMM_SIM_GPU_BYTES of each,
// and VPMM_SIM_GPU_SEED, which has work run late and in a random order instead of by the virtual
// clock. Never destroyed: threads of the process may outlive its static objects.
driver::sim::SimDriver& machine();

// Says which call is not there, if VPMM_SIM_GPU_VERBOSE is set.
void say_unsupported(const char* function);

// Entry points that are there because something links against them, and refuse. Null: no such name.
void* find_refusing(const char* symbol);

inline CUresult to_cuda(driver::CuResult result) { return static_cast<CUresult>(result); }

// Between handles of the door and CUDA's, which have the same values.
template <typename Handle, typename T>
Handle handle(T* pointer) {
  return Handle{reinterpret_cast<std::uintptr_t>(pointer)};
}
template <typename T, typename Handle>
T pointer(Handle handle) {
  return reinterpret_cast<T>(static_cast<std::uintptr_t>(handle));
}
inline driver::StreamHandle stream_of(CUstream stream) {
  return handle<driver::StreamHandle>(stream);
}
inline DevicePtr device_ptr(CUdeviceptr ptr) { return DevicePtr{ptr}; }

// Makes a device's primary context current while it lives.
class InContextOf {
 public:
  explicit InContextOf(driver::DeviceOrdinal device);
  ~InContextOf();
  InContextOf(const InContextOf&) = delete;
  InContextOf& operator=(const InContextOf&) = delete;

 private:
  const driver::DeviceOrdinal device_;
  driver::ContextHandle before_{};
  bool is_retained_ = false;
};

}  // namespace vpmm::sim_gpu
