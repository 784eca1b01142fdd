// pool: decides how a request that no free range satisfies is put together from idle and new chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <variant>

#include "base/host_memory.hpp"
#include "pool/chunk_policy.hpp"
#include "pool/plan.hpp"
#include "region/region_index.hpp"
#include "time/timelines.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// How far a plan may go, from the usual to the last resort.
enum class Effort {
  by_policy,   // as the chunk policy prefers
  move_first,  // every idle chunk before a new one
  wait_too,    // and chunks that other streams still use, with waits of the GPU
  grow_only,   // new chunks alone, as few as can be: the number of mappings is at its limit
  apart,       // one new chunk for the request alone, although it fits elsewhere
};

struct Need {
  Bytes size = 0;                       // rounded to pages
  Bytes alignment = 0;                  // at least a page
  std::optional<time::TimelineId> own;  // none: any-stream or capturing, only complete memory will do
  bool may_wait = false;                // the caller has a stream on which waits can be queued
  Bytes mapped = 0;
  Bytes peak_used = 0;
  Bytes peak_asked = 0;
  Bytes growth_room = 0;  // most bytes of new chunks that the limits allow

  Demand demand(Bytes missing) const { return {size, missing, mapped, peak_used, peak_asked}; }
};

// Why there is no plan.
struct NoPlan {
  enum class Reason { address_space, memory } reason = Reason::memory;
  Bytes missing = 0;
};

// Reads only; changes nothing and calls no driver. Holds: the context's lock.
class Planner {
 public:
  Planner(const region::RegionIndex& index, const vm::ChunkTable& chunks, const time::Timelines& timelines,
          const ChunkPolicy& policy, Bytes page_size)
      : index_(index), chunks_(chunks), timelines_(timelines), policy_(policy), page_size_(page_size) {}

  std::variant<Plan, NoPlan> plan(const Need& need, Effort effort) const;
  // From two ends of chunks in use alone, which the caller may use without any wait. None: there are no such two.
  std::optional<Plan> join(const Need& need) const;
  // Usable by the caller at once, without any wait.
  static bool is_usable(const region::Region& free, std::optional<time::TimelineId> own) {
    return free.stamp.is_complete() || (own && free.stamp.is_only_on(*own));
  }
  // Whether waits of the GPU are queued at this effort rather than chunks created.
  bool may_wait(const Need& need, Effort effort) const;
  // Usable once the caller's stream has waited for events that stand already.
  bool is_waitable(const region::Region& free, std::optional<time::TimelineId> own) const;
  // The parts of `stamp` that a stream of timeline `own` must wait for.
  static void add_waits(const time::Stamp& stamp, std::optional<time::TimelineId> own, Vector<time::StampPart>& waits);

 private:
  struct Harvest {
    Vector<Move> moves;
    Bytes bytes = 0;
  };
  bool is_takeable(const region::Region& free, const Need& need, Effort effort) const;
  // Ranges that the caller may use at once and that have whole chunks, in the order in which they give; once it is
  // asked for.
  using Supply = std::optional<Vector<region::Region*>>;
  Vector<region::Region*> by_chunk_size(const Need& need) const;
  Vector<region::Region*> extensible(const Need& need, Effort effort) const;
  void take_chunks(region::Region* from, Bytes wanted, Harvest& harvest) const;
  void take_last(const Vector<region::Region*>& ranges, const region::Region* except, Bytes lacking,
                 Harvest& harvest) const;
  Harvest harvest(Bytes wanted, const region::Region* except, const Need& need, Effort effort, Supply& supply) const;
  std::variant<Plan, NoPlan> fill(region::Region* kept, const Need& need, Effort effort, Supply& supply) const;
  bool has_many_shadows(const Need& need, Bytes more) const;
  struct EndSearch {
    Effort effort;  // whose memory may be taken
    Bytes least;    // that an end has
    std::size_t most_ranges = std::numeric_limits<std::size_t>::max();
  };
  Bytes take_ends(Plan& plan, Bytes lacking, const Need& need, const EndSearch& search) const;
  bool place(Plan& plan, Bytes bytes, const Need& need) const;
  std::variant<Plan, NoPlan> laid_out(Plan plan, const Need& need) const;

  const region::RegionIndex& index_;
  const vm::ChunkTable& chunks_;
  const time::Timelines& timelines_;
  const ChunkPolicy& policy_;
  const Bytes page_size_;  // chunks are whole pages
};

}  // namespace vpmm::pool
