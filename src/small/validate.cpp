// SPDX-License-Identifier: Apache-2.0
// small: the invariants.
#include <fmt/format.h>

#include "base/host_memory.hpp"

#include "small/small_pool.hpp"

namespace vpmm::small {

using region::Region;

namespace {

// Tells if each page of the segment names the run, or the slab that fills the page, or the segment
// if it has all of the page and no slab there.
bool is_entered(const Segment& segment) VPMM_REQUIRES(cache_lock) {
  const PageRun& run = *segment.run;
  if (run.entries == nullptr) return true;
  const AddressRange range = segment.range();
  for (std::size_t page = run.page_of(range.begin);
       page <= run.page_of(range.begin + (range.size - 1)); ++page) {
    const Content content = run.entries[page].content();
    const Slab* const slab = content.slab();
    const bool is_filled = slab != nullptr && slab->segment == &segment &&
                           run.is_page({slab->begin, slab->bytes()}) &&
                           run.page_of(slab->begin) == page;
    bool is_own = content.segment() == &segment;
    const std::uint64_t units = run.page_size / kUnit;
    for (std::uint64_t unit = page * units; is_own && unit < (page + 1) * units; ++unit)
      is_own = content_in(run.contents[unit]).segment() == &segment;
    if (content != Content(&run) && !is_filled && !is_own) return false;
  }
  return true;
}

}  // namespace

// Sees one state of each cache, so messages are made under its lock. Called by tests.
std::string SmallPool::validate() {
  if (std::string broken = cut_pages_.validate(); !broken.empty()) return "small: " + broken;
  HashMap<const StreamCache*, Vector<const Segment*>> segments;
  Bytes sum = 0;
  for (const Segment* segment : cut_pages_.segments()) {
    if (segment->cache() == nullptr) continue;
    segments[segment->cache()].push_back(segment);
    sum += segment->range().size;
  }
  if (sum != cut_pages_.segment_bytes())
    return fmt::format("small: segments have {} bytes, and {} are cut for them", sum,
                       cut_pages_.segment_bytes());
  Bytes allowed = 0;
  for (StreamCache& cache : caches_.all()) {
    const Vector<const Segment*>& own = segments[&cache];
    const CacheGuard guard(cache);
    allowed += cache.keeping.allowed;
    if (cache.keeping.most != kAlwaysKept + cache.keeping.allowed)
      return "small: a cache may keep what it is not allowed to";
    for (const Segment* segment : own)
      if (!cut_pages_.backs(*segment)) return "small: a segment is not what was cut for it";
    if (std::string broken = cache.segments.validate(&cache, own); !broken.empty())
      return "small: " + broken;
    if (std::string broken = cache.slabs.validate(&cache); !broken.empty())
      return "small: " + broken;
    if (std::string broken = validate_pages(cache); !broken.empty()) return "small: " + broken;
  }
  if (allowed != caches_.allowed()) return "small: what caches may keep is counted wrongly";
  return waiting_.is_counted() ? "" : "small: what waits is counted wrongly";
}

std::string CutPages::validate() const {
  if (std::string broken = units_.validate(); !broken.empty()) return broken;
  Bytes in_pages = 0;
  for (const auto& [begin, run] : run_by_begin_) {
    if (run->range.begin != begin) return "a run of pages stands elsewhere";
    for (const Region* page : run->pages) {
      if (page == nullptr) continue;
      in_pages += page_size_;
      if (run_in(*page) != run || !run->range.contains(page->range))
        return "a page is not its run's";
    }
  }
  std::size_t in_caches = 0;
  for (const Segment* segment : segments_.all()) in_caches += segment->cache() != nullptr;
  if (segments_.count_in_use() != in_caches || runs_.count_in_use() != run_by_begin_.size())
    return "records of segments or runs were not given back";
  if (in_pages == bytes()) return {};
  return fmt::format("{} bytes of pages in runs, {} bytes cut or free", in_pages, bytes());
}

bool CutPages::backs(const Segment& segment) const {
  const AddressRange range = segment.range();
  for (DevicePtr at = range.begin; at < range.end();) {
    const Region* const part = units_.allocated_around(at);
    if (part == nullptr) return false;
    at = part->range.end();
  }
  return is_entered(segment);
}

std::string SmallPool::validate_pages(const StreamCache& cache) const {
  Bytes sum = 0;
  for (std::uint64_t size = 0; size < PageSizes::kCount; ++size) {
    const bool is_marked = cache.pages.least_from(size) == size;
    if (is_marked == cache.pages.of(size).empty())
      return "a size of cached regions is marked wrongly";
    const Region* region = cache.pages.of(size).first();
    for (std::size_t i = 0; i < cache.pages.of(size).size(); ++i) {
      sum += region->range.size;
      if (holder_of(*region) != &cache) return "a cached region names another holder";
      if (region->state != region::RegionState::allocated)
        return "a cached region is not allocated";
      if (serving_.page_sizes().number_of(region->range.size) != size)
        return "a cached region stands among others of another size";
      region = CachedList::after(*region);
    }
  }
  if (sum == cache.pages.bytes()) return {};
  return fmt::format("{} bytes of pages cached, {} counted", sum, cache.pages.bytes());
}

std::string StreamSlabs::validate(const StreamCache* owner) const {
  std::uint64_t empty = 0;
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    for (const Slab* slab = open_[c].first; slab != nullptr; slab = slab->next) {
      if (slab->is_empty()) empty += slab->units;
      if (slab->is_full()) return "a full slab is listed as open";
      if (slab->free.count() != slab->free_count) return "a slab counts its free blocks wrongly";
      if (slab->cache() != owner || slab->slab_class != c)
        return "a slab stands in a list that is not its own";
      if (slab->free.overlaps(slab->exceptions.waiting)) return "a block is free and waiting";
      if (slab->has_exceptions !=
          !(slab->exceptions.waiting.empty() && slab->exceptions.used_elsewhere.empty()))
        return "a slab's note of blocks that wait or are used elsewhere is wrong";
      const PageRun& run = *slab->segment->run;
      for (std::uint64_t unit = 0; unit < slab->units; ++unit)
        if (content_in(run.contents[run.unit_of(slab->begin) + unit]) != Content(*slab, unit))
          return "a unit of a slab names another content or place";
      if (slab->is_empty() && (slab->next != nullptr || slab->previous != nullptr))
        return "an empty slab stands among open ones";
    }
  }
  return empty == empty_units_.now() ? "" : "units of empty slabs are counted wrongly";
}

std::string StreamSegments::validate(const StreamCache* owner,
                                     const Vector<const Segment*>& all) const {
  std::uint64_t units = 0, free_units = 0, large_units = 0, free_segment_units = 0, with_room = 0,
                listed = 0;
  for (const Segment* segment : all) {
    if (std::string broken = segment->validate(); !broken.empty()) return broken;
    if (segment->units > page_units_ && !may_have_free_pages())
      return "a segment of several pages is not noted";
    units += segment->units;
    free_units += segment->free_units();
    with_room += segment->longest() != 0;
    if (segment->is_free()) free_segment_units += segment->units;
    for (std::uint64_t unit = 0; unit < segment->units; ++unit) {
      const std::uint64_t span =
          segment->has_span_at(unit) ? span_units(segment->requested(unit)) : 0;
      if (is_large(span)) large_units += span;
    }
  }
  lists_.for_each([&](const Segment* segment) { listed += segment->cache() == owner; });
  if (listed != with_room)
    return fmt::format("{} segments are listed, and {} have room", listed, with_room);
  if (all.size() == count_ && units == this->units() && free_units == free_units_ &&
      large_units == large_units_ && free_segment_units == free_segment_units_.now())
    return {};
  return fmt::format(
      "{} segments of {} units, {} free, {} in free segments, {} in large spans; {}, {}, {}, {}, "
      "{} counted",
      all.size(), units, free_units, free_segment_units, large_units, count_, this->units(),
      free_units_, free_segment_units_.now(), large_units_);
}

}  // namespace vpmm::small
