// SPDX-License-Identifier: Apache-2.0
// context: public calls on arenas.
#pragma once

#include "context/entrance.hpp"
#include "context/limits.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

// Other calls treat arena memory like any memory.
class ArenaCalls {
 public:
  ArenaCalls(Parts& parts, Entrance& entrance, Limits& limits)
      : parts_(parts), device_(parts.device), entrance_(entrance), limits_(limits) {}

  // unsupported: no virtual memory pool.
  Result<pool::ArenaId> create(const arena::ArenaOptions& options);
  // Allocates a free range of the arena; the caller answers for its earlier users. invalid_pointer:
  // not in the arena. invalid_argument: not free. out_of_memory: beyond the limit of its tag.
  Result<DevicePtr> allocate_at(pool::ArenaId arena, AddressRange range, pool::Stream stream,
                                std::uint32_t library = 0);
  // Keeps all memory of the arena, present and future, in place until its release.
  Result<void> pin(pool::ArenaId arena);
  // Adds memory of the caller to an external arena: whole grains of 512 bytes, complete, outside
  // any pool. The caller remains the owner, and takes it back with take() or after the arena's
  // release.
  Result<void> add(pool::ArenaId arena, AddressRange memory);
  // Waits for queued work, then takes back external memory without live blocks, as it was added.
  // Empty: none, or the arena is pinned. capture_active: a stream is being captured.
  Result<AddressRange> take(pool::ArenaId arena);
  // Gives idle memory back to the pool, unless pinned. Returns the bytes.
  Result<Bytes> trim(pool::ArenaId arena);
  Result<Vector<DevicePtr>> live(pool::ArenaId arena) const;  // ascending
  // Ends requests from the arena. Idle memory goes back to the pool, if pinned behind all queued
  // work; the rest follows as blocks are freed.
  Result<void> release(pool::ArenaId arena);

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
  Limits& limits_;
};

}  // namespace vpmm::context
