// small: what is always so.
#include <algorithm>

#include <fmt/format.h>

#include "base/host_memory.hpp"

#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

namespace {

// Whether each page that it lies in names the arena, or the slab of the segment that fills the page, or the segment,
// which has all of the page then, without a slab.
bool is_entered(const Segment& segment) VPMM_REQUIRES(cache_lock) {
  const Arena& arena = *segment.arena;
  if (arena.entries == nullptr) return true;
  const AddressRange range = segment.range();
  for (std::size_t page = arena.page_of(range.begin); page <= arena.page_of(range.begin + (range.size - 1)); ++page) {
    const Content content = arena.entries[page].content();
    const Slab* const slab = content.slab();
    const bool is_filled = slab != nullptr && slab->segment == &segment &&
                           arena.is_page({slab->begin, slab->bytes()}) && arena.page_of(slab->begin) == page;
    bool is_own = content.segment() == &segment;
    const std::uint64_t units = arena.page_size / kUnit;
    for (std::uint64_t unit = page * units; is_own && unit < (page + 1) * units; ++unit)
      is_own = content_in(arena.contents[unit]).segment() == &segment;
    if (content != Content(&arena) && !is_filled && !is_own) return false;
  }
  return true;
}

}  // namespace

std::string SmallPool::validate() {
  if (std::string broken = units_.validate(); !broken.empty()) return "small: " + broken;
  HashMap<const StreamCache*, Vector<const Segment*>> segments;
  for (const Segment* segment : segments_.all())
    if (segment->cache() != nullptr) segments[segment->cache()].push_back(segment);
  std::uint64_t units = 0;
  for (const auto& [cache, of_cache] : segments)
    for (const Segment* segment : of_cache) units += segment->units;
  if (units != segment_units_ || units * kUnit != units_.bytes(region::RegionState::allocated))
    return fmt::format("small: segments have {} units, {} are counted and {} bytes cut for them", units, segment_units_,
                       units_.bytes(region::RegionState::allocated));
  for (StreamCache& cache : caches_)
    if (std::string broken = validate_cache(cache, segments[&cache]); !broken.empty()) return "small: " + broken;
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
  const Bytes cut = units_.bytes(region::RegionState::allocated) + units_.bytes(region::RegionState::free);
  if (pages != page_count_ || cut != pages * page_size_)
    return fmt::format("{} pages in arenas, {} counted, {} bytes cut or free", pages, page_count_, cut);
  return {};
}

std::string SmallPool::validate_cache(StreamCache& cache, const Vector<const Segment*>& segments) const {
  const CacheGuard guard(cache);
  if (std::string broken = validate_segments(cache, segments); !broken.empty()) return broken;
  Bytes cached = 0;
  Bytes cached_pages = 0;
  for (std::uint64_t pages = 0; pages <= kMostPages; ++pages) {
    const bool is_marked = cache.pages.least_from(pages) == pages;
    if (is_marked == cache.pages.of(pages).empty()) return "a size of cached regions is marked wrongly";
    for (const auto& [region, number] : cache.pages.of(pages)) {
      cached_pages += region->range.size;
      if (holder_of(*region) != &cache) return "a cached region names another holder";
      if (region->state != region::RegionState::allocated) return "a cached region is not allocated";
      if (round_up(region->owner.requested, page_size_) != pages * page_size_)
        return "a cached region stands among others of another size";
    }
  }
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    for (const Slab* slab = cache.open[c].first; slab != nullptr; slab = slab->next) {
      if (slab->is_empty()) cached += slab->bytes();
      if (slab->is_full()) return "a full slab is listed as open";
      if (slab->free.count() != slab->free_count) return "a slab counts its free blocks wrongly";
      if (slab->cache() != &cache || slab->slab_class != c) return "a slab stands in a list that is not its own";
      if (slab->free.overlaps(slab->waiting)) return "a block is free and waiting";
      if (slab->has_exceptions != !(slab->waiting.empty() && slab->used_elsewhere.empty()))
        return "a slab's note of blocks that wait or are used elsewhere is wrong";
      const Arena& arena = *slab->segment->arena;
      for (std::uint64_t unit = 0; unit < slab->units; ++unit)
        if (content_in(arena.contents[arena.unit_of(slab->begin) + unit]) != Content(*slab, unit))
          return "a unit of a slab names another content or place";
      if (slab->is_empty() && (slab->next != nullptr || slab->previous != nullptr))
        return "an empty slab stands among open ones";
    }
  }
  std::uint64_t listed = 0;
  std::uint64_t loose = 0;
  cache.segments.for_each([&](const Segment* segment) VPMM_REQUIRES(cache_lock) {
    if (segment->is_free()) cached += segment->units * kUnit;
    if (!segment->is_free()) loose += segment->paged_units(cache.page_units);
    if (segment->cache() == &cache) ++listed;
  });
  const auto has_room = [](const Segment* segment) VPMM_REQUIRES(cache_lock) { return segment->longest() != 0; };
  if (listed != static_cast<std::uint64_t>(std::count_if(segments.begin(), segments.end(), has_room)))
    return fmt::format("{} segments stand in their cache's list, and others have room", listed);
  if (loose != cache.loose_units)
    return fmt::format("{} units of free pages in segments that are in use, {} counted", loose,
                       cache.loose_units.load());
  if (cached_pages != cache.cached_pages_bytes || cached + cached_pages != cache.cached_bytes)
    return fmt::format("{} bytes cached, {} counted", cached + cached_pages, cache.cached_bytes.load());
  return {};
}

// `segments`: those that name the cache.
std::string SmallPool::validate_segments(const StreamCache& cache, const Vector<const Segment*>& segments) const {
  std::uint64_t units = 0;
  std::uint64_t free_units = 0;
  std::uint64_t large_units = 0;
  for (const Segment* segment : segments) {
    const AddressRange range = segment->range();
    bool is_cut = true;
    for (DevicePtr at = range.begin; is_cut && at < range.end();) {
      const Region* const part = units_.allocated_around(at);
      is_cut = part != nullptr;
      if (is_cut) at = part->range.end();
    }
    if (!is_cut) return "a segment is not what was cut for it";
    if (std::string broken = segment->validate(); !broken.empty()) return broken;
    if (!is_entered(*segment)) return "a page of a segment names another content";
    units += segment->units;
    free_units += segment->free_units;
    for (std::uint64_t unit = 0; unit < segment->units; ++unit) {
      const std::uint64_t span = segment->has_span_at(unit) ? span_units(segment->requested(unit)) : 0;
      if (cache.is_large(span)) large_units += span;
    }
  }
  if (segments.size() == cache.segment_count && units == cache.segment_units && free_units == cache.free_units &&
      large_units == cache.large_units)
    return {};
  return fmt::format("{} segments of {} units, {} free and {} in large spans; the cache counts {}, {}, {} and {}",
                     segments.size(), units, free_units, large_units, cache.segment_count, cache.segment_units,
                     cache.free_units, cache.large_units);
}

}  // namespace vpmm::small
