// SPDX-License-Identifier: Apache-2.0
// small: allocations are found, marked and ended under the lock of their cache.
#include "small/ownership.hpp"

#include <utility>

#include "base/host_memory.hpp"
#include "base/race_window.hpp"

namespace vpmm::small {

using region::Region;

// --- blocks and spans

Segment* segment_at(const PageRun& run, DevicePtr p, const StreamCache& cache) {
  const Content content = content_in(run.contents[run.unit_of(p)]);
  const Slab* const slab = content.slab();
  if (slab != nullptr && slab->cache() != &cache) return nullptr;
  VPMM_RACE_WINDOW("whose a unit is was read, its segment was not");
  Segment* const segment = slab != nullptr ? slab->segment : content.segment();
  return segment != nullptr && segment->cache() == &cache ? segment : nullptr;
}

namespace {

// Cache of the unit around `p`; null if none. Without the lock of the cache the content of the unit
// may change at any time; its cache changes only under the pool's lock.
StreamCache* cache_at(const PageRun& run, DevicePtr p) VPMM_REQUIRES(pool_lock) {
  const Content content = content_in(run.contents[run.unit_of(p)]);
  if (const Slab* const slab = content.slab()) return slab->cache();
  return content.segment() == nullptr ? nullptr : content.segment()->cache();
}

// Live allocation of the cache around `p`; nullopt if none.
std::optional<Allocation> live_at(const PageRun& run, DevicePtr p, StreamCache& cache)
    VPMM_REQUIRES(cache_lock) {
  Allocation found;
  found.segment = segment_at(run, p, cache);
  if (found.segment == nullptr) return std::nullopt;
  found.cache = &cache;
  found.timeline = cache.service.timeline;
  found.slab = content_in(run.contents[run.unit_of(p)]).slab();
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

// Calls `visit` for the live allocation around `p`, under the lock of the cache that has it.
template <typename Visit>
std::optional<Allocation> visit_live(const PageRun& run, DevicePtr p, Visit&& visit)
    VPMM_REQUIRES(pool_lock) {
  StreamCache* const cache = cache_at(run, p);
  if (cache == nullptr) return std::nullopt;
  VPMM_RACE_WINDOW("whose an address is was read, what is there was not");
  const CacheGuard guard(*cache);
  std::optional<Allocation> live = live_at(run, p, *cache);
  if (live) visit(*live);
  return live;
}

// Keeps warm calls from ending it.
void mark_used_elsewhere(const Allocation& live) VPMM_REQUIRES(cache_lock) {
  if (live.slab != nullptr)
    live.slab->set_used_elsewhere(live.index, true);
  else
    live.segment->set_used_elsewhere(live.index);
}

}  // namespace

std::optional<Allocation> Ownership::find(const Region& page, DevicePtr p) {
  return visit_live(*run_in(page), p, [](const Allocation&) {});
}

bool Ownership::record_use(const Region& page, DevicePtr p, time::Timeline& timeline) {
  const std::optional<Allocation> live = visit_live(*run_in(page), p, mark_used_elsewhere);
  if (!live) return false;
  uses_.add(live->range.begin, timeline);  // safe without the lock: no warm call ends it now
  return true;
}

void Ownership::free_through_lock(const Region& page, DevicePtr begin) {
  visit_live(*run_in(page), begin, mark_used_elsewhere);
}

std::optional<Allocation> Ownership::end(const Region& page, DevicePtr begin) {
  const auto end_at = [&](const Allocation& live) VPMM_REQUIRES(pool_lock, cache_lock) {
    if (live.range.begin != begin) return;
    StreamCache& cache = *live.cache;
    if (live.slab != nullptr)
      cache.end_block(live.slab, live.index);
    else
      cache.end_span(*live.segment, live.index, live.requested);
  };
  const std::optional<Allocation> live = visit_live(*run_in(page), begin, end_at);
  return live && live->range.begin == begin ? live : std::nullopt;
}

// --- allocations of whole pages

void Ownership::enlist(Region& pages, Bytes requested, StreamCache& cache) {
  cover(pages);
  const CacheGuard guard(cache);
  enter(pages, requested, cache);
  if (caches_.are_bounded() && serving_.may_be_cached(requested, kGrain))
    static_cast<void>(cache.refuse(pages.range.size));  // it may be allowed as much later
}

void Ownership::cover(const Region& pages) {
  if (pagemap_.at(pages.range.begin) != nullptr) return;
  for (const AddressRange& reservation : pool_.memory().reservations)
    if (reservation.contains(pages.range.begin)) pagemap_.cover(reservation);
}

void Ownership::enter(Region& pages, Bytes requested, StreamCache& cache) {
  PagemapEntry* const entry = pagemap_.at(pages.range.begin);
  if (entry == nullptr) return;  // frees there take the pool's lock
  pages.asked = requested;
  entry->enter(pages, &cache);
}

// Cache that lists the pages: its lock guards their end and their entry. Null if none.
StreamCache* Ownership::lister_of(const Region& pages) const {
  const PagemapEntry* const entry = pagemap_.at(pages.range.begin);
  return entry != nullptr && entry->content() == Content(&pages) ? entry->cache() : nullptr;
}

// A warm free reads the list of uses under the lock of the cache. The list has room for one more
// before that lock is taken, and its old memory goes back after it.
bool Ownership::record_use(Region& pages, time::Timeline& timeline) {
  Vector<time::TimelineId> uses;
  uses.reserve(pages.owner.other_uses.size() + 1);
  const auto record = [&]() VPMM_REQUIRES(pool_lock) {
    if (is_cached(pages)) return false;
    uses = pages.owner.other_uses;
    time::add_use(uses, timeline);
    std::swap(pages.owner.other_uses, uses);
    return true;
  };
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return record();
  const CacheGuard guard(*cache);
  return record();
}

// The index counts the request of the first user, until the pool ends the allocation.
bool Ownership::end(const Region& pages) {
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return !is_cached(pages);
  const CacheGuard guard(*cache);
  if (is_cached(pages)) return false;
  ledger_.pages_end(pages.owner.requested, pages.asked);
  leave(pages);
  return true;
}

Bytes Ownership::requested_of(const Region& pages) const {
  StreamCache* const cache = lister_of(pages);
  if (cache == nullptr) return pages.owner.requested;
  const CacheGuard guard(*cache);
  return pages.asked;
}

}  // namespace vpmm::small
