// small: what caches keep comes back, and what the figures are meanwhile.
#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/host_memory.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

// All caches are flushed only if they keep this share: of what is mapped, for whole pages; of what
// is cut, for parts of pages. Less is not worth it, because their streams will soon want it again.
constexpr Bytes kCachedDivisor = 256;
constexpr Bytes kCachedPartsDivisor = 16;
// Under the lock of the stream that has them.
constexpr std::uint64_t kMostSegmentsLookedAt = 64;

// Calls `visit(where it begins, what its user asked for)` for what is live.
template <typename Visit>
void for_each_live(const Segment& segment, Visit&& visit) VPMM_REQUIRES(cache_lock) {
  const std::uint64_t first = segment.arena->unit_of(segment.begin);
  for (std::uint64_t unit = 0; unit < segment.units && !segment.is_free();) {
    if (const Slab* const slab = content_in(segment.arena->contents[first + unit]).slab()) {
      for (std::uint64_t i = 0; i < slab->blocks; ++i)
        if (slab->is_live(i)) visit(slab->block(i), slab->requested(i));
      unit += slab->units;
      continue;
    }
    if (!segment.has_span_at(unit)) {
      ++unit;
      continue;
    }
    visit(segment.at(unit), segment.requested(unit));
    unit += span_units(segment.requested(unit));
  }
}

// Calls `visit(range)` for each slab with a live block and each live span.
template <typename Visit>
void for_each_used(const Segment& segment, Visit&& visit) VPMM_REQUIRES(cache_lock) {
  DevicePtr end{};
  for_each_live(segment, [&](DevicePtr begin, Bytes requested) VPMM_REQUIRES(cache_lock) {
    if (begin < end) return;  // in the slab before
    const Slab* const slab =
        content_in(segment.arena->contents[segment.arena->unit_of(begin)]).slab();
    const AddressRange range =
        slab == nullptr ? AddressRange{begin, requested} : AddressRange{slab->begin, slab->bytes()};
    end = range.end();
    visit(range);
  });
}

}  // namespace

// --- taking back

bool SmallPool::flush() { return flush(FreePages::all); }

bool SmallPool::flush(FreePages which) {
  const Bytes idle = given_back_bytes();
  const Bytes cut = cut_pages_.bytes();
  for (StreamCache& cache : caches_.all()) {
    if (which == FreePages::where_many && is_left_alone(cache)) continue;
    flush(cache, which);
    caches_.retire_if_empty(cache);
  }
  cut_pages_.give_idle_pages();
  return given_back_bytes() != idle || cut_pages_.bytes() != cut;
}

bool SmallPool::flush_for_pages(const Caller& caller) {
  return flush_for(caller, std::max(page_size(), pool_.mapped_bytes() / kCachedDivisor));
}

// Note [Streams that work side by side], where there are many.
bool SmallPool::flush_for_parts(const Caller& caller) {
  const bool grows_instead =
      caches_.are_bounded() && may_grow_instead(next_pages(page_size()), caller);
  return flush_for(caller, grows_instead ? std::numeric_limits<Bytes>::max()
                                         : arena_bytes() / kCachedPartsDivisor);
}

bool SmallPool::flush_for(const Caller& caller, Bytes worth) {
  const Bytes idle = given_back_bytes();
  if (caller.timeline != nullptr) flush(cache_of(*caller.timeline), FreePages::where_many);
  flush(caches_.any(), FreePages::where_many);
  if (given_back_bytes() != idle) return true;
  Bytes cached = 0;
  for (StreamCache& cache : caches_.all()) {
    if (is_left_alone(cache)) continue;
    cached += cache.cached_bytes();
    if (!cache.segments.may_have_free_pages()) continue;
    const CacheGuard guard(cache);
    if (cache.segments.has_many_free_pages()) cached += cache.segments.free_page_units() * kUnit;
  }
  return cached > 0 && cached >= worth && flush(FreePages::where_many);
}

bool SmallPool::may_grow_instead(const pool::PageRequest& request, const Caller& caller) {
  if (!caller.own() || !may_be_cached(request.size, kGrain)) return false;
  return cached_bytes() > cache_of(*caller.timeline).cached_bytes() &&
         pool_.may_grow_early(request.size);
}

Bytes SmallPool::cached_bytes() const {
  Bytes bytes = 0;
  for (const StreamCache& cache : caches_.all()) bytes += cache.cached_bytes();
  return bytes;
}

void SmallPool::give_back_before(const Caller& caller, Bytes size) {
  if (size > page_sizes_.most()) give_back_pages(caller);
}

void SmallPool::give_back_pages(const Caller& caller) {
  while (flush_one(caller, page_size())) {
  }
}

bool SmallPool::flush_one(const Caller& caller, Bytes size) {
  if (caller.timeline == nullptr) return false;
  StreamCache& cache = cache_of(*caller.timeline);
  Cached cached;
  {
    const CacheGuard guard(cache);
    const std::optional<std::uint64_t> least = page_sizes_.least_from(size);
    const std::optional<std::uint64_t> found =
        least ? cache.pages.least_from(*least) : std::nullopt;
    if (!found) return false;
    cached = cache.pages.take_last(*found);
    leave_cache(cache, cached);
  }
  timelines_.claim(*caller.timeline, cached.number, cached.region->range.size);
  pool_.deallocate(cached.region, time::Stamp({caller.timeline->id, cached.number}));
  return true;
}

// Note [Half is stolen]
// Streams that work side by side would come here for every piece that wanders between them. So the
// stream that keeps most is asked first. Half of its other pieces of the size go into the caller's
// cache as well. Of pages that are cut, half go to the pool, up to the caller's share.
bool SmallPool::steal(const Caller& caller, Bytes size) {
  struct Source {
    Bytes cached = 0;
    StreamCache* cache = nullptr;
    std::uint64_t complete = 0;  // of its timeline
  };
  Vector<Source> sources;
  for (const auto& [id, cache] : caches_.by_timeline()) {
    const time::Timeline* const timeline = timelines_.find(id);
    const Bytes cached = cache->cached_bytes();
    if (timeline != nullptr && timeline != caller.timeline && cached >= size)
      sources.push_back({cached, cache, timeline->complete});
  }
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.cached > b.cached; });
  if (size <= page_sizes_.most() && is_multiple(size, page_size()))
    for (const Source& source : sources)
      if (steal_segments(*source.cache, source.complete, size, caller)) return true;
  for (const Source& source : sources)
    if (steal_pages(*source.cache, source.complete, size, caller)) return true;
  return false;
}

// Of the least size that is large enough, those that the stream is done with, the oldest first:
// one, and half of the others if `with_half`.
Vector<Cached> SmallPool::take_complete_pages(StreamCache& cache, Bytes at_least,
                                              std::uint64_t complete, bool with_half) {
  const CacheGuard guard(cache);
  const std::optional<std::uint64_t> least = page_sizes_.least_from(at_least);
  std::optional<std::uint64_t> size = least ? cache.pages.least_from(*least) : std::nullopt;
  while (size && cache.pages.of(*size).front().number > complete)
    size = cache.pages.least_from(*size + 1);
  if (!size) return {};
  const CachedList& cached = cache.pages.of(*size);
  const std::size_t most = with_half ? 1 + (cached.size() - 1) / 2 : 1;
  std::size_t count = 1;
  while (count < most && cached[count].number <= complete) ++count;
  Vector<Cached> taken = cache.pages.take_first(*size, count);
  for (const Cached& each : taken) leave_cache(cache, each);
  return taken;
}

bool SmallPool::steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size,
                            const Caller& caller) {
  StreamCache* const own = caller.own() ? &cache_of(*caller.timeline) : nullptr;
  const Vector<Cached> taken = take_complete_pages(cache, size, complete, own != nullptr);
  if (taken.empty()) return false;
  pool_.deallocate(taken.front().region, {});
  const auto others = std::span(taken).subspan(1);
  for (const Cached& other : others) {
    const Bytes bytes = other.region->range.size;
    pool_.pass_on(other.region, {bytes, bytes, pool_.grain_alignment()}, caller);
  }
  if (others.empty()) return true;
  const CacheGuard guard(*own);
  for (const Cached& other : others) {
    const Bytes bytes = other.region->owner.requested;
    own->tally.index_begins(bytes, other.region->range.size);
    own->put_pages(other.region, page_sizes_.number_of(bytes), 0);
    enter(*other.region, bytes, *own);
  }
  return true;
}

bool SmallPool::steal_segments(StreamCache& cache, std::uint64_t complete, Bytes size,
                               const Caller& caller) {
  Vector<Segment*> taken;
  {
    const Bytes share = caller.timeline == nullptr ? 0 : share_of(cache_of(*caller.timeline));
    const CacheGuard guard(cache);
    const std::uint64_t units = size / kUnit;
    const std::uint64_t wanted = std::max<std::uint64_t>(share / size, 1);
    std::uint64_t looked_at = 0;
    if (cache.segments.has_many_free_pages()) part_free_pages(cache);
    cache.segments.lists().for_each_from(units, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free() && segment->units >= units && segment->number <= complete)
        taken.push_back(segment);
      return taken.size() < 2 * wanted && ++looked_at < kMostSegmentsLookedAt;
    });
    taken.resize(std::min<std::uint64_t>(wanted, (taken.size() + 1) / 2));
    for (Segment* segment : taken) cache.segments.detach(segment);
  }
  for (Segment* segment : taken) cut_pages_.end(segment, {});
  return !taken.empty();
}

void SmallPool::part_free_pages(StreamCache& cache) {
  cache.segments.part_free_pages([&]()
                                     VPMM_REQUIRES(pool_lock) { return cut_pages_.new_segment(); });
}

// The index counts them as allocated until the pool has them back.
void SmallPool::leave_cache(StreamCache& cache, const Cached& pages) {
  cache.leave(pages);
  cache.tally.index_ends(pages.region->owner.requested, pages.region->range.size);
  if (PagemapEntry* entry = pagemap_.at(pages.region->range.begin)) entry->leave();
}

// Note [What leaves a cache is stamped as it was freed]
// Not later: an event that was recorded since the free proves it.
void SmallPool::flush(StreamCache& cache, FreePages which) {
  Vector<Cached> pages;
  Vector<std::pair<Segment*, std::uint64_t>> free;  // and their numbers
  std::optional<time::TimelineId> of_timeline;
  {
    const CacheGuard guard(cache);
    of_timeline = cache.timeline;
    cache.slabs.end_empty();
    if (which == FreePages::all || cache.segments.has_many_free_pages()) part_free_pages(cache);
    if (cache.cached_bytes() == 0) return;
    cache.segments.lists().for_each([&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free()) free.emplace_back(segment, segment->number);
    });
    for (auto size = cache.pages.least_from(0); size; size = cache.pages.least_from(*size + 1)) {
      const CachedList& freed = cache.pages.of(*size);
      pages.insert(pages.end(), freed.begin(), freed.end());
    }
    for (const auto& [segment, number] : free) cache.segments.detach(segment);
    for (const Cached& cached : pages) leave_cache(cache, cached);
    cache.pages.clear();
    if (cache.timeline) cache.wants_attention.store(true, std::memory_order_relaxed);
  }
  time::Timeline* const timeline = of_timeline ? timelines_.find(*of_timeline) : nullptr;
  std::uint64_t latest = 0;
  Bytes bytes = 0;
  const auto stamp_of = [&](std::uint64_t number) VPMM_REQUIRES(pool_lock) {
    if (number == 0) return time::Stamp{};
    if (timeline != nullptr) return time::Stamp({timeline->id, number});
    return cache.unproven ? timelines_.reduce(time::Stamp(*cache.unproven)) : time::Stamp{};
  };
  for (const Cached& cached : pages) {
    latest = std::max(latest, cached.number);
    bytes += cached.region->range.size;
  }
  for (const auto& [segment, number] : free) {
    latest = std::max(latest, number);
    bytes += segment->units * kUnit;
  }
  if (timeline != nullptr) timelines_.claim(*timeline, latest, bytes);
  for (const auto& [segment, number] : free) cut_pages_.end(segment, stamp_of(number));
  for (const Cached& cached : pages) pool_.deallocate(cached.region, stamp_of(cached.number));
}

void SmallPool::retire_dead() {
  const auto& streams = caches_.by_timeline();
  for (auto it = streams.begin(); it != streams.end();) {
    const auto [id, in_service] = *it++;
    StreamCache& cache = *in_service;
    time::Timeline& timeline = *timelines_.find(id);
    if (!timeline.is_over) continue;
    cache.unproven = timelines_.next(timelines_.every_stream(), cache.cached_bytes());
    caches_.end(id);
    flush(cache, FreePages::all);
    caches_.retire_if_empty(cache);
    timeline.next_number = nullptr;
  }
}

// Note [Caches at a reset]
// The program may reset the context itself, and a warm free does not notice. Until a reset is
// noticed, work of the new context may use what was freed, for instance on a stream whose handle is
// used again. So what the cache has, and what its last blocks leave later, waits for an event
// behind all that is queued by then.

// --- figures

Tally SmallPool::tally() const {
  Tally sum = caches_.tally();
  sum += ledger_.of_pages();
  return sum;
}

Bytes SmallPool::idle_in_arenas_bytes() const {
  const std::int64_t idle = -tally().allocated - static_cast<std::int64_t>(cached_pages_bytes());
  return static_cast<Bytes>(std::max<std::int64_t>(0, idle));
}

Set<Bytes> SmallPool::used_pages() const {
  Set<Bytes> used;
  for (const Segment* segment : cut_pages_.segments()) {
    StreamCache* const cache = segment->cache();
    if (cache == nullptr) continue;
    const CacheGuard guard(*cache);
    for_each_used(*segment, [&](AddressRange range) {
      const Bytes first = to_integer(range.begin) / page_size(),
                  last = (to_integer(range.end()) - 1) / page_size();
      for (Bytes page = first; page <= last; ++page) used.insert(page);
    });
  }
  return used;
}

HashMap<const Region*, SmallPool::Live> SmallPool::live_by_page() const {
  HashMap<const Region*, Live> pages;
  for (const Segment* segment : cut_pages_.segments()) {
    StreamCache* const cache = segment->cache();
    if (cache == nullptr) continue;
    const CacheGuard guard(*cache);
    for_each_live(*segment, [&](DevicePtr begin, Bytes requested) {
      const AddressRange live{begin, requested};
      const std::size_t first = segment->arena->page_of(begin),
                        last = segment->arena->page_of(begin + (requested - 1));
      for (std::size_t page = first; page <= last; ++page) {
        const AddressRange whole = segment->arena->pages[page]->range;
        Live& found = pages[segment->arena->pages[page]];
        found.allocations += page == first ? 1 : 0;
        found.requested += std::min(live.end(), whole.end()) - std::max(live.begin, whole.begin);
      }
    });
  }
  return pages;
}

}  // namespace vpmm::small
