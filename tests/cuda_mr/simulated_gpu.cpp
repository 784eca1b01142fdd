// SPDX-License-Identifier: Apache-2.0
// cuda_mr tests: the pool's driver is the simulated libcuda, whose streams the simulated runtime
// hands out.
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

class SimulatedGpu : public testing::Environment {
 public:
  void SetUp() override { setenv("VPMM_DRIVER", "cuda", 1); }
};

// Named only to be registered before main; GoogleTest owns it.
[[maybe_unused]] const auto* const kSimulatedGpu =
    testing::AddGlobalTestEnvironment(new SimulatedGpu);

}  // namespace
