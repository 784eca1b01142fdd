// SPDX-License-Identifier: Apache-2.0
// context: requests and frees of a pool's free ranges, under its lock alone.
#pragma once

#include "context/entrance.hpp"
#include "context/parts.hpp"

namespace vpmm::context {

// Note [A hit needs no visit]
class Hits {
 public:
  using Client = StreamFront::Client;
  using Freed = small::WarmCalls::Freed;
  Hits(Parts& parts, Entrance& entrance)
      : parts_(parts), device_(parts.device), entrance_(entrance) {}

  // Read without the lock: another call may change the answer.
  bool may_serve(Bytes bytes, Bytes alignment) const {
    return !entrance_.is_visit_due() && has_natural_place(bytes, alignment);
  }
  // For a client whose stream was known before the call: a reset by others may have ended it.
  bool may_serve_bound() const {
    return !entrance_.is_visit_due() && device_.primary.look() == driver::CuResult::success;
  }
  // Null: no range fits, or a visit is due. Requires: may_serve().
  DevicePtr allocate(const Client& client, Bytes bytes, Bytes alignment);
  // Any-stream memory, if nobody has the lock. Null: none, or it is one to guard.
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment);
  // `no`: something else is live there, or a visit is due.
  Freed free(const Client& client, DevicePtr ptr);

 private:
  // Tells if free ranges of the pool are aligned and large enough for such requests.
  bool has_natural_place(Bytes bytes, Bytes alignment) const {
    return bytes <= pool::kAddressSpace && (alignment & (alignment - 1)) == 0 &&
           alignment <= device_.pool->memory().tuning.grain_alignment();
  }
  DevicePtr take_if_ready(Bytes bytes, Bytes alignment);
  // Null: no range fits. Requires: a kept HostPromise.
  DevicePtr take(const pool::Request& request, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);

  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
};

}  // namespace vpmm::context
