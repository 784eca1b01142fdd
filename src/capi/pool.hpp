// SPDX-License-Identifier: Apache-2.0
// capi: the struct vpmm_pool.
#pragma once

#include <functional>
#include <memory>

#include "base/line_allocator.hpp"
#include "context/context.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

enum class PoolLifetime { process_wide, of_the_caller };

}  // namespace vpmm::capi

// Read at every call, so alone on its cache lines.
struct alignas(vpmm::kCacheLine) vpmm_pool {
  std::unique_ptr<vpmm::context::Context> context;
  vpmm::capi::PoolLifetime ownership;
};

namespace vpmm::capi {

// A pool on the driver that the process shares; it ends with close_pool().
Result<vpmm_pool*> open_pool(int device, const settings::Config& config, PoolLifetime ownership);
void close_pool(vpmm_pool* pool);
// Visits the pools of the process until `visit` returns false; no pool is closed meanwhile.
void for_each_pool(const std::function<bool(vpmm_pool&)>& visit);

// The process-wide pool of `device`, opened from the environment at the first call.
Result<vpmm_pool*> process_pool(int device);
// The same with settings. bad_configuration: it is open already with others.
Result<vpmm_pool*> process_pool(int device, const settings::Config& config);

}  // namespace vpmm::capi
