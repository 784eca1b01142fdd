// context: descriptions of allocations that calls return.
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

// An allocation that was exported, by a number that no other allocation of the process ever has.
enum class ShareId : std::uint64_t {};

// Memory inside a shared allocation.
struct SharedRange {
  ShareId share{};
  DevicePtr allocation{};  // its begin
  Bytes offset = 0;        // of the memory in it
};

// The chunks behind a shared range, in the order of their addresses.
struct SharedChunks {
  struct ChunkInfo {
    driver::ChunkHandle handle{};
    Bytes size = 0;
  };
  Vector<ChunkInfo> chunks;
  Bytes offset = 0;  // of the range, from the begin of the first
};

// What keeps shared memory from being used again.
enum class Holder { handle, importer };

}  // namespace vpmm::context
