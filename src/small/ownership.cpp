// small: whose an address is, and who may free it.
#include <algorithm>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

// --- blocks and spans -----------------------------------------------------------------------------------------------

bool SmallPool::is_arena(const Region& page) { return arena_in(page) != nullptr; }

Arena& SmallPool::arena_at(DevicePtr p) const {
  const Region* page = pool_.allocated_around(p);
  VPMM_CHECK(page != nullptr && is_arena(*page), message_of("no arena around {:#x}", to_integer(p)));
  return *arena_in(*page);
}

// Null: nobody's. What the unit is part of may change at any time without the cache's lock, but not whose it is: that
// takes the pool's.
StreamCache* SmallPool::cache_at(const Arena& arena, DevicePtr p) {
  const Content content = content_in(arena.contents[arena.unit_of(p)]);
  if (const Slab* const slab = content.slab()) return slab->cache();
  return content.segment() == nullptr ? nullptr : content.segment()->cache();
}

// Null: the unit is another's.
Segment* SmallPool::segment_at(const Arena& arena, DevicePtr p, const StreamCache& cache) {
  const Content content = content_in(arena.contents[arena.unit_of(p)]);
  const Slab* const slab = content.slab();
  if (slab != nullptr && slab->cache() != &cache) return nullptr;
  VPMM_RACE_WINDOW("whose a unit is was read, its segment was not");
  Segment* const segment = slab != nullptr ? slab->segment : content.segment();
  return segment != nullptr && segment->cache() == &cache ? segment : nullptr;
}

// A segment of the cache that has whole pages, the last of which ends there; null: there is none.
Segment* SmallPool::pages_until(const Arena& arena, DevicePtr end, const StreamCache& cache) {
  if (arena.range.begin == end || arena.pages[arena.page_of(end) - 1] == nullptr) return nullptr;
  Segment* const segment = segment_at(arena, end - kUnit, cache);
  const bool is_so = segment != nullptr && segment->range().end() == end && segment->units >= cache.page_units &&
                     segment->units % cache.page_units == 0 && arena.unit_of(segment->begin) % cache.page_units == 0;
  return is_so ? segment : nullptr;
}

// None: nothing live of the cache is there.
std::optional<Allocation> SmallPool::live_at(const Arena& arena, DevicePtr p, StreamCache& cache) {
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

std::optional<Allocation> SmallPool::find(const Region& page, DevicePtr p) const {
  const Arena& arena = *arena_in(page);
  StreamCache* const cache = cache_at(arena, p);
  if (cache == nullptr) return std::nullopt;
  VPMM_RACE_WINDOW("whose an address is was read, what is there was not");
  const CacheGuard guard(*cache);
  return live_at(arena, p, *cache);
}

const Vector<time::TimelineId>& SmallPool::other_uses(const Allocation& allocation) const {
  static const auto& none = *new Vector<time::TimelineId>;  // no destructor, so no exit handler
  const auto found = uses_.find(allocation.range.begin);
  return found == uses_.end() ? none : found->second;
}

bool SmallPool::record_use(const Region& page, DevicePtr p, time::Timeline& timeline) {
  const Arena& arena = *arena_in(page);
  StreamCache* const cache = cache_at(arena, p);
  if (cache == nullptr) return false;
  DevicePtr begin{};
  {
    const CacheGuard guard(*cache);
    const std::optional<Allocation> live = live_at(arena, p, *cache);
    if (!live) return false;
    begin = live->range.begin;
    if (live->slab != nullptr)
      live->slab->set_used_elsewhere(live->index, true);
    else
      live->segment->set_used_elsewhere(live->index);
  }
  // From here on no warm call ends it.
  Vector<time::TimelineId>& uses = uses_[begin];
  if (std::find(uses.begin(), uses.end(), timeline.id) != uses.end()) return true;
  uses.push_back(timeline.id);
  ++timeline.references;
  return true;
}

void SmallPool::forget_uses(DevicePtr begin) {
  const auto found = uses_.find(begin);
  if (found == uses_.end()) return;
  for (const time::TimelineId timeline : found->second) count_reference(timeline, -1);
  uses_.erase(found);
}

std::optional<Allocation> SmallPool::end(const Region& page, DevicePtr begin) {
  const Arena& arena = *arena_in(page);
  StreamCache* const cache = cache_at(arena, begin);
  if (cache == nullptr) return std::nullopt;
  const CacheGuard guard(*cache);
  std::optional<Allocation> live = live_at(arena, begin, *cache);
  if (!live || live->range.begin != begin) return std::nullopt;
  note_peak(*cache);
  if (live->slab != nullptr)
    cache->end_block(live->slab, live->index);
  else
    cache->end_span(*live->segment, live->index, live->requested);
  note(*cache);
  return live;
}

// --- allocations of whole pages ------------------------------------------------------------------------------------

void SmallPool::enlist(Region& pages, Bytes requested, StreamCache& cache) {
  const CacheGuard guard(cache);
  enter(pages, requested, cache);
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
  note_peak(*cache);
  pages_.requested += static_cast<std::int64_t>(pages.owner.requested) - static_cast<std::int64_t>(pages.asked);
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
