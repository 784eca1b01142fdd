// SPDX-License-Identifier: Apache-2.0
// small: the way of a request below a page, and of its free.
#include "small/small_pool.hpp"

#include <algorithm>
#include <optional>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::small {

using pool::Caller;

namespace {

constexpr Bytes kIdleDivisor = 4;

// Smallest class with blocks that all begin at `alignment`, which divides a unit; nullopt if only a
// span does.
std::optional<std::size_t> aligned_class(Bytes bytes, Bytes alignment) {
  if (bytes > kLargestBlock) return std::nullopt;
  for (std::size_t c = slab_class(bytes); c < kSlabClasses; ++c)
    if (is_multiple(block_size(c), alignment)) return c;
  return std::nullopt;
}

}  // namespace

SmallPool::SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines,
                     const ServingOptions& options)
    : pool_(pool),
      timelines_(timelines),
      serving_(options, pool.memory()),
      caches_(pool.memory().page_size()),
      ownership_(pool, timelines, ledger_, caches_, serving_),
      cut_pages_(pool, timelines, ownership_.pagemap(), ledger_),
      waiting_(timelines),
      flusher_(pool, timelines, serving_, cut_pages_, caches_, ownership_),
      bounds_(pool, cut_pages_, caches_, flusher_),
      warm_calls_(driver, serving_, ownership_, caches_),
      figures_(cut_pages_, caches_, ledger_, waiting_, pool.memory().page_size()) {}

void SmallPool::prepare() {
  for (const AddressRange& reservation : pool_.memory().reservations)
    ownership_.pagemap().cover(reservation);
  caches_.prepare();
}

// --- a request

bool SmallPool::cuts_pages_for(const Caller& caller, Bytes bytes, Bytes alignment) {
  return serving_.may_be_cached(bytes, alignment) && is_crowded(caller);
}

bool SmallPool::is_crowded(const Caller& caller) {
  if (!caller.own()) return false;
  StreamCache& cache = caches_.of(*caller.timeline);
  const CacheGuard guard(cache);
  return serving_.cuts_pages_for(cache.crowding);
}

DevicePtr SmallPool::take(Bytes bytes, Bytes alignment, const Caller& caller) {
  const Bytes aligned = std::max(alignment, kGrain);
  const std::optional<std::size_t> block =
      aligned <= kUnit ? aligned_class(bytes, aligned) : std::nullopt;
  return block ? take_block(*block, bytes, caller)
               : take_span(bytes, std::max(alignment, kUnit), caller);
}

bool SmallPool::should_cut(const pool::PageRequest& pages, const Caller& caller) {
  if (is_crowded(caller)) flusher_.give_back_pages(caller);  // whole, they serve no other size
  const bool is_idle = figures_.idle_in_cut_bytes() * kIdleDivisor > cut_pages_.bytes();
  return !is_idle &&
         (pool_.planner().can_find(pages, caller) || flusher_.flush_one(caller, pages.size));
}

DevicePtr SmallPool::take_block(std::size_t slab_class, Bytes requested, const Caller& caller) {
  StreamCache& cache = caches_.of(caller);
  for (;;) {
    caches_.provide_slabs(
        cache);  // each time: another thread of the stream may have cut them meanwhile
    std::uint64_t missing = 0;
    {
      const CacheGuard guard(cache);
      const DevicePtr block = cache.take_block(slab_class, requested);
      if (!is_null(block)) return block;
      missing = cache.slabs.least(slab_class).units;
    }
    if (!take_segments(missing, cache, caller)) return {};
  }
}

DevicePtr SmallPool::take_span(Bytes requested, Bytes alignment, const Caller& caller) {
  StreamCache& cache = caches_.of(caller);
  const std::uint64_t units = span_units(requested);
  while (alignment == kUnit) {
    {
      const CacheGuard guard(cache);
      const DevicePtr span = cache.take_span(requested);
      if (!is_null(span)) return span;
    }
    if (!take_segments(units, cache, caller)) return {};
  }
  const CutPages::FreePart room = cut_pages_.find_aligned(units * kUnit, alignment, caller);
  if (room.free == nullptr) return {};
  Segment* const segment = cut_pages_.cut(room, caller);
  const CacheGuard guard(cache);
  cache.segments.attach(segment, &cache, room.number);
  return cache.begin_span(*segment, segment->find(units), requested);
}

// Moves units that the caller may use at once into its cache, up to its share; false if there are
// none, and the pool has to give another page.
bool SmallPool::take_segments(std::uint64_t units, StreamCache& cache, const Caller& caller) {
  const Bytes least = units * kUnit;
  const Bytes most = std::max(least, cache.segments.share_bytes());
  const Bytes alignment = cache.segments.alignment_of(units) * kUnit;
  bool crosses = false;
  {
    const CacheGuard guard(cache);
    crosses = cache.segments.crosses_pages(units);
  }
  if (crosses) return take_whole_pages(least, cache, caller);
  Bytes taken = 0;
  while (most - taken >= least) {
    const CutPages::FreePart room = cut_pages_.find(least, most - taken, alignment, caller);
    if (room.free == nullptr) break;
    taken += room.part.size;
    Segment* const segment = cut_pages_.cut(room, caller);
    const CacheGuard guard(cache);
    cache.segments.attach(segment, &cache, room.number);
  }
  return taken > 0;
}

// Moves whole uncut pages into the cache, for spans that may cross pages; false if there are none.
// They merge with the stream's pages before them, so that the next span may begin there.
bool SmallPool::take_whole_pages(Bytes least, StreamCache& cache, const Caller& caller) {
  const CutPages::FreePart room = cut_pages_.find_pages(least, caller);
  if (room.free == nullptr) return false;
  if (Segment* const before = cut_pages_.pages_until(room.part.begin, cache)) {
    const std::uint64_t units = room.part.size / kUnit;
    SegmentRoom grown(before->units + units);  // like the next line, may throw: no change yet
    cut_pages_.take_units(room, caller);
    const CacheGuard guard(cache);
    cache.segments.grow(*before, units, room.number, grown);
    return true;
  }
  Segment* const segment = cut_pages_.cut(room, caller);
  const CacheGuard guard(cache);
  cache.segments.attach(segment, &cache, room.number);
  return true;
}

void SmallPool::cut_more(const pool::PageRequest& pages, const Caller& caller) {
  const Bytes share = caches_.of(caller).segments.share_bytes();
  for (Bytes taken = 2 * pages.size; taken <= share; taken += pages.size) {
    const std::optional<pool::Placed> more = pool_.find(pages, caller);
    if (!more) return;
    cut_pages_.add(*more, caller);
  }
}

// --- a free

void SmallPool::deallocate(const Allocation& ended, const time::Stamp& stamp) {
  ownership_.forget_uses(ended);
  if (!ended.timeline || !stamp.is_only_on(*ended.timeline)) return waiting_.add(ended, stamp);
  set_free(ended, UsedBy::own_stream);
  if (caches_.are_bounded()) bounds_.keep(*ended.cache);
}

void SmallPool::set_free(const Allocation& ended, UsedBy used_by) {
  StreamCache& cache = *ended.cache;
  const DevicePtr begin = ended.range.begin;
  const PageRun* const run = ended.slab == nullptr ? &cut_pages_.run_at(begin) : nullptr;
  const CacheGuard guard(cache);
  const std::uint64_t number = used_by == UsedBy::own_stream ? cache.next_number.of_a_free() : 0;
  if (Slab* const slab = ended.slab) {
    slab->set_waiting(ended.index, false);
    slab->number = std::max(slab->number, number);
    return cache.slabs.give(slab, ended.index);
  }
  Segment* const segment = segment_at(*run, begin, cache);  // looked up again: it may be split
  VPMM_CHECK(segment != nullptr, message_of("what waits at {:#x} is nobody's", to_integer(begin)));
  cache.segments.give(*segment, segment->unit_of(begin), ended.range.size / kUnit, number);
}

void SmallPool::advance(const Vector<time::StampPart>& done) {
  if (done.empty()) return;
  for (const time::StampPart& part : done) {
    cut_pages_.advance(part);
    waiting_.advance(part, [&](const Allocation& ended) VPMM_REQUIRES(pool_lock) {
      set_free(ended, UsedBy::nobody);
      StreamCache& cache = *ended.cache;
      if (caches_.are_bounded()) bounds_.keep(cache);
      if (cache.timeline_now() || &cache == &caches_.any()) return;
      flusher_.flush(cache);  // its stream is gone, so no call takes from it
      caches_.retire_if_empty(cache);
    });
  }
  cut_pages_.give_idle_pages();  // complete neighbours merged, or a new page was not needed
}

}  // namespace vpmm::small
