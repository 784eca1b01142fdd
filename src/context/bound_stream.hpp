// context: a stream that the pool knows by its object.
#pragma once

#include "base/line_allocator.hpp"
#include "base/result.hpp"
#include "context/stream_front.hpp"

namespace vpmm::context {

class Context;

// The fastest way into the pool: the driver is not asked about the stream at each call. Any thread
// may use it. It must not outlive its stream or the context, and captures on the stream must be
// announced with capture_begin. After a reset of the CUDA context it is dead: requests fail, frees
// count as any-stream. A call that the cache serves does not notice a reset by others which no
// other call has met yet.
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
  // Served by the cache alone, so safe while the process ends. Null, false: call one of the next
  // two.
  DevicePtr try_allocate(Bytes bytes, Bytes alignment);
  bool try_deallocate(DevicePtr ptr);
  // Through the pool's lock. A free may come here to have an event recorded behind it.
  Result<DevicePtr> allocate_beyond(Bytes bytes, Bytes alignment);
  Result<void> deallocate_beyond(DevicePtr ptr);

 private:
  // Not open: the call takes the lock.
  StreamFront::Way way() const;

  Context& context_;
  const StreamFront::Client client_;
  const time::TimelineId timeline_;
};

}  // namespace vpmm::context
