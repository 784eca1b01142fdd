// small: whose an address is, and who may free it.
#include <algorithm>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

// --- blocks and runs -----------------------------------------------------------------------------------------------

bool SmallPool::is_arena(const Region& page) { return arena_in(page) != nullptr; }

Arena& SmallPool::arena_at(DevicePtr p) const {
  const Region* page = pool_.owner(p);
  VPMM_CHECK(page != nullptr && is_arena(*page), message_of("no arena around {:#x}", to_integer(p)));
  return *arena_in(*page);
}

// Null: nobody's. What the unit is part of may change at any time without the shard's lock, but not whose it is: that
// takes the pool's.
Shard* SmallPool::shard_at(const Arena& arena, DevicePtr p) {
  const Owner owner = owner_in(arena.owners[arena.unit_of(p)]);
  if (const Slab* const slab = owner.slab()) return slab->shard();
  return owner.extent() == nullptr ? nullptr : owner.extent()->shard();
}

// Null: the unit is another's.
Extent* SmallPool::extent_at(const Arena& arena, DevicePtr p, const Shard& shard) {
  const Owner owner = owner_in(arena.owners[arena.unit_of(p)]);
  const Slab* const slab = owner.slab();
  if (slab != nullptr && slab->shard() != &shard) return nullptr;
  VPMM_RACE_WINDOW("whose a unit is was read, its extent was not");
  Extent* const extent = slab != nullptr ? slab->extent : owner.extent();
  return extent != nullptr && extent->shard() == &shard ? extent : nullptr;
}

// An extent of the shard that has whole pages, the last of which ends there; null: there is none.
Extent* SmallPool::pages_until(const Arena& arena, DevicePtr end, const Shard& shard) {
  if (arena.range.begin == end || arena.pages[arena.page_of(end) - 1] == nullptr) return nullptr;
  Extent* const extent = extent_at(arena, end - kUnit, shard);
  const bool is_so = extent != nullptr && extent->range().end() == end && extent->units >= shard.page_units &&
                     extent->units % shard.page_units == 0 && arena.unit_of(extent->begin) % shard.page_units == 0;
  return is_so ? extent : nullptr;
}

// None: nothing live of the shard is there.
std::optional<Allocation> SmallPool::live_at(const Arena& arena, DevicePtr p, Shard& shard) {
  Allocation found;
  found.extent = extent_at(arena, p, shard);
  if (found.extent == nullptr) return std::nullopt;
  found.shard = &shard;
  found.timeline = shard.timeline;
  found.slab = owner_in(arena.owners[arena.unit_of(p)]).slab();
  if (found.slab != nullptr) {
    found.index = found.slab->index_of(p);
    if (!found.slab->is_live(found.index)) return std::nullopt;
    found.range = {found.slab->block(found.index), found.slab->block_bytes()};
    found.requested = found.slab->requested(found.index);
    return found;
  }
  const std::optional<std::uint64_t> run = found.extent->run_until(found.extent->unit_of(p));
  if (!run) return std::nullopt;
  found.index = *run;
  found.requested = found.extent->requested(*run);
  found.range = {found.extent->at(found.index), run_units(found.requested) * kUnit};
  if (!found.range.contains(p)) return std::nullopt;
  return found;
}

std::optional<Allocation> SmallPool::find(const Region& page, DevicePtr p) const {
  const Arena& arena = *arena_in(page);
  Shard* const shard = shard_at(arena, p);
  if (shard == nullptr) return std::nullopt;
  VPMM_RACE_WINDOW("whose an address is was read, what is there was not");
  const CacheGuard guard(*shard);
  return live_at(arena, p, *shard);
}

const Vector<time::TimelineId>& SmallPool::other_uses(const Allocation& allocation) const {
  static const auto& none = *new Vector<time::TimelineId>;  // no destructor, so no exit handler
  const auto found = uses_.find(allocation.range.begin);
  return found == uses_.end() ? none : found->second;
}

bool SmallPool::record_use(const Region& page, DevicePtr p, time::Timeline& timeline) {
  const Arena& arena = *arena_in(page);
  Shard* const shard = shard_at(arena, p);
  if (shard == nullptr) return false;
  DevicePtr begin{};
  {
    const CacheGuard guard(*shard);
    const std::optional<Allocation> live = live_at(arena, p, *shard);
    if (!live) return false;
    begin = live->range.begin;
    if (live->slab != nullptr)
      live->slab->set_used_elsewhere(live->index, true);
    else
      live->extent->set_used_elsewhere(live->index);
  }
  // From here on no warm call ends it.
  Vector<time::TimelineId>& uses = uses_[begin];
  if (std::find(uses.begin(), uses.end(), timeline.id) != uses.end()) return true;
  uses.push_back(timeline.id);
  ++timeline.tenants;
  return true;
}

void SmallPool::forget_uses(DevicePtr begin) {
  const auto found = uses_.find(begin);
  if (found == uses_.end()) return;
  for (const time::TimelineId timeline : found->second) count_tenant(timeline, -1);
  uses_.erase(found);
}

std::optional<Allocation> SmallPool::end(const Region& page, DevicePtr begin) {
  const Arena& arena = *arena_in(page);
  Shard* const shard = shard_at(arena, begin);
  if (shard == nullptr) return std::nullopt;
  const CacheGuard guard(*shard);
  std::optional<Allocation> live = live_at(arena, begin, *shard);
  if (!live || live->range.begin != begin) return std::nullopt;
  note_peak(*shard);
  if (live->slab != nullptr)
    shard->end_block(live->slab, live->index);
  else
    shard->end_run(*live->extent, live->index, live->requested);
  note(*shard);
  return live;
}

// --- allocations of whole pages ------------------------------------------------------------------------------------

void SmallPool::enlist(Region& pages, Bytes requested, Shard& shard) {
  const CacheGuard guard(shard);
  enter(pages, requested, shard);
}

// Where the directory has no entry for them, frees take the pool's lock.
void SmallPool::enter(Region& pages, Bytes requested, Shard& shard) {
  PageEntry* entry = directory_.at(pages.range.begin);
  if (entry == nullptr) {
    for (const AddressRange& reservation : pool_.reservations())
      if (reservation.contains(pages.range.begin)) directory_.cover(reservation);
    entry = directory_.at(pages.range.begin);
    if (entry == nullptr) return;
  }
  pages.asked = requested;
  entry->enter(pages, &shard);
}

// Under its lock they are ended by warm calls, and leave the directory. Null: they are not listed.
Shard* SmallPool::lister_of(const Region& pages) const {
  const PageEntry* const entry = directory_.at(pages.range.begin);
  return entry != nullptr && entry->owner() == Owner(&pages) ? entry->shard() : nullptr;
}

bool SmallPool::record_use(Region& pages, time::Timeline& timeline) {
  const auto record = [&]() VPMM_REQUIRES(pool_lock) {
    if (is_kept(pages)) return false;
    pool_.record_use(&pages, timeline);
    return true;
  };
  Shard* const shard = lister_of(pages);
  if (shard == nullptr) return record();
  const CacheGuard guard(*shard);
  return record();
}

// The index counts what the first user asked for; from here on nobody does.
bool SmallPool::end(const Region& pages) {
  Shard* const shard = lister_of(pages);
  if (shard == nullptr) return !is_kept(pages);
  const CacheGuard guard(*shard);
  if (is_kept(pages)) return false;
  note_peak(*shard);
  pages_.requested += static_cast<std::int64_t>(pages.tenant.requested) - static_cast<std::int64_t>(pages.asked);
  directory_.at(pages.range.begin)->leave();
  return true;
}

Bytes SmallPool::requested_of(const Region& pages) const {
  Shard* const shard = lister_of(pages);
  if (shard == nullptr) return pages.tenant.requested;
  const CacheGuard guard(*shard);
  return pages.asked;
}

}  // namespace vpmm::small
