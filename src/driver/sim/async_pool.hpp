// SPDX-License-Identifier: Apache-2.0
// driver/sim: crude stand-in for the driver's stream-ordered pools. Its footprint proves nothing.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/address.hpp"
#include "driver/sim/memory.hpp"
#include "driver/sim/timeline.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

// Best fit over 512-byte blocks in one stretch of address space, backed page by page on demand. A
// freed block serves the freeing stream at once, and others once the work before the free is
// complete. Single-threaded: the machine's lock is held.
class AsyncPool {
 public:
  AsyncPool(SimMemory& memory, SimTimeline& timeline, DeviceOrdinal device)
      : memory_(memory), timeline_(timeline), device_(device) {}
  ~AsyncPool();
  AsyncPool(const AsyncPool&) = delete;
  AsyncPool& operator=(const AsyncPool&) = delete;

  // Orders `slot` after the free of the block. kHostSlot: only complete blocks.
  CuResult allocate(Bytes size, Slot slot, AddressRange& range);
  // Live block that starts at `ptr`; empty if none.
  AddressRange find(DevicePtr ptr) const;
  // Live block around `inside`; empty if none.
  AddressRange find_around(DevicePtr inside) const;
  // `at`: the free's place in its stream.
  void free(DevicePtr ptr, const Position& at, const VectorClock& clock);
  void trim_to(Bytes bytes_to_keep);
  void trim_to_threshold() { trim_to(release_threshold_); }

  CuResult set_attribute(MemPoolAttribute attribute, std::uint64_t value);
  CuResult get_attribute(MemPoolAttribute attribute, std::uint64_t& value) const;
  DeviceOrdinal device() const { return device_; }
  std::uint64_t live() const { return live_; }

 private:
  struct AsyncBlock {
    Bytes size = 0;
    bool is_free = false;
    Position freed_at;  // free: usable by others when complete
    VectorClock freed_clock;
  };
  using AsyncBlocks = std::map<DevicePtr, AsyncBlock>;
  // Pages to back, and the free block right before them in which a request can begin.
  struct Growth {
    AddressRange pages;
    AsyncBlocks::iterator tail;
  };
  bool complete(const AsyncBlock& block) const;
  bool usable(const AsyncBlock& block, Slot slot) const {
    return block.freed_at.slot == slot || complete(block);
  }
  AsyncBlocks::iterator find_fit(Bytes size, Slot slot);
  CuResult grow(Bytes size, Slot slot, AsyncBlocks::iterator& block);
  CuResult find_growth(Bytes size, Slot slot, Growth& growth);
  CuResult back(AddressRange pages);
  void unback(AddressRange pages);
  void take(AsyncBlocks::iterator block, Bytes size, Slot slot);
  void put(AsyncBlocks::iterator block);
  bool absorb(AsyncBlocks::iterator left, AsyncBlocks::iterator right);
  void merge_complete();
  Bytes page() const;
  AddressRange home_of(Bytes size) const;

  SimMemory& memory_;
  SimTimeline& timeline_;
  const DeviceOrdinal device_;
  AddressRange space_;                             // reserved at the first growth
  AsyncBlocks blocks_;                             // a partition of the backed memory
  std::set<std::pair<Bytes, DevicePtr>> by_size_;  // the free ones
  std::uint64_t internal_dependencies_ = 1;        // stored only: this pool never makes a stream
                                                   // wait
  Bytes release_threshold_ = 0;
  Bytes reserved_ = 0;
  Bytes reserved_high_ = 0;
  Bytes used_ = 0;
  Bytes used_high_ = 0;
  std::uint64_t live_ = 0;
};

}  // namespace vpmm::driver::sim
