// SPDX-License-Identifier: Apache-2.0
// arena: arenas with stretches that have no physical memory.
#pragma once

#include <cstdint>

#include "arena/arena_table.hpp"

namespace vpmm::arena {

// Note [Suspended arenas]
// A suspended arena keeps its blocks and their addresses, and its stretches have no physical memory
// (Note [Suspended memory]). It serves no request. While a call suspends or resumes it without the
// lock, its stretches stay as they are; frees change blocks only. A stretch that is idle while
// suspended ends, as nobody can use its address again. Figures of live and free memory leave
// suspended stretches out.
//
// Methods with an id require that the arena exists and is not external.
class Residency {
 public:
  explicit Residency(ArenaTable& table) : table_(table) {}

  // Arenas with this tag that can be suspended, also released ones with live blocks.
  Vector<pool::ArenaId> with_tag(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  // invalid_argument: no such arena. unsupported: it is external.
  Result<void> may_change(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Provides for a suspend and the resume behind it. Throws std::bad_alloc.
  void prepare_change(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  void begin_change(pool::ArenaId id, Residence change) VPMM_REQUIRES(pool_lock) {
    table_.find(id)->residence = change;
  }
  // `outcome`: resident or suspended; an arena with suspended stretches is suspended nevertheless.
  // Reports a change, of `bytes`. Gives back idle memory of an arena that was released meanwhile.
  void end_change(pool::ArenaId id, Residence outcome, Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Tell the observer of memory that users have the memory of the arena no more, or again.
  void observe_leave(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  void observe_return(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Adopts which stretches are suspended, in figures and blocks.
  void note_suspended(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  // Regions of its stretches, by address.
  Vector<region::Region*> regions_of(pool::ArenaId id, bool are_suspended) const
      VPMM_REQUIRES(pool_lock);
  // True if work on free blocks is over, and no graph uses any.
  bool is_quiet(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);

 private:
  void observe_silent_frees(ArenaEntry& entry) VPMM_REQUIRES(pool_lock);

  ArenaTable& table_;
};

}  // namespace vpmm::arena
