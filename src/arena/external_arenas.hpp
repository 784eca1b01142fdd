// SPDX-License-Identifier: Apache-2.0
// arena: arenas that divide memory of callers.
#pragma once

#include <string_view>

#include "arena/arena_table.hpp"

namespace vpmm::arena {

// Note [External memory]
// An external arena divides memory of its caller. The pool does not know this memory: no figure
// counts it, and no observer sees it. The owner takes it back and may unmap it at once, so
// take() returns only stretches with complete stamps.
class ExternalArenas {
 public:
  explicit ExternalArenas(ArenaTable& table) : table_(table) {}

  bool has(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // invalid_argument: the arena is not external, or the memory does not fit.
  // `is_owned`: tells if the pool owns a part of the memory.
  Result<void> add(pool::ArenaId id, AddressRange memory, FunctionRef<bool(AddressRange)> is_owned)
      VPMM_REQUIRES(pool_lock);
  // Tells if the arena has a stretch without live blocks, and is not pinned.
  Result<bool> has_idle(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Removes a stretch without live blocks and work in progress, as it was added. Empty: none.
  Result<AddressRange> take(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Visits the begin of each stretch.
  void for_each_stretch(FunctionRef<void(DevicePtr)> visit) const VPMM_REQUIRES(pool_lock);
  // out_of_memory. Requires: the arena exists.
  Error no_room_for(const pool::Request& request) const VPMM_REQUIRES(pool_lock);

 private:
  Result<ArenaEntry*> entry(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  std::string_view objection_to(AddressRange memory, FunctionRef<bool(AddressRange)> is_owned) const
      VPMM_REQUIRES(pool_lock);

  ArenaTable& table_;
};

}  // namespace vpmm::arena
