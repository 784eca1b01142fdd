// SPDX-License-Identifier: Apache-2.0
// pool: plans requests: their bounds, the order of strategies, early growth and the grow delay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/mutex.hpp"
#include "pool/gpu_room.hpp"
#include "pool/memory.hpp"
#include "pool/plan.hpp"
#include "pool/request.hpp"
#include "pool/view.hpp"

namespace vpmm::pool {

enum class Effort {
  by_policy,     // as Tuning prefers
  move_first,    // every idle chunk before a new one, without delay
  wait_too,      // also chunks that other streams still use, behind waits of the GPU
  few_mappings,  // one new chunk: the number of mappings is at its limit
};

// Makes no driver call and changes no memory. Bytes.
class Planner {
 public:
  Planner(const Memory& memory, const GpuRoom& room) : memory_(memory), room_(room) {}

  Ask ask_of(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  bool takes_waiting(const Caller& caller, Effort effort) const VPMM_REQUIRES(pool_lock);
  Decision decide(const Ask& ask, const Caller& caller, Effort effort) const
      VPMM_REQUIRES(pool_lock);
  bool can_find(const PageRequest& request, const Caller& caller) const VPMM_REQUIRES(pool_lock);
  bool may_grow_early(Bytes size) const VPMM_REQUIRES(pool_lock);
  // Tells if Pool::map() would probably create memory beyond the record of mapped bytes.
  bool would_set_record(const PageRequest& request, const Caller& caller) const
      VPMM_REQUIRES(pool_lock);
  // Note [Grow delay]
  std::uint64_t delay_until(const Plan& plan, const Caller& caller, std::uint64_t began_ns) const
      VPMM_REQUIRES(pool_lock);
  Chunks chunks_of(const PageRequest& request) const {
    return request.chunks == Chunks::shared && memory_.config.ipc_isolate ? Chunks::own
                                                                          : request.chunks;
  }
  bool has_own_chunks(const PageRequest& request) const {
    return chunks_of(request) != Chunks::shared;
  }

  // Allocated bytes minus those that streams cache for their next requests.
  Bytes wanted_bytes() const VPMM_REQUIRES(pool_lock) {
    return memory_.used_bytes() - std::min(memory_.used_bytes(), cached_bytes_);
  }
  // Set by the owner of the caches before each search for memory.
  void set_cached_bytes(Bytes bytes) VPMM_REQUIRES(pool_lock) { cached_bytes_ = bytes; }
  // Notes an allocation, before it is counted.
  void note_placed(const std::optional<time::TimelineId>& timeline) VPMM_REQUIRES(pool_lock);
  // Notes the bytes alive, and `announced` more.
  void note_peak(Bytes announced = 0) VPMM_REQUIRES(pool_lock) {
    peak_live_ = std::max(peak_live_, wanted_bytes() + announced);
  }
  void reset_peak() VPMM_REQUIRES(pool_lock) { peak_live_ = wanted_bytes(); }

 private:
  // Bytes of growth allowed although idle chunks could be moved. `peak`: most bytes alive at once.
  Bytes early_growth(Bytes peak) const VPMM_REQUIRES(pool_lock);
  // Bytes up to which early growth may fill this GPU. A pool that holds as much spares memory.
  Bytes most_early() const VPMM_REQUIRES(pool_lock);
  bool grows_past_peak(Bytes growth) const VPMM_REQUIRES(pool_lock);
  Bytes on_its_way(const Plan& plan, const Caller& caller) const VPMM_REQUIRES(pool_lock);

  const Memory& memory_;
  const GpuRoom& room_;
  Bytes peak_live_ VPMM_GUARDED_BY(pool_lock) = 0;  // most bytes alive at once, in whole grains
  Bytes cached_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
  // Note [Own memory first]: last placing timeline, and the count of allocations at its last
  // change.
  std::optional<time::TimelineId> last_placer_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t placer_changed_ VPMM_GUARDED_BY(pool_lock) = 0;
  bool has_several_placers_ VPMM_GUARDED_BY(pool_lock) = false;
};

}  // namespace vpmm::pool
