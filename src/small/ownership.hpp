// SPDX-License-Identifier: Apache-2.0
// small: from an address to the allocation around it, and the end of allocations.
#pragma once

#include <cstdint>
#include <optional>

#include "base/host_memory.hpp"
#include "base/race_window.hpp"
#include "pool/pool.hpp"
#include "small/allocation.hpp"
#include "small/ledger.hpp"
#include "small/other_uses.hpp"
#include "small/pagemap.hpp"
#include "small/serving.hpp"
#include "small/stream_caches.hpp"

namespace vpmm::small {

// Note [One call ends an allocation]
// Warm calls of other threads take only a cache's lock. So an allocation found live stays live only
// while that lock is held. end() finds an allocation and ends it under one hold, and only the call
// that ended it frees it. If two threads free the same memory at once, the second changes nothing.

// Owner of an address, as far as it is known without the pool's lock.
struct Location {
  Content content;                      // a slab, a segment or whole pages
  StreamCache* cache = nullptr;         // of the owner; null: not known
  const PagemapEntry* entry = nullptr;  // of the page
};

class alignas(kCacheLine) Ownership {
 public:
  Ownership(pool::Pool& pool, time::Timelines& timelines, Ledger& ledger,
            const StreamCaches& caches, const Serving& serving)
      : pagemap_(pool.memory().page_size()),
        pool_(pool),
        ledger_(ledger),
        caches_(caches),
        serving_(serving),
        uses_(timelines) {}

  Pagemap& pagemap() { return pagemap_; }
  // Any thread, without a lock. The answer holds for a live allocation; for any other address it is
  // arbitrary.
  Location locate(DevicePtr p) const;

  // --- blocks and spans, in a page of the pool that is cut ---
  // Allocation around `p` that was live at some time during the call; nullopt if none.
  static std::optional<Allocation> find(const region::Region& page, DevicePtr p)
      VPMM_REQUIRES(pool_lock);
  // Names the stream for the live allocation around `p`; false if none is live there.
  bool record_use(const region::Region& page, DevicePtr p, time::Timeline& timeline)
      VPMM_REQUIRES(pool_lock);
  // Streams named for it with record_use.
  const Vector<time::TimelineId>& other_uses(const Allocation& allocation) const
      VPMM_REQUIRES(pool_lock) {
    return uses_.of(allocation.range.begin);
  }
  void forget_uses(const Allocation& ended) VPMM_REQUIRES(pool_lock) {
    uses_.forget(ended.range.begin);
  }
  // Keeps warm calls from ending it. Requires: a live allocation begins there.
  static void free_through_lock(const region::Region& page, DevicePtr begin)
      VPMM_REQUIRES(pool_lock);
  // Ends the allocation (Note [One call ends an allocation]); nullopt if none begins there.
  static std::optional<Allocation> end(const region::Region& page, DevicePtr begin)
      VPMM_REQUIRES(pool_lock);

  // --- allocations of whole pages ---
  // Lists it for warm frees. `requested`: by its present user.
  void enlist(region::Region& pages, Bytes requested, StreamCache& cache) VPMM_REQUIRES(pool_lock);
  // Lists it under the lock of the cache, if the pagemap covers the pages.
  void enter(region::Region& pages, Bytes requested, StreamCache& cache)
      VPMM_REQUIRES(pool_lock, cache_lock);
  // Requires: the lock of the cache that lists it.
  void leave(const region::Region& pages) VPMM_REQUIRES(pool_lock, cache_lock) {
    if (PagemapEntry* const entry = pagemap_.at(pages.range.begin)) entry->leave();
  }
  // Names the stream for the allocation, listed or not; false if a cache keeps it.
  bool record_use(region::Region& pages, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Ends the allocation (Note [One call ends an allocation]). After true the caller gives it
  // to the pool.
  bool end(const region::Region& pages) VPMM_REQUIRES(pool_lock);
  Bytes requested_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);

 private:
  void cover(const region::Region& pages) VPMM_REQUIRES(pool_lock);
  StreamCache* lister_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);

  Pagemap pagemap_;  // read without a lock, so it shares no line with fields that change
  pool::Pool& pool_;
  Ledger& ledger_;
  const StreamCaches& caches_;
  const Serving& serving_;
  alignas(kCacheLine) OtherUses uses_;
};

inline Location Ownership::locate(DevicePtr p) const {
  const Pagemap::Place place = pagemap_.find(p);
  if (place.entry == nullptr) return {};
  const Content content = place.entry->content();
  if (content.region() != nullptr) return {content, place.entry->cache(), place.entry};
  Content inside = content;
  Bytes offset = place.offset;
  if (content.run() != nullptr) {
    VPMM_RACE_WINDOW("the owner of a page was read, the word beside it was not");
    const std::atomic<Content>* const units = place.entry->unit_contents();
    if (units == nullptr) return {};
    inside = content_in(units[place.offset / kUnit]);
    offset %= kUnit;
  }
  if (const Slab* const slab = inside.slab()) {
    // With many slabs every line is a miss: this one is fetched together with that of the slab.
    const std::uint64_t index =
        kShapes[inside.slab_class()].index_of(inside.unit() * kUnit + offset);
    __builtin_prefetch(slab->place_of_slack(index));
    return {inside, slab->cache(), place.entry};
  }
  if (const Segment* const segment = inside.segment())
    return {inside, segment->cache(), place.entry};
  return {};
}

}  // namespace vpmm::small
