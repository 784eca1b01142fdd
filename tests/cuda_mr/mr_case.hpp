// SPDX-License-Identifier: Apache-2.0
// cuda_mr tests: a private pool on the simulated GPU for each test, with streams of the runtime's.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "sim_gpu/sim_gpu.h"
#include "vpmm/cuda_mr.hpp"

namespace vpmm::cuda_mr_test {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr unsigned long long kLongNs = 1'000'000'000'000;  // lasts until somebody waits

class MrCase : public testing::Test {
 protected:
  MrCase() {
    for (cudaStream_t& stream : streams_) EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    pool_.add_event_callback((1U << VPMM_EVENT_ALLOCATE) | (1U << VPMM_EVENT_FREE), &MrCase::keep,
                             &events_);
    events_.reserve(1000);  // no callback of the pool asks for memory
    hazards_before_ = vpmm_sim_gpu_hazards(nullptr, 0);
  }
  ~MrCase() override {
    std::string text(4096, '\0');
    EXPECT_EQ(vpmm_sim_gpu_hazards(text.data(), text.size()), hazards_before_) << text;
    EXPECT_EQ(pool_.statistics().live_allocations, 0U);
    for (const cudaStream_t stream : streams_) {
      if (stream != nullptr) {
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      }
    }
  }

  // What the pool was told, in order.
  const vpmm_event& last_event() const { return events_.back(); }
  static vpmm_stream handle(std::size_t number) { return reinterpret_cast<vpmm_stream>(number); }
  static void keep_busy(cudaStream_t stream) {
    EXPECT_EQ(vpmm_sim_gpu_launch("busy", kLongNs, stream), CUDA_SUCCESS);
  }

  memory_pool pool_;
  std::array<cudaStream_t, 2> streams_{};
  std::vector<vpmm_event> events_;

 private:
  static void keep(void* events, const vpmm_event* event) {
    static_cast<std::vector<vpmm_event>*>(events)->push_back(*event);
  }

  unsigned long long hazards_before_ = 0;
};

}  // namespace vpmm::cuda_mr_test
