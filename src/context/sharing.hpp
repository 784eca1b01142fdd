// context: memory for other processes and other GPUs.
#pragma once

#include "context/entrance.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

// Note [Shared memory is kept until everybody let go]
class Sharing {
 public:
  Sharing(Parts& parts, Entrance& entrance)
      : parts_(parts), device_(parts.device), entrance_(entrance) {}

  // Holds the allocation around `range` with one more handle.
  Result<SharedRange> share(AddressRange range);
  // Holds the allocation with one more importer; its chunks stay in place meanwhile. not_shared:
  // the allocation is freed, and no handle holds it.
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size);
  // Ends either, once; ids of the past are ignored. Throws std::bad_alloc: the holder tries again.
  void end_lease(ShareId id, Holder holder);
  // Lets work on `peer`, another GPU, use all memory of the pool, present and future, for the
  // pool's life. From then on a free without a stream waits for the peer's primary context as well.
  // After a failure the device may not use the memory, although it might reach some; calling again
  // completes the access. Errors: invalid_argument (no such device), unsupported (the devices
  // cannot reach each other's memory, or some memory is the driver's stream-ordered pool's), the
  // driver's own.
  Result<void> set_peer_access(driver::DeviceOrdinal peer);

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
