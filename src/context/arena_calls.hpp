// context: public calls on arenas.
#pragma once

#include "context/entrance.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

// Arena memory is freed, used and queried like any other memory.
class ArenaCalls {
 public:
  ArenaCalls(Parts& parts, Entrance& entrance)
      : parts_(parts), device_(parts.device), entrance_(entrance) {}

  // unsupported: there is no virtual memory pool.
  Result<pool::ArenaId> create(const arena::ArenaOptions& options);
  // Allocates that range, which must be free in the arena; the caller answers for earlier users of
  // it. invalid_pointer: the arena has no such memory. invalid_argument: the range is not free.
  Result<DevicePtr> allocate_at(pool::ArenaId arena, AddressRange range, pool::Stream stream);
  // Memory that the arena has, and will get, keeps its address until the arena is released.
  Result<void> pin(pool::ArenaId arena);
  // Adds memory of the caller to an external arena: whole grains of 512 bytes, complete, of no
  // pool. The caller keeps ownership, and takes it back with take() or after the arena's release.
  Result<void> add(pool::ArenaId arena, AddressRange memory);
  // Waits for queued work, then takes back external memory without live blocks or work in progress,
  // as it was added. Empty: there is none, or the arena is pinned. capture_active: not now.
  Result<AddressRange> take(pool::ArenaId arena);
  // Gives idle memory back to the pool, unless the arena is pinned. Returns the bytes.
  Result<Bytes> trim(pool::ArenaId arena);
  Result<Vector<DevicePtr>> live(pool::ArenaId arena) const;  // ascending
  // Ends requests from the arena. Idle memory goes back to the pool, behind all queued work if the
  // arena was pinned; the rest follows as its blocks are freed.
  Result<void> release(pool::ArenaId arena);

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
