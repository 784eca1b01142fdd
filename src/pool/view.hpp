// SPDX-License-Identifier: Apache-2.0
// pool: view of the strategies: free memory, its chunks, and the part that one caller may use.
#pragma once

#include <optional>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "pool/plan.hpp"
#include "pool/request.hpp"
#include "pool/tuning.hpp"
#include "region/region_index.hpp"
#include "time/timelines.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// One request with its current bounds. Bytes.
struct Ask {
  Bytes size = 0;       // whole grains
  Bytes alignment = 0;  // at least a grain's
  std::optional<time::TimelineId>
      own;                     // nullopt: any-stream or capturing, uses only complete memory
  bool takes_waiting = false;  // also memory that other streams use, behind waits of the caller's
                               // stream
  bool own_first = false;      // Note [Own memory first]
  Bytes growth_room = 0;       // most new memory
  Bytes early_growth = 0;      // new memory although idle chunks could be moved
  Bytes chunk = 0;
  bool goes_low = false;           // Note [Shared pages go low]
  bool spares_chunks = false;      // Note [Spare whole chunks]
  Chunks chunks = Chunks::shared;  // Note [Own chunks]

  bool has_own_chunks() const { return chunks != Chunks::shared; }
  region::RegionIndex::First first() const {
    return own_first ? region::RegionIndex::First::own : region::RegionIndex::First::smaller;
  }
};

// Note [Own memory first]
// Memory pending on a stream serves that stream only; complete memory serves every stream. So where
// several streams place memory, each uses its own first. Otherwise it takes complete memory that
// fits better, which others then miss while memory lies idle that only this stream can use.

// Reads only.
struct View {
  const region::RegionIndex& index;
  const vm::ChunkTable& chunks;
  const time::Timelines& timelines;
  const Tuning& tuning;

  // Tells if the caller may use `free` at once, without a wait.
  static bool is_usable(const region::Region& free, std::optional<time::TimelineId> own) {
    return free.stamp.is_complete() || (own && free.stamp.is_only_on(*own));
  }
  // Tells if the caller may use `free` once its stream has waited for existing events.
  bool is_waitable(const region::Region& free, std::optional<time::TimelineId> own) const
      VPMM_REQUIRES(pool_lock);
  bool admits(const region::Region* region, const Ask& ask) const VPMM_REQUIRES(pool_lock) {
    return region != nullptr && region->state == region::RegionState::free &&
           (is_usable(*region, ask.own) || (ask.takes_waiting && is_waitable(*region, ask.own)));
  }
  // Visits free regions that the caller may use and that may hold a chunk, in order of giving:
  // those without a wait first. `visit` returns false to stop.
  void for_each_giving(const Ask& ask, FunctionRef<bool(region::Region*)> visit) const
      VPMM_REQUIRES(pool_lock);
  // Returns the parts of free regions in `range`, which begins in `first` or behind it.
  Vector<Part> parts_of(region::Region* first, AddressRange range) const VPMM_REQUIRES(pool_lock);
  // Adds to `waits` the parts of `stamp` that a stream of timeline `own` must wait for.
  static void add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own,
                        Vector<time::StampPart>& waits);
};

}  // namespace vpmm::pool
