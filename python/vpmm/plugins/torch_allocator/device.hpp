// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the parts of a device, and checkpoints of its private pools.
#pragma once

#include <memory>

#include "blocks.hpp"

namespace vpmm::torch_plugin {

struct Device {
  Device(DeviceIndex index, History& history)
      : segments(index, history),
        pool(index, segments),
        private_pools(pool, segments, history),
        blocks(pool, private_pools, segments, history) {}

  Segments segments;
  Pool pool;
  PrivatePools private_pools;
  Blocks blocks;
};

// The live allocations of a private pool, for a graph tree to return to. From now on the pool's
// memory stays where it is, because a restore brings back the same addresses.
std::shared_ptr<cca::AllocatorState> take_checkpoint(Device& device, MempoolId_t id);
// The live allocations of the private pool become those of the checkpoint, at the same addresses;
// if that fails, they stay as before.
cca::CheckpointDelta restore(Device& device, const cca::AllocatorState* state, History& history);

// The deleter of memory. Exceptions of trackers become warnings.
void delete_memory(void* ptr);

}  // namespace vpmm::torch_plugin
