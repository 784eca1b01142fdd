// SPDX-License-Identifier: Apache-2.0
// context: devices with access to the pool's memory, and the CUDA contexts of their work.
#pragma once

#include <optional>

#include "context/device.hpp"

namespace vpmm::context {

class Peers {
 public:
  explicit Peers(Device& device) : device_(device) {}

  // Tells if work on `peer` can use memory of the device.
  Result<bool> can_access(driver::DeviceOrdinal peer);
  // Gives the device access to all memory of the pool.
  void add(driver::DeviceOrdinal peer) VPMM_REQUIRES(pool_lock);
  // Retains newly active contexts of peers, and adds them to the timelines.
  Result<void> find_contexts() VPMM_REQUIRES(pool_lock);
  // Dead contexts known to the timelines, without the primary one: of peers, after a reset by
  // others, and of streams that called.
  Result<Vector<time::KnownContext>> dead_contexts() VPMM_REQUIRES(pool_lock);
  void forget(const time::KnownContext& dead) VPMM_REQUIRES(pool_lock);
  void release() VPMM_REQUIRES(pool_lock);

 private:
  struct Peer {
    driver::DeviceOrdinal device = 0;
    // Retained once active; before that no work runs in it. nullopt: inactive so far.
    std::optional<time::KnownContext> context;
  };
  Result<bool> is_alive(const time::KnownContext& other) VPMM_REQUIRES(pool_lock);

  Device& device_;
  Vector<Peer> peers_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
