// small: from an address to the allocation around it, and its end.
#include "base/race_window.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

// --- blocks and spans

Segment* segment_at(const Arena& arena, DevicePtr p, const StreamCache& cache) {
  const Content content = content_in(arena.contents[arena.unit_of(p)]);
  const Slab* const slab = content.slab();
  if (slab != nullptr && slab->cache() != &cache) return nullptr;
  VPMM_RACE_WINDOW("whose a unit is was read, its segment was not");
  Segment* const segment = slab != nullptr ? slab->segment : content.segment();
  return segment != nullptr && segment->cache() == &cache ? segment : nullptr;
}

namespace {

// Whose the unit around `p` is; null: nobody's. What the unit is part of may change at any time
// without the cache's lock, but not whose it is: that takes the pool's.
StreamCache* cache_at(const Arena& arena, DevicePtr p) VPMM_REQUIRES(pool_lock) {
  const Content content = content_in(arena.contents[arena.unit_of(p)]);
  if (const Slab* const slab = content.slab()) return slab->cache();
  return content.segment() == nullptr ? nullptr : content.segment()->cache();
}

// None: nothing live of the cache is there.
std::optional<Allocation> live_at(const Arena& arena, DevicePtr p, StreamCache& cache)
    VPMM_REQUIRES(cache_lock) {
  Allocation found;
  found.segment = segment_at(arena, p, cache);
  if (found.segment == nullptr) return std::nullopt;
  found.cache = &cache;
  found.timeline = cache.timeline;
  found.slab = content_in(arena.contents[arena.unit_of(p)]).slab();
  if (found.slab != nullptr) {
    found.index = found.slab->index_of(p);
    if (!found.slab->is_live(found.index)) return std::nullopt;
    found.range = {found.slab->block(found.index), found.slab->block_bytes()};
    found.requested = found.slab->requested(found.index);
    return found;
  }
  const std::optional<std::uint64_t> span = found.segment->span_until(found.segment->unit_of(p));
  if (!span) return std::nullopt;
  found.index = *span;
  found.requested = found.segment->requested(*span);
  found.range = {found.segment->at(found.index), span_units(found.requested) * kUnit};
  if (!found.range.contains(p)) return std::nullopt;
  return found;
}

// Calls `visit` for what is live around `p`, under the lock of the cache that has it.
template <typename Visit>
std::optional<Allocation> visit_live(const Arena& arena, DevicePtr p, Visit&& visit)
    VPMM_REQUIRES(pool_lock) {
  StreamCache* const cache = cache_at(arena, p);
  if (cache == nullptr) return std::nullopt;
  VPMM_RACE_WINDOW("whose an address is was read, what is there was not");
  const CacheGuard guard(*cache);
  std::optional<Allocation> live = live_at(arena, p, *cache);
  if (live) visit(*live);
  return live;
}

// Which no warm call ends.
void mark_used_elsewhere(const Allocation& live) VPMM_REQUIRES(cache_lock) {
  if (live.slab != nullptr)
    live.slab->set_used_elsewhere(live.index, true);
  else
    live.segment->set_used_elsewhere(live.index);
}

}  // namespace

bool SmallPool::is_arena(const Region& page) { return arena_in(page) != nullptr; }

std::optional<Allocation> SmallPool::find(const Region& page, DevicePtr p) const {
  return visit_live(*arena_in(page), p, [](const Allocation&) {});
}

bool SmallPool::record_use(const Region& page, DevicePtr p, time::Timeline& timeline) {
  const std::optional<Allocation> live = visit_live(*arena_in(page), p, mark_used_elsewhere);
  if (!live) return false;
  uses_.add(live->range.begin, timeline);  // no warm call ends it any more
  return true;
}

void SmallPool::free_through_lock(const Region& page, DevicePtr begin) {
  visit_live(*arena_in(page), begin, mark_used_elsewhere);
}

std::optional<Allocation> SmallPool::end(const Region& page, DevicePtr begin) {
  const auto end_at = [&](const Allocation& live) VPMM_REQUIRES(pool_lock, cache_lock) {
    if (live.range.begin != begin) return;
    StreamCache& cache = *live.cache;
    if (live.slab != nullptr)
      cache.end_block(live.slab, live.index);
    else
      cache.end_span(*live.segment, live.index, live.requested);
  };
  const std::optional<Allocation> live = visit_live(*arena_in(page), begin, end_at);
  return live && live->range.begin == begin ? live : std::nullopt;
}

// --- allocations of whole pages

void SmallPool::enlist(Region& pages, Bytes requested, StreamCache& cache) {
  const CacheGuard guard(cache);
  enter(pages, requested, cache);
  if (caches_.are_bounded() && may_be_cached(requested, kGrain))
    static_cast<void>(cache.is_beyond(pages.range.size));
}

// Where the pagemap has no entry for them, frees take the pool's lock.
void SmallPool::enter(Region& pages, Bytes requested, StreamCache& cache) {
  PagemapEntry* entry = pagemap_.at(pages.range.begin);
  if (entry == nullptr) {
    for (const AddressRange& reservation : pool_.reservations())
      if (reservation.contains(pages.range.begin)) pagemap_.cover(reservation);
    entry = pagemap_.at(pages.range.begin);
    if (entry == nullptr) return;
  }
  pages.asked = requested;
  entry->enter(pages, &cache);
}

// Under its lock they are ended by warm calls, and leave the pagemap. Null: they are not listed.
StreamCache* SmallPool::lister_of(const Region& pages) const {
  const PagemapEntry* const entry = pagemap_.at(pages.range.begin);
  return entry != nullptr && entry->content() == Content(&pages) ? entry->cache() : nullptr;
}

bool SmallPool::record_use(Region& pages, time::Timeline& timeline) {
  const auto record = [&]() VPMM_REQUIRES(pool_lock) {
    if (is_cached(pages)) return false;
    pool_.record_use(&pages, timeline);
    return true;
  };
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return record();
  const CacheGuard guard(*cache);
  return record();
}

// The index counts what the first user asked for; from here on nobody does.
bool SmallPool::end(const Region& pages) {
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return !is_cached(pages);
  const CacheGuard guard(*cache);
  if (is_cached(pages)) return false;
  ledger_.pages_end(pages.owner.requested, pages.asked);
  pagemap_.at(pages.range.begin)->leave();
  return true;
}

Bytes SmallPool::requested_of(const Region& pages) const {
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return pages.owner.requested;
  const CacheGuard guard(*cache);
  return pages.asked;
}

}  // namespace vpmm::small
