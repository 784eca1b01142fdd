// context: other devices that may use the pool's memory, and the CUDA contexts in which their work
// runs.
#pragma once

#include <optional>

#include "context/device.hpp"

namespace vpmm::context {

class Peers {
 public:
  explicit Peers(Device& device) : device_(device) {}

  // Whether work on `peer` could use memory of the device.
  Result<bool> can_access(driver::DeviceOrdinal peer);
  // From now on it may use everything in the pool.
  void add(driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);
  // Has the timelines know the contexts of peers that are active by now.
  Result<void> find_contexts() VPMM_REQUIRES(pool_lock);
  // Of those that the timelines know, the primary one aside: of peers (reset by others), and whose
  // streams called.
  Result<Vector<time::KnownContext>> dead_contexts() VPMM_REQUIRES(pool_lock);
  void forget(const time::KnownContext& dead) VPMM_REQUIRES(pool_lock);
  void release() VPMM_REQUIRES(pool_lock);

 private:
  struct Peer {
    driver::DeviceOrdinal device = 0;
    // Retained as soon as it is seen to be active: before that nothing runs in it. None: not seen
    // yet.
    std::optional<time::KnownContext> context;
  };
  Result<bool> is_alive(const time::KnownContext& other) VPMM_REQUIRES(pool_lock);

  Device& device_;
  Vector<Peer> peers_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
