// small: the way of a request below a page, and of its free.
#include "small/small_pool.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

constexpr Bytes kIdleDivisor = 4;
// Of smaller pages the sizes of spans are not those of PageSizes.
constexpr Bytes kLeastCutAbove = kMiB;
// A stream that has much takes a share of that at once, so that it seldom has to ask; one that has
// little takes what it needs, so that many of them share a page.
constexpr std::uint64_t kShareOfSegments = 64;

// The smallest class whose blocks all begin at `alignment`, which divides a unit; none: only a span
// does.
std::optional<std::size_t> aligned_class(Bytes bytes, Bytes alignment) {
  if (bytes > kLargestBlock) return std::nullopt;
  for (std::size_t c = slab_class(bytes); c < kSlabClasses; ++c)
    if (is_multiple(block_size(c), alignment)) return c;
  return std::nullopt;
}

}  // namespace

SmallPool::SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines,
                     const Serving& serving)
    : pool_(pool),
      timelines_(timelines),
      driver_(driver),
      observer_(driver.memory_observer()),
      serving_(serving),
      cuts_pages_(serving.below_a_page == BelowAPage::cut && serving.caches_pages &&
                  !pool.pages_stand_alone() && pool.page_size() >= kLeastCutAbove),
      page_unit_(pool.page_size()),
      page_sizes_(pool.page_size(), pool.grain()),
      pagemap_(pool.page_size()),
      cut_pages_(pool, timelines, pagemap_, ledger_),
      caches_(pool.page_size()),
      waiting_(timelines),
      uses_(timelines) {}

void SmallPool::prepare() {
  for (const AddressRange& reservation : pool_.reservations()) pagemap_.cover(reservation);
  caches_.prepare();
}

// --- a request

// Note [Streams that crowd cut their own]
// Requests of a page and more are cut from the pool's memory, under its lock. Threads whose sizes
// seldom repeat meet there, where each waits for all others. So a stream that came there for up to
// kMostPages, and found the lock taken four times more often than not, cuts such requests from
// pages of its own as it cuts smaller ones, under the lock of its cache. What it frees there
// becomes one with its neighbours, for any size. Pages of which everything is free go back as they
// do with smaller requests. A stream that crowds seldom comes to the lock, and finds it taken more
// seldom still, so it crowds until it was alone there many times.
bool SmallPool::cuts_pages_for(const Caller& caller, Bytes bytes, Bytes alignment) {
  return may_be_cached(bytes, alignment) && is_crowded(caller);
}

bool SmallPool::is_crowded(const Caller& caller) {
  if (!cuts_pages_ || !caller.own()) return false;
  StreamCache& cache = cache_of(*caller.timeline);
  const CacheGuard guard(cache);
  return is_crowded(cache);
}

DevicePtr SmallPool::take(Bytes bytes, Bytes alignment, const Caller& caller) {
  const Bytes aligned = std::max(alignment, kGrain);
  const std::optional<std::size_t> block =
      aligned <= kUnit ? aligned_class(bytes, aligned) : std::nullopt;
  return block ? take_block(*block, bytes, caller)
               : take_span(bytes, std::max(alignment, kUnit), caller);
}

// Of several pages all lie in one arena.
pool::PageRequest SmallPool::next_pages(Bytes bytes) const {
  const Bytes pages =
      bytes <= page_size() ? 1 : (span_units(bytes) * kUnit + page_size() - 1) / page_size();
  return {pages * page_size(), pages * page_size(), std::bit_ceil(pages) * pool_.page_alignment(),
          true};
}

bool SmallPool::should_cut(const pool::PageRequest& pages, const Caller& caller) {
  if (is_crowded(caller)) give_back_pages(caller);  // whole, they serve no other size
  const bool is_idle = idle_in_arenas_bytes() * kIdleDivisor > arena_bytes();
  return !is_idle && (pool_.can_find(pages, caller) || flush_one(caller, pages.size));
}

DevicePtr SmallPool::take_block(std::size_t slab_class, Bytes requested, const Caller& caller) {
  StreamCache& cache = caches_.of(caller);
  for (;;) {
    caches_.provide_slabs(
        cache);  // every time: another thread of the stream may have cut them meanwhile
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
  const CutPages::Room room = cut_pages_.find_aligned(units * kUnit, alignment, caller);
  if (room.free == nullptr) return {};
  Segment* const segment = cut_pages_.cut(room, caller);
  const CacheGuard guard(cache);
  cache.segments.attach(segment, &cache, room.number);
  return cache.begin_span(*segment, segment->find(units), requested);
}

// Units that the caller may use at once come into its cache, its share of them if there are so
// many. False: none; the pool has to give another page.
bool SmallPool::take_segments(std::uint64_t units, StreamCache& cache, const Caller& caller) {
  const Bytes least = units * kUnit;
  const Bytes most = std::max(least, share_of(cache));
  const Bytes alignment = cache.segments.alignment_of(units) * kUnit;
  bool crosses = false;
  {
    const CacheGuard guard(cache);
    crosses = cache.segments.crosses_pages(units);
  }
  if (crosses) return take_whole_pages(least, cache, caller);
  Bytes taken = 0;
  while (most - taken >= least) {
    const CutPages::Room room = cut_pages_.find(least, most - taken, alignment, caller);
    if (room.free == nullptr) break;
    taken += room.part.size;
    Segment* const segment = cut_pages_.cut(room, caller);
    const CacheGuard guard(cache);
    cache.segments.attach(segment, &cache, room.number);
  }
  return taken > 0;
}

// The same for spans that may cross pages: pages that nothing was cut from. They become one with
// pages of the stream that end there, so that the next span may begin in these.
bool SmallPool::take_whole_pages(Bytes least, StreamCache& cache, const Caller& caller) {
  const CutPages::Room room = cut_pages_.find_pages(least, caller);
  if (room.free == nullptr) return false;
  const std::uint64_t units = room.part.size / kUnit;
  {
    // Found and grown under one hold: meanwhile other threads of the stream end slabs and cut them
    // elsewhere.
    const CacheGuard guard(cache);
    if (Segment* const before = cut_pages_.pages_until(room.part.begin, cache)) {
      before->make_room(units);  // it may throw, as the next may, so before anything changes
      cut_pages_.take_units(room, caller);
      cache.segments.grow(*before, units, room.number);
      return true;
    }
  }
  Segment* const segment = cut_pages_.cut(room, caller);
  const CacheGuard guard(cache);
  cache.segments.attach(segment, &cache, room.number);
  return true;
}

Bytes SmallPool::share_of(const StreamCache& cache) {
  return cache.segments.units() / kShareOfSegments * kUnit;
}

void SmallPool::cut(const pool::Placed& pages, const Caller& caller) {
  cut_pages_.add(pages, caller);
}

void SmallPool::cut_more(const pool::PageRequest& pages, const Caller& caller) {
  const Bytes share = share_of(caches_.of(caller));
  for (Bytes taken = 2 * pages.size; taken <= share; taken += pages.size) {
    const std::optional<pool::Placed> more = pool_.find(pages, caller);
    if (!more) return;
    cut(*more, caller);
  }
}

std::uint64_t SmallPool::most_live() const {
  const Bytes cut = cut_pages_.segment_bytes();
  return std::min(caches_.slab_count() * kMostBlocks, cut / kGrain) + cut / kLeastSpan;
}

// --- a free

void SmallPool::deallocate(const Allocation& ended, const time::Stamp& stamp) {
  uses_.forget(ended.range.begin);
  StreamCache& cache = *ended.cache;
  const time::Stamp left = timelines_.reduce(stamp);
  if (!left.is_complete() && !(ended.timeline && left.is_only_on(*ended.timeline)))
    return waiting_.add(ended, left);
  {
    const CacheGuard guard(cache);
    set_free(ended, cache.next_number.of_a_free());
  }
  if (caches_.are_bounded()) bound(cache);
  if (ended.timeline || &cache == &caches_.any()) return;
  flush(cache, FreePages::all);  // of a stream that is no more: nobody takes from it
  caches_.retire_if_empty(cache);
}

void SmallPool::set_free(const Allocation& ended, std::uint64_t number) {
  StreamCache& cache = *ended.cache;
  if (Slab* const slab = ended.slab) {
    slab->set_waiting(ended.index, false);
    slab->number = std::max(slab->number, number);
    return cache.slabs.give(slab, ended.index);
  }
  const DevicePtr begin = ended.range.begin;
  Segment* const segment =
      segment_at(cut_pages_.arena_at(begin), begin, cache);  // it may have been split meanwhile
  VPMM_CHECK(segment != nullptr, message_of("what waits at {:#x} is nobody's", to_integer(begin)));
  cache.segments.give(*segment, segment->unit_of(begin), ended.range.size / kUnit, number);
}

void SmallPool::advance(const Vector<time::StampPart>& done) {
  if (done.empty()) return;
  for (const time::StampPart& part : done) {
    cut_pages_.advance(part);
    waiting_.advance(part, [&](const Allocation& ended) VPMM_REQUIRES(pool_lock) {
      {
        const CacheGuard guard(*ended.cache);
        set_free(ended, 0);
      }
      if (caches_.are_bounded()) bound(*ended.cache);
    });
  }
  cut_pages_
      .give_idle_pages();  // complete neighbours became one, or a new page was not needed after all
}

}  // namespace vpmm::small
