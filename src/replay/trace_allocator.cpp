// SPDX-License-Identifier: Apache-2.0
// replay: names of allocators, and their classes.
#include "replay/trace_allocator.hpp"

#include "replay/driver_allocators.hpp"
#include "replay/pool_allocator.hpp"

namespace vpmm::replay {

const char* to_string(AllocatorKind kind) {
  switch (kind) {
    case AllocatorKind::vpmm: return "vpmm";
    case AllocatorKind::vpmm_page: return "vpmm-page";
    case AllocatorKind::cuda: return "cuda";
    case AllocatorKind::cuda_async: return "cuda-async";
  }
  return "unknown";
}

AllocatorRecipe allocator_recipe(AllocatorKind kind, const settings::Config& config) {
  const std::string name = to_string(kind);
  if (kind == AllocatorKind::cuda) return {name, make_plain_allocator};
  if (kind == AllocatorKind::cuda_async) return {name, make_stream_ordered_allocator};
  const auto make = kind == AllocatorKind::vpmm_page ? make_page_allocator : make_pool_allocator;
  return {name, [make, config](driver::Driver& driver) { return make(driver, config); }};
}

}  // namespace vpmm::replay
