// SPDX-License-Identifier: Apache-2.0
// small: the pages of the pool that are cut, and their units that are free for any stream.
#pragma once

#include <cstdint>
#include <string>

#include "base/host_memory.hpp"
#include "base/stable_store.hpp"
#include "pool/pool.hpp"
#include "region/region_index.hpp"
#include "small/ledger.hpp"
#include "small/pagemap.hpp"
#include "small/segment.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Units are free with a stamp, as the pool's ranges are, or part of a segment.
class CutPages {
 public:
  CutPages(pool::Pool& pool, time::Timelines& timelines, Pagemap& pagemap, Ledger& ledger)
      : pool_(pool),
        timelines_(timelines),
        pagemap_(pagemap),
        ledger_(ledger),
        page_size_(pool.memory().page_size()) {}

  // --- pages ---
  // Request to the pool for pages that serve `bytes`.
  pool::PageRequest next_pages(Bytes bytes) const;
  // Adds the pages of an allocation of the pool. Throws std::bad_alloc without host memory, after
  // the pages that are not added went back to the pool.
  void add(const pool::Placed& pages, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Gives pages that are all free back to the pool.
  void give_idle_pages() VPMM_REQUIRES(pool_lock);
  PageRun& run_at(DevicePtr p) const VPMM_REQUIRES(pool_lock);

  // --- units ---
  // Part of a free region that the caller may use at once.
  struct FreePart {
    region::Region* free = nullptr;  // null: none
    AddressRange part;
    std::uint64_t number = 0;  // as complete as its memory; 0: complete
  };
  // Up to `most` bytes within one page; if `least` fits in no page, `least` across two.
  FreePart find(Bytes least, Bytes most, Bytes alignment, const pool::Caller& caller) const
      VPMM_REQUIRES(pool_lock);
  FreePart find_aligned(Bytes size, Bytes alignment, const pool::Caller& caller) const
      VPMM_REQUIRES(pool_lock);
  // Whole pages.
  FreePart find_pages(Bytes least, const pool::Caller& caller) const VPMM_REQUIRES(pool_lock);
  // Makes the room a segment.
  Segment* cut(const FreePart& room, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Takes the room for the segment before it, which grows.
  void take_units(const FreePart& room, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Segment of whole pages of the cache that ends there; null if none.
  Segment* pages_until(DevicePtr end, StreamCache& cache) const VPMM_REQUIRES(pool_lock);
  // Record for the part that is split off a segment.
  Segment* new_segment() VPMM_REQUIRES(pool_lock) { return segments_.take(); }
  void forget(Segment* unused) VPMM_REQUIRES(pool_lock) { segments_.give_back(unused); }
  // Ends a segment that is all free and in no cache.
  void end(Segment* segment, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  void advance(const time::StampPart& done) VPMM_REQUIRES(pool_lock) {
    units_.advance(done.timeline, done.sequence);
  }

  // --- figures ---
  Bytes bytes() const VPMM_REQUIRES(pool_lock) { return segment_bytes() + free_bytes(); }
  Bytes segment_bytes() const VPMM_REQUIRES(pool_lock) {
    return units_.bytes(region::RegionState::allocated);
  }
  Bytes free_bytes() const VPMM_REQUIRES(pool_lock) {
    return units_.bytes(region::RegionState::free);
  }
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) { return units_.pending_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return units_.pending_bytes(timeline);
  }
  // All records, in use or not.
  const Vector<Segment*>& segments() const VPMM_REQUIRES(pool_lock) { return segments_.all(); }
  // Visits units that are in no segment.
  void for_each_free(FunctionRef<void(const region::Region&)> visit) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);
  // Tells if all of the segment was cut for it, and its pages name it.
  bool backs(const Segment& segment) const VPMM_REQUIRES(pool_lock, cache_lock);

 private:
  void add_page(region::Region* page, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  PageRun& run_around(DevicePtr page) VPMM_REQUIRES(pool_lock);
  void give_pages(region::Region* free) VPMM_REQUIRES(pool_lock);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  Pagemap& pagemap_;
  Ledger& ledger_;
  const Bytes page_size_;
  region::RegionIndex units_ VPMM_GUARDED_BY(pool_lock){kUnit};  // of the runs
  StableStore<PageRun> runs_ VPMM_GUARDED_BY(pool_lock);
  StableBytes unit_tables_ VPMM_GUARDED_BY(pool_lock);  // of the runs
  Map<DevicePtr, PageRun*> run_by_begin_ VPMM_GUARDED_BY(pool_lock);
  StableStore<Segment> segments_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::small
