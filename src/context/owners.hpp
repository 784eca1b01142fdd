// SPDX-License-Identifier: Apache-2.0
// context: the kind of memory behind an address, found once for a call and visited from there.
#pragma once

#include <variant>

#include "arena/arenas.hpp"
#include "base/overloaded.hpp"
#include "context/device.hpp"

namespace vpmm::context {

struct Foreign {};                // outside this pool
struct ArenaMemory {              // in an arena of the program
  const arena::ArenaBlock* live;  // block around the address; null: free
};
struct CutPage {  // page shared by small requests
  region::Region* page;
};
struct Pages {  // whole pages of a user or a cache, or parked for a graph
  region::Region* region;
};
struct DriverBlock {  // of the driver's own pool
  driver_pool::PoolBlock* block;
};
struct GuardedMemory {  // with pages of its own
  guard::Block* block;
};
// Valid while the pool's lock is held.
using OwnedBy = std::variant<Foreign, ArenaMemory, CutPage, Pages, DriverBlock, GuardedMemory>;

// A view; each user has its own.
class Owners {
 public:
  Owners(const Device& device, const arena::Arenas& arenas) : device_(device), arenas_(arenas) {}

  OwnedBy of(DevicePtr ptr) const VPMM_REQUIRES(pool_lock) {
    if (arenas_.around(ptr) != nullptr) return ArenaMemory{arenas_.live_around(ptr)};
    if (region::Region* const region = device_.allocated_around(ptr)) {
      if (small::is_cut(*region)) return CutPage{region};
      return Pages{region};
    }
    if (guard::Block* const block = device_.guarded_around(ptr)) return GuardedMemory{block};
    if (driver_pool::PoolBlock* const block = device_.block_around(ptr)) return DriverBlock{block};
    return Foreign{};
  }

 private:
  const Device& device_;
  const arena::Arenas& arenas_;
};

}  // namespace vpmm::context
