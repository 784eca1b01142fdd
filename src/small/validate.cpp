// small: what is always so.
#include <algorithm>

#include <fmt/format.h>

#include "base/host_memory.hpp"

#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

namespace {

// Whether each page that it lies in names the arena, or the slab of the extent that fills the page, or the extent,
// which has all of the page then, without a slab.
bool is_entered(const Extent& extent) VPMM_REQUIRES(cache_lock) {
  const Arena& arena = *extent.arena;
  if (arena.entries == nullptr) return true;
  const AddressRange range = extent.range();
  for (std::size_t page = arena.page_of(range.begin); page <= arena.page_of(range.begin + (range.size - 1)); ++page) {
    const Owner owner = arena.entries[page].owner();
    const Slab* const slab = owner.slab();
    const bool is_filled = slab != nullptr && slab->extent == &extent && arena.is_page({slab->begin, slab->bytes()}) &&
                           arena.page_of(slab->begin) == page;
    bool is_own = owner.extent() == &extent;
    const std::uint64_t units = arena.page_size / kUnit;
    for (std::uint64_t unit = page * units; is_own && unit < (page + 1) * units; ++unit)
      is_own = owner_in(arena.owners[unit]).extent() == &extent;
    if (owner != Owner(&arena) && !is_filled && !is_own) return false;
  }
  return true;
}

}  // namespace

std::string SmallPool::validate() {
  if (std::string broken = spans_.validate(); !broken.empty()) return "small: " + broken;
  HashMap<const Shard*, Vector<const Extent*>> extents;
  for (const Extent* extent : extents_.all())
    if (extent->shard() != nullptr) extents[extent->shard()].push_back(extent);
  std::uint64_t units = 0;
  for (const auto& [shard, of_shard] : extents)
    for (const Extent* extent : of_shard) units += extent->units;
  if (units != extent_units_ || units * kUnit != spans_.bytes(region::RegionState::allocated))
    return fmt::format("small: extents have {} units, {} are counted and {} bytes cut for them", units, extent_units_,
                       spans_.bytes(region::RegionState::allocated));
  for (Shard& shard : shards_)
    if (std::string broken = validate_shard(shard, extents[&shard]); !broken.empty()) return "small: " + broken;
  if (std::string broken = validate_arenas(); !broken.empty()) return "small: " + broken;
  Bytes waiting = 0;
  for (const auto& [part, blocks] : waiting_)
    for (const Waiting& block : blocks) waiting += block.bytes;
  if (waiting != waiting_bytes_) return fmt::format("small: {} bytes wait, {} are counted", waiting, waiting_bytes_);
  return {};
}

std::string SmallPool::validate_arenas() const {
  std::uint64_t pages = 0;
  for (const auto& [begin, arena] : arena_by_begin_) {
    if (arena->range.begin != begin) return "an arena stands elsewhere";
    for (const Region* page : arena->pages) {
      if (page == nullptr) continue;
      ++pages;
      if (arena_in(*page) != arena || !arena->range.contains(page->range)) return "a page is not its arena's";
    }
  }
  const Bytes cut = spans_.bytes(region::RegionState::allocated) + spans_.bytes(region::RegionState::free);
  if (pages != page_count_ || cut != pages * page_size_)
    return fmt::format("{} pages in arenas, {} counted, {} bytes cut or free", pages, page_count_, cut);
  return {};
}

std::string SmallPool::validate_shard(Shard& shard, const Vector<const Extent*>& extents) const {
  const CacheGuard guard(shard);
  if (std::string broken = validate_extents(shard, extents); !broken.empty()) return broken;
  Bytes kept = 0;
  Bytes kept_pages = 0;
  for (std::uint64_t pages = 0; pages <= kMostPages; ++pages) {
    const bool is_marked = shard.pages.least_from(pages) == pages;
    if (is_marked == shard.pages.of(pages).empty()) return "a size of kept regions is marked wrongly";
    for (const auto& [region, number] : shard.pages.of(pages)) {
      kept_pages += region->range.size;
      if (holder_of(*region) != &shard) return "a kept region names another holder";
      if (region->state != region::RegionState::allocated) return "a kept region is not allocated";
      if (round_up(region->tenant.requested, page_size_) != pages * page_size_)
        return "a kept region stands among others of another size";
    }
  }
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    for (const Slab* slab = shard.open[c].first; slab != nullptr; slab = slab->next) {
      if (slab->is_empty()) kept += slab->bytes();
      if (slab->is_full()) return "a full slab is listed as open";
      if (slab->free.count() != slab->free_count) return "a slab counts its free blocks wrongly";
      if (slab->shard() != &shard || slab->slab_class != c) return "a slab stands in a list that is not its own";
      if (slab->free.overlaps(slab->waiting)) return "a block is free and waiting";
      if (slab->has_exceptions != !(slab->waiting.empty() && slab->used_elsewhere.empty()))
        return "a slab's note of blocks that wait or are used elsewhere is wrong";
      const Arena& arena = *slab->extent->arena;
      for (std::uint64_t unit = 0; unit < slab->units; ++unit)
        if (owner_in(arena.owners[arena.unit_of(slab->begin) + unit]) != Owner(*slab, unit))
          return "a unit of a slab names another owner or place";
      if (slab->is_empty() && (slab->next != nullptr || slab->previous != nullptr))
        return "an empty slab stands among open ones";
    }
  }
  std::uint64_t listed = 0;
  std::uint64_t loose = 0;
  shard.extents.for_each([&](const Extent* extent) VPMM_REQUIRES(cache_lock) {
    if (extent->is_free()) kept += extent->units * kUnit;
    if (!extent->is_free()) loose += extent->paged_units(shard.page_units);
    if (extent->shard() == &shard) ++listed;
  });
  const auto has_room = [](const Extent* extent) VPMM_REQUIRES(cache_lock) { return extent->longest() != 0; };
  if (listed != static_cast<std::uint64_t>(std::count_if(extents.begin(), extents.end(), has_room)))
    return fmt::format("{} extents stand in their shard's list, and others have room", listed);
  if (loose != shard.loose_units)
    return fmt::format("{} units of free pages in extents that are in use, {} counted", loose,
                       shard.loose_units.load());
  if (kept_pages != shard.kept_pages_bytes || kept + kept_pages != shard.kept_bytes)
    return fmt::format("{} bytes kept, {} counted", kept + kept_pages, shard.kept_bytes.load());
  return {};
}

// `extents`: those that name the shard.
std::string SmallPool::validate_extents(const Shard& shard, const Vector<const Extent*>& extents) const {
  std::uint64_t units = 0;
  std::uint64_t free_units = 0;
  std::uint64_t large_units = 0;
  for (const Extent* extent : extents) {
    const AddressRange range = extent->range();
    bool is_cut = true;
    for (DevicePtr at = range.begin; is_cut && at < range.end();) {
      const Region* const span = spans_.owner(at);
      is_cut = span != nullptr;
      if (is_cut) at = span->range.end();
    }
    if (!is_cut) return "an extent is not what was cut for it";
    if (std::string broken = extent->validate(); !broken.empty()) return broken;
    if (!is_entered(*extent)) return "a page of an extent names another owner";
    units += extent->units;
    free_units += extent->free_units;
    for (std::uint64_t unit = 0; unit < extent->units; ++unit) {
      const std::uint64_t run = extent->has_run_at(unit) ? run_units(extent->requested(unit)) : 0;
      if (shard.is_large(run)) large_units += run;
    }
  }
  if (extents.size() == shard.extent_count && units == shard.extent_units && free_units == shard.free_units &&
      large_units == shard.large_units)
    return {};
  return fmt::format("{} extents of {} units, {} free and {} in large runs; the shard counts {}, {}, {} and {}",
                     extents.size(), units, free_units, large_units, shard.extent_count, shard.extent_units,
                     shard.free_units, shard.large_units);
}

}  // namespace vpmm::small
