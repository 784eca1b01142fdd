// SPDX-License-Identifier: Apache-2.0
// tests: the simulator, unless the environment names a driver, before anything asks for one.
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

class Simulator : public testing::Environment {
 public:
  void SetUp() override { setenv("VPMM_DRIVER", "sim", 0); }
};

// Named only to be registered before main; GoogleTest owns it.
[[maybe_unused]] const auto* const kSimulator = testing::AddGlobalTestEnvironment(new Simulator);

}  // namespace
