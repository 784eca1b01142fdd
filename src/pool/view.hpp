// pool: what strategies may look at: free memory, its chunks, and which of it one caller may use.
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

// One request, with the bounds that hold for it now. Bytes.
struct Ask {
  Bytes size = 0;       // whole grains
  Bytes alignment = 0;  // at least a grain's
  std::optional<time::TimelineId>
      own;  // none: any-stream or capturing, only complete memory will do
  bool takes_waiting =
      false;               // what other streams still use, too, behind waits of the caller's stream
  bool own_first = false;  // Note [Own memory first]
  Bytes growth_room = 0;   // most new memory
  Bytes early_growth = 0;  // of it, although idle chunks could be moved
  Bytes chunk = 0;         // of new memory
  bool goes_low = false;   // Note [Shared pages go low]
  bool spares_chunks = false;      // Note [Spare whole chunks]
  Chunks chunks = Chunks::shared;  // Note [Own chunks]

  bool has_own_chunks() const { return chunks != Chunks::shared; }
  region::RegionIndex::First first() const {
    return own_first ? region::RegionIndex::First::own : region::RegionIndex::First::smaller;
  }
};

// Note [Own memory first]
// What is pending on a stream serves that stream only, until it is complete; what is complete
// serves everybody. So where several streams place memory, each uses up its own first. Otherwise it
// takes complete memory that fits better, which others then miss while memory that nobody else can
// use lies idle.

// Reads only.
struct View {
  const region::RegionIndex& index;
  const vm::ChunkTable& chunks;
  const time::Timelines& timelines;
  const Tuning& tuning;

  // Usable by the caller at once, without any wait.
  static bool is_usable(const region::Region& free, std::optional<time::TimelineId> own) {
    return free.stamp.is_complete() || (own && free.stamp.is_only_on(*own));
  }
  // Usable once the caller's stream has waited for events that stand already.
  bool is_waitable(const region::Region& free, std::optional<time::TimelineId> own) const
      VPMM_REQUIRES(pool_lock);
  bool admits(const region::Region* region, const Ask& ask) const VPMM_REQUIRES(pool_lock) {
    return region != nullptr && region->state == region::RegionState::free &&
           (is_usable(*region, ask.own) || (ask.takes_waiting && is_waitable(*region, ask.own)));
  }
  // Visits the free regions that the caller may use and in which a chunk may lie, in the order in
  // which they give theirs: those that need no wait first. `visit` returns false to stop.
  void for_each_giving(const Ask& ask, FunctionRef<bool(region::Region*)> visit) const
      VPMM_REQUIRES(pool_lock);
  // The parts of free regions that lie in `range`, which begins in `first` or behind it.
  Vector<Part> parts_of(region::Region* first, AddressRange range) const VPMM_REQUIRES(pool_lock);
  // The parts of `stamp` that a stream of timeline `own` must wait for, added to `waits`.
  static void add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own,
                        Vector<time::StampPart>& waits);
};

}  // namespace vpmm::pool
