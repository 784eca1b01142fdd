// context: order between streams: captures, waits, resets.
#pragma once

#include "context/entrance.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

class StreamCalls {
 public:
  StreamCalls(Parts& parts, Entrance& entrance)
      : parts_(parts), device_(parts.device), entrance_(entrance) {}

  // Work queued on `waiting` from now on waits for work that is queued on `first`, which may use
  // any memory.
  Result<void> make_wait(driver::StreamHandle waiting, driver::StreamHandle first);
  // Announce stream captures that the pool cannot see; pairs, may nest and overlap.
  Result<void> capture_begin();
  Result<void> capture_end();
  // Frees the memory of the graph made from capture `id`, which must not be launched any more.
  // Usually the graph's own end does this.
  Result<void> capture_release(driver::CaptureId id);
  // Whether a capture is announced or was seen, so that wait_for_work() would not wait now.
  bool is_capturing();
  // Waits for all work of the device's context, and of other contexts that may use the pool's
  // memory (peers', and those of streams that called), and settles the frees that it completes.
  Result<void> synchronize();
  // Waits likewise, and settles nothing: caches keep their memory. capture_active: not now.
  Result<void> wait_for_work();
  // Waits, then resets the device's primary context. Chunks and addresses survive; streams do not.
  // Calls of other threads that name no stream may run meanwhile. If the driver refuses, nothing
  // has changed.
  Result<void> reset();

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
