// SPDX-License-Identifier: Apache-2.0
// context: descriptions of allocations.
#pragma once

#include <cstdint>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "driver/types.hpp"
#include "pool/request.hpp"

namespace vpmm::context {

struct AllocationInfo {
  DevicePtr begin{};
  Bytes requested = 0;
  Bytes usable = 0;  // the request rounded up
  pool::ArenaId arena{};
};

// Number of an exported allocation, unique in the process for ever.
enum class ShareId : std::uint64_t {};

// Memory inside a shared allocation.
struct SharedRange {
  ShareId share{};
  DevicePtr allocation{};  // its begin
  Bytes offset = 0;        // of the memory in it
};

// Chunks behind a shared range, by address.
struct SharedChunks {
  struct ChunkInfo {
    driver::ChunkHandle handle{};
    Bytes size = 0;
  };
  Vector<ChunkInfo> chunks;
  Bytes offset = 0;  // of the range in the first chunk
};

// Kind of reference that keeps shared memory.
enum class Holder { handle, importer };

}  // namespace vpmm::context
