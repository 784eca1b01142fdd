// SPDX-License-Identifier: Apache-2.0
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

  // Adds a handle to the allocation around `range`.
  Result<SharedRange> share(AddressRange range);
  // Adds an importer to the allocation: its chunks stay in place. not_shared: freed, without a
  // handle.
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size);
  // Ends either, once; past ids are ignored. Throws std::bad_alloc: the holder tries again.
  void end_lease(ShareId id, Holder holder);
  // Lets work on `peer`, another GPU, use all memory of the pool, present and future, for the
  // pool's life. Frees without a stream then wait for the peer's primary context, too. After a
  // failure the device must not use the memory; calling again completes the access. Errors:
  // invalid_argument (no such device), unsupported (no peer access, no virtual memory pool, or
  // requests below a page from the driver's own pool), the driver's own.
  Result<void> set_peer_access(driver::DeviceOrdinal peer);

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
