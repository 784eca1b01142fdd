// SPDX-License-Identifier: Apache-2.0
// context: order between streams: captures, waits, resets.
#pragma once

#include "context/entrance.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

class StreamCalls {
 public:
  StreamCalls(Parts& parts, Entrance& entrance)
      : parts_(parts), device_(parts.device), entrance_(entrance) {}

  // Makes later work on `waiting` wait for the work queued on `first`.
  Result<void> make_wait(driver::StreamHandle waiting, driver::StreamHandle first);
  // Announces a stream capture that the pool cannot see. Pairs may nest and overlap.
  Result<void> capture_begin();
  Result<void> capture_end();
  // Frees the memory of the graph from capture `id`, which must not run again. Usually the graph's
  // end does this.
  Result<void> capture_release(driver::CaptureId id);
  // Tells if a known capture keeps wait_for_work() from waiting now.
  bool is_capturing();
  // Waits for all work of the device's context and of other known contexts (of peers, and of
  // streams that called), and settles the completed frees. capture_active: not now.
  Result<void> synchronize();
  // Same without settling: caches keep their memory.
  Result<void> wait_for_work();
  // Waits, then resets the device's primary context. Chunks and addresses survive; streams do not.
  // Calls without a stream on other threads may run meanwhile. After a refusal by the driver the
  // state is unchanged.
  Result<void> reset();

 private:
  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
