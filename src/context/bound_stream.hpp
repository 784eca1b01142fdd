// SPDX-License-Identifier: Apache-2.0
// context: a stream that the pool knows by its object.
#pragma once

#include "base/line_allocator.hpp"
#include "base/result.hpp"
#include "context/stream_front.hpp"

namespace vpmm::context {

class Context;

// The fastest way into the pool: no driver call identifies the stream. Thread-safe. Must not
// outlive its stream or the context; captures on the stream must be announced with capture_begin.
// After a reset of the CUDA context requests fail, and frees count as any-stream. A call served by
// the cache does not notice a reset by others before another call has.
//
// Keeps its timeline from being retired, until the CUDA context ends. Begins a cache line: every
// call reads it.
class alignas(kCacheLine) BoundStream {
 public:
  BoundStream(Context& context, const StreamFront::Client& client, time::TimelineId timeline)
      : context_(context), client_(client), timeline_(timeline) {}
  ~BoundStream();
  BoundStream(const BoundStream&) = delete;
  BoundStream& operator=(const BoundStream&) = delete;

  Result<DevicePtr> allocate(Bytes bytes, Bytes alignment) {
    const DevicePtr begin = try_allocate(bytes, alignment);
    return is_null(begin) ? allocate_beyond(bytes, alignment) : Result<DevicePtr>(begin);
  }
  Result<void> deallocate(DevicePtr ptr) {
    return try_deallocate(ptr) ? Result<void>() : deallocate_beyond(ptr);
  }
  // Served by the cache alone, so safe while the process ends. Null or false: call one of the next
  // two.
  DevicePtr try_allocate(Bytes bytes, Bytes alignment);
  bool try_deallocate(DevicePtr ptr);
  // Takes the pool's lock.
  Result<DevicePtr> allocate_beyond(Bytes bytes, Bytes alignment);
  Result<void> deallocate_beyond(DevicePtr ptr);

 private:
  // State for one call. If it is not open, the call must take the lock.
  StreamFront::Way way() const;

  Context& context_;
  const StreamFront::Client client_;
  const time::TimelineId timeline_;
};

}  // namespace vpmm::context
