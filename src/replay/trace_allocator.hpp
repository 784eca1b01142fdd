// SPDX-License-Identifier: Apache-2.0
// replay: allocators that can run a trace, behind one interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/address.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "settings/config.hpp"

namespace vpmm::replay {

enum class AllocatorKind {
  vpmm,       // the pool with the settings in force
  vpmm_page,  // the pool with VPMM_CHUNK_MAX=page
  cuda,
  cuda_async,  // the driver's stream-ordered pool, which keeps all memory
};
const char* to_string(AllocatorKind kind);  // as on the command line: "vpmm-page"

struct TraceFootprint {
  Bytes peak_mapped_bytes = 0;
  std::uint64_t peak_mapped_chunks = 0;  // 0 for allocators without chunks
  std::uint64_t plans = 0;               // carried out; the same
};

// Single-threaded; device 0's primary context is current in every call.
class TraceAllocator {
 public:
  TraceAllocator() = default;
  virtual ~TraceAllocator() = default;  // gives all memory back
  TraceAllocator(const TraceAllocator&) = delete;
  TraceAllocator& operator=(const TraceAllocator&) = delete;

  // Memory for work queued on `stream` after the call; null for no bytes.
  virtual Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) = 0;
  // Work queued on `stream` before the call is the last to use the memory.
  virtual Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) = 0;
  virtual Result<TraceFootprint> footprint() = 0;  // since creation
};

// Recipe of an allocator. `make` makes it on device 0 of `driver`, which must outlive it.
struct AllocatorRecipe {
  std::string name;
  std::function<Result<std::unique_ptr<TraceAllocator>>(driver::Driver& driver)> make;
};
// `config`: the pool's settings, for the allocators that are one.
AllocatorRecipe allocator_recipe(AllocatorKind kind, const settings::Config& config);

}  // namespace vpmm::replay
