// SPDX-License-Identifier: Apache-2.0
// tests: choosing a world.
#include "support/gpu_world.hpp"

#include <cstdlib>
#include <cstring>

namespace vpmm::test {

const char* to_string(WorldKind kind) { return kind == WorldKind::sim ? "sim" : "cuda"; }

Result<std::unique_ptr<GpuWorld>> open_world(WorldKind kind) {
  return kind == WorldKind::sim ? open_sim_world() : open_cuda_world();
}

bool gpu_is_required() {
  const char* value = std::getenv("VPMM_REQUIRE_GPU");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace vpmm::test
