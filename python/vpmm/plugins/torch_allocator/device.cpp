// SPDX-License-Identifier: Apache-2.0
// torch_allocator: takes and restores checkpoints.
#include "device.hpp"

#include <utility>
#include <vector>

namespace vpmm::torch_plugin {
namespace {

struct Checkpoint final : cca::AllocatorState {
  Checkpoint(MempoolId_t id_, std::vector<Placed> live_) : id(id_), live(std::move(live_)) {}
  MempoolId_t id;
  std::vector<Placed> live;
};

// All of them, or none.
void place(Device& device, const PrivatePoolPtr& pool, vpmm_arena* arena,
           const std::vector<Placed>& wanted, const History& history) {
  const Call call(history, RecordContext::STATE);
  auto next = wanted.begin();
  try {
    for (; next != wanted.end(); ++next)
      device.blocks.allocate_at(next->ptr, next->bytes, next->stream, pool, arena, call,
                                "a checkpoint could not be restored");
  } catch (...) {
    while (next != wanted.begin()) delete_memory((--next)->ptr);
    throw;
  }
}

}  // namespace

std::shared_ptr<cca::AllocatorState> take_checkpoint(Device& device, MempoolId_t id) {
  const PrivatePoolPtr pool = device.private_pools.get(id, "getCheckpointState");
  device.private_pools.pin(*pool);
  return std::make_shared<Checkpoint>(id, device.blocks.in(*pool));
}

cca::CheckpointDelta restore(Device& device, const cca::AllocatorState* state, History& history) {
  const auto* const wanted = dynamic_cast<const Checkpoint*>(state);
  TORCH_CHECK(wanted != nullptr, "the checkpoint is another allocator's");
  const PrivatePoolPtr pool = device.private_pools.get(wanted->id, "setCheckpointPoolState");
  const ArenaPtr arena = device.private_pools.pin(*pool);  // memory that is freed here stays
  TORCH_CHECK(arena != nullptr || wanted->live.empty(),
              "the memory pool of the checkpoint is over");
  const std::vector<Placed> before = device.blocks.in(*pool);
  for (const Placed& block : before) delete_memory(block.ptr);
  try {
    place(device, pool, arena.get(), wanted->live, history);
  } catch (...) {
    place(device, pool, arena.get(), before, history);
    throw;
  }
  cca::CheckpointDelta delta;
  for (const Placed& block : before) delta.ptrs_freed.push_back(block.ptr);
  for (const Placed& block : wanted->live)
    delta.dataptrs_allocd.emplace_back(block.ptr, block.ptr, &delete_memory,
                                       c10::Device(c10::kCUDA, device.pool.device()));
  return delta;
}

}  // namespace vpmm::torch_plugin
