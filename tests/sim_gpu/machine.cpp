// SPDX-License-Identifier: Apache-2.0
// sim_gpu: what the environment says about the simulated computer, and what tests ask of it beside
// CUDA.
#include "sim_gpu/machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim_gpu/sim_gpu.h"

namespace vpmm::sim_gpu {
namespace {

// The number that a variable holds; ends the process if it holds something else.
std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  if (*end == '\0') return number;
  std::fprintf(stderr, "sim_gpu: %s=%s is not a number\n", variable, text);
  std::abort();
}

driver::sim::SimOptions options() {
  driver::sim::SimOptions options;
  options.device_count = static_cast<int>(number_of("VPMM_SIM_GPU_DEVICES", 1));
  options.capacity = number_of("VPMM_SIM_GPU_BYTES", options.capacity);
  if (const std::uint64_t seed = number_of("VPMM_SIM_GPU_SEED", 0); seed != 0) {
    options.schedule = driver::sim::Schedule::random;
    options.seed = seed;
  }
  return options;
}

}  // namespace

driver::sim::SimDriver& machine() {
  static auto* const one = new driver::sim::SimDriver(options());
  return *one;
}

void say_unsupported(const char* function) {
  if (std::getenv("VPMM_SIM_GPU_VERBOSE") != nullptr)
    std::fprintf(stderr, "sim_gpu: %s is not supported\n", function);
}

InContextOf::InContextOf(driver::DeviceOrdinal device) : device_(device) {
  driver::ContextHandle context{};
  machine().ctx_get_current(before_);
  is_retained_ = machine().device_primary_ctx_retain(device, context) == driver::CuResult::success;
  if (is_retained_) machine().ctx_set_current(context);
}

InContextOf::~InContextOf() {
  machine().ctx_set_current(before_);
  if (is_retained_) machine().device_primary_ctx_release(device_);
}

}  // namespace vpmm::sim_gpu

using vpmm::sim_gpu::machine;

extern "C" unsigned long long vpmm_sim_gpu_hazards(char* text, size_t size) {
  std::string all;
  for (const auto& hazard : machine().hazards()) all += hazard.describe() + "\n";
  if (size > 0) {
    const size_t copied = std::min(all.size(), size - 1);
    std::memcpy(text, all.data(), copied);
    text[copied] = '\0';
  }
  return machine().hazard_count();
}

extern "C" CUresult vpmm_sim_gpu_launch(const char* name, unsigned long long duration_ns,
                                        CUstream stream) {
  vpmm::driver::sim::Kernel kernel;
  kernel.name = name;
  kernel.duration_ns = duration_ns;
  return vpmm::sim_gpu::to_cuda(machine().launch(kernel, vpmm::sim_gpu::stream_of(stream)));
}

extern "C" void vpmm_sim_gpu_say_unsupported(const char* function) {
  vpmm::sim_gpu::say_unsupported(function);
}
