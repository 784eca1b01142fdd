// SPDX-License-Identifier: Apache-2.0
// host_copy: copies between device and host memory, through a ring of pinned buffers.
#pragma once

#include <cstddef>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "host_copy/host_memory.hpp"

namespace vpmm::host_copy {

struct CopyPiece {
  DevicePtr device{};
  std::byte* host = nullptr;
  Bytes bytes = 0;
};

enum class CopyTo { host, device };

// A context that is current for the calling thread.
struct CopyContext {
  driver::ContextHandle handle{};
  driver::ContextId id{};
};

// Note [Copies through a ring]
// The driver copies to memory that is not pinned at a fraction of the bus, and pinning memory takes
// longer than copying it. So each of several threads has two pinned buffers, each with a stream: it
// lets the GPU copy to one, and copies the other on to ordinary memory meanwhile; the other way
// round in the other direction. The first touch of ordinary memory costs most, and is spread over
// the threads. A copy that fits one buffer takes no thread.
//
// Any thread; one copy at a time. Uses the driver from threads of its own, with the context current
// there. Calls return when all work is over, also after an error.
class Copier {
 public:
  explicit Copier(driver::Driver& driver) : driver_(driver) {}

  // Makes and pins the ring, ahead of copies; each copy does so if need be. Throws std::bad_alloc.
  Result<void> prepare(const CopyContext& context);
  // Pieces of ordinary memory. Throws std::bad_alloc.
  Result<void> copy(const Vector<CopyPiece>& pieces, CopyTo to, const CopyContext& context);
  // Pieces of pinned memory, without the ring.
  Result<void> copy_pinned(const Vector<CopyPiece>& pieces, CopyTo to, const CopyContext& context);
  // Sets device memory to zero.
  Result<void> clear(const Vector<AddressRange>& ranges, const CopyContext& context);
  // Gives the ring back. Requires: its context is current, or gone.
  void release();

 private:
  class CopyJob;
  template <typename Queue>
  Result<void> on_one_stream(const CopyContext& context, Queue&& queue);

  driver::Driver& driver_;
  mutable Mutex mutex_;
  HostMemory ring_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::host_copy
