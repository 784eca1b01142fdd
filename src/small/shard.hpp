// small: what one stream has in hand: blocks and runs that its own frees left, and that its next requests take.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/spin_lock.hpp"
#include "driver/types.hpp"
#include "region/region.hpp"
#include "small/slab.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Sums over allocations made and ended in a shard. Against the sums of the pool's index, where kept memory still counts
// as allocated, they may be negative.
struct Tally {
  std::int64_t requested = 0;  // bytes
  std::int64_t allocated = 0;  // bytes, rounded up
  std::int64_t live = 0;       // number
  std::int64_t allocations = 0;
  std::int64_t deallocations = 0;
  std::int64_t requested_high = 0;  // largest `requested` since somebody last looked

  void begin(Bytes asked, Bytes rounded) {
    requested += static_cast<std::int64_t>(asked);
    allocated += static_cast<std::int64_t>(rounded);
    ++live;
    requested_high = std::max(requested_high, requested);
  }
  void end(Bytes asked, Bytes rounded) {
    requested -= static_cast<std::int64_t>(asked);
    allocated -= static_cast<std::int64_t>(rounded);
    --live;
  }
};

// A run or an allocation of whole pages that its stream freed, and the number of that free.
struct Kept {
  region::Region* region = nullptr;
  std::uint64_t number = 0;
};

// Note [A shard is a stream's own]
// What a stream freed may be used again by work queued on it later, without any proof: so it stays in the stream's
// hand. Before the pool maps anything new, all shards give back what they keep, and from there on its stamp counts.
//
// Holds: `lock`, for everything but the atomics. Order: the pool's lock first, then one shard's. On its own line, so
// that two streams share none.
class alignas(64) Shard {
 public:
  SpinLock lock;
  // The next call of the stream takes the pool's lock: somebody needs an event, or memory back.
  std::atomic<bool> wants_attention{false};
  std::atomic<std::uint64_t> stream{0};      // StreamId; 0: any-stream, or out of service
  std::optional<time::TimelineId> timeline;  // none: any-stream, or out of service
  std::uint64_t slab_count = 0;              // slabs that name this shard
  std::uint64_t activity = 0;                // calls served here
  std::uint64_t activity_seen = 0;           // when somebody last looked
  time::NumberInHand in_hand;
  std::uint64_t closings_left = 0;  // events others still want of this stream's frees
  std::uint64_t closed_ns = 0;      // when the last of them was asked for
  Bytes bytes_freed = 0;            // since somebody looked whether one is due
  bool wants_event = false;         // one is
  Tally tally;
  std::array<SlabList, kSlabClasses> open{};    // with a free block; of several none is empty
  std::array<SlabList, kSlabClasses> empty{};   // all free
  std::array<std::vector<Kept>, kBins> kept{};  // runs and whole pages, by size; last freed last
  Bytes kept_bytes = 0;
  Bytes kept_pages_bytes = 0;  // of these, in allocations of whole pages

  // A block of the class for the stream's work; null: none in hand.
  DevicePtr take_block(std::size_t slab_class, Bytes requested) {
    SlabList& list = open[slab_class];
    Slab* slab = list.first;
    if (slab == nullptr) {
      slab = empty[slab_class].first;
      if (slab == nullptr) return {};
      empty[slab_class].remove(slab);
      list.push(slab);
    }
    const auto index = static_cast<std::uint64_t>(std::countr_zero(slab->free));
    slab->free &= slab->free - 1;
    if (slab->free == 0) list.remove(slab);
    slab->slack[index] = static_cast<std::uint16_t>(slab->shape().block - requested);
    tally.begin(requested, slab->shape().block);
    ++tally.allocations;
    return slab->block(index);
  }

  // Requires: block `index` of `slab` is live.
  void give_block(Slab* slab, std::uint64_t index) {
    tally.end(slab->requested(index), slab->shape().block);
    ++tally.deallocations;
    slab->number = number_of_a_free();
    set_free(slab, index);
  }

  // The block may be taken from now on.
  void set_free(Slab* slab, std::uint64_t index) {
    const bool was_full = slab->free == 0;
    slab->free |= std::uint64_t{1} << index;
    SlabList& list = open[slab->slab_class];
    if (was_full) {
      if (list.first != nullptr && list.first->is_empty()) put_away(list.first);
      list.push(slab);
    }
    // The only one stays in hand, so that a loop does not move it to and fro.
    if (slab->is_empty() && (slab->next != nullptr || slab->previous != nullptr)) put_away(slab);
  }

  // Whole pages or a run of the size that the bin is for; null: none in hand.
  region::Region* take_kept(std::size_t bin) {
    std::vector<Kept>& freed = kept[bin];
    if (freed.empty()) return nullptr;
    region::Region* region = freed.back().region;
    freed.pop_back();
    kept_bytes -= region->range.size;
    if (bin >= kRunBins) kept_pages_bytes -= region->range.size;
    set_holder(*region, nullptr);
    return region;
  }

  // A run that leaves at most an eighth of the request over; null: none in hand.
  region::Region* take_kept_run(Bytes requested) {
    const std::size_t first = run_bin(run_units(requested));
    for (std::size_t bin = first; bin < first + 3 && bin < kRunBins; ++bin) {
      if (kept[bin].empty()) continue;
      const Bytes size = kept[bin].back().region->range.size;
      if (bin == first || size <= requested + requested / 8) return take_kept(bin);
      return nullptr;
    }
    return nullptr;
  }

  void keep(region::Region* region, std::size_t bin) {
    kept[bin].push_back({region, number_of_a_free()});
    kept_bytes += region->range.size;
    if (bin >= kRunBins) kept_pages_bytes += region->range.size;
    set_holder(*region, this);
  }

 private:
  std::uint64_t number_of_a_free() {
    in_hand.is_used.store(true, std::memory_order_relaxed);
    return in_hand.number.load(std::memory_order_relaxed);
  }
  void put_away(Slab* slab) {
    open[slab->slab_class].remove(slab);
    empty[slab->slab_class].push(slab);
  }
};

}  // namespace vpmm::small
