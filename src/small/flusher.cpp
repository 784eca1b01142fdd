// SPDX-License-Identifier: Apache-2.0
// small: caches are flushed, and memory is stolen from them.
#include "small/flusher.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/host_memory.hpp"
#include "base/race_window.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

// All caches are flushed only if they keep this share: of mapped memory, for whole pages; of cut
// pages, for parts of pages. Their streams would soon take less than that again.
constexpr Bytes kCachedDivisor = 256;
constexpr Bytes kCachedPartsDivisor = 16;
// Bounds the time under the lock of the cache.
constexpr std::uint64_t kMostSegmentsLookedAt = 64;

}  // namespace

bool Flusher::flush(FreePages which) {
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

bool Flusher::flush_for_pages(const Caller& caller) {
  return flush_for(caller,
                   std::max(serving_.page_size(), pool_.memory().mapped_bytes() / kCachedDivisor));
}

// With many streams, Note [Streams that work side by side] decides.
bool Flusher::flush_for_parts(const Caller& caller) {
  const bool grows_instead = caches_.are_bounded() &&
                             may_grow_instead(cut_pages_.next_pages(serving_.page_size()), caller);
  return flush_for(caller, grows_instead ? std::numeric_limits<Bytes>::max()
                                         : cut_pages_.bytes() / kCachedPartsDivisor);
}

bool Flusher::flush_for(const Caller& caller, Bytes worth) {
  const Bytes idle = given_back_bytes();
  if (caller.timeline != nullptr) flush(caches_.of(*caller.timeline), FreePages::where_many);
  flush(caches_.any(), FreePages::where_many);
  if (given_back_bytes() != idle) return true;
  Bytes cached = 0;
  for (StreamCache& cache : caches_.all()) {
    if (is_left_alone(cache)) continue;
    cached += cache.cached_bytes();
    if (!cache.segments.may_have_free_pages()) continue;
    const CacheGuard guard(cache);
    cached += cache.segments.many_free_page_units() * kUnit;
  }
  return cached > 0 && cached >= worth && flush(FreePages::where_many);
}

bool Flusher::may_grow_instead(const pool::PageRequest& request, const Caller& caller) {
  if (!caller.own() || !serving_.may_be_cached(request.size, kGrain)) return false;
  return caches_.cached_bytes() > caches_.of(*caller.timeline).cached_bytes() &&
         pool_.planner().may_grow_early(request.size);
}

void Flusher::give_back_before(const Caller& caller, Bytes size) {
  if (size > serving_.page_sizes().most()) give_back_pages(caller);
}

void Flusher::give_back_pages(const Caller& caller) {
  while (flush_one(caller, serving_.page_size())) {
  }
}

bool Flusher::flush_one(const Caller& caller, Bytes size) {
  if (caller.timeline == nullptr) return false;
  StreamCache& cache = caches_.of(*caller.timeline);
  const std::optional<std::uint64_t> least = serving_.page_sizes().least_from(size);
  if (!least) return false;
  Region* pages = nullptr;
  {
    const CacheGuard guard(cache);
    const std::optional<std::uint64_t> found = cache.pages.least_from(*least);
    if (!found) return false;
    pages = cache.pages.take_last(*found);
    leave_cache(cache, *pages);
  }
  const std::uint64_t number = CachedList::number_of(*pages);
  caller.timeline->claim(number, pages->range.size);
  pool_.deallocate(pages, time::Stamp({caller.timeline->id, number}));
  return true;
}

// Note [Half is stolen]
// One piece at a time, streams that work side by side would steal again for every piece that moves
// between them. So the stream that keeps most is asked first, and half of its other pieces of the
// size go into the caller's cache as well. Of cut pages, half go to the pool, up to the caller's
// share.
bool Flusher::steal(const Caller& caller, Bytes size) {
  struct Source {
    Bytes cached = 0;
    StreamCache* cache = nullptr;
    std::uint64_t complete = 0;  // of its timeline
  };
  Vector<Source> sources;
  for (const auto& [id, cache] : caches_.by_timeline()) {
    const time::Timeline* const timeline = timelines_.find(id);
    const Bytes cached = cache->cached_bytes();
    if (timeline != caller.timeline && cached >= size)
      sources.push_back({cached, cache, timeline->numbers.complete});
  }
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.cached > b.cached; });
  if (size <= serving_.page_sizes().most() && is_multiple(size, serving_.page_size()))
    for (const Source& source : sources)
      if (steal_segments(*source.cache, source.complete, size, caller)) return true;
  for (const Source& source : sources)
    if (steal_pages(*source.cache, source.complete, size, caller)) return true;
  return false;
}

CachedList Flusher::take_complete_pages(StreamCache& cache, Bytes at_least, std::uint64_t complete,
                                        bool with_half) {
  CachedList taken;
  const std::optional<std::uint64_t> least = serving_.page_sizes().least_from(at_least);
  if (!least) return taken;
  const CacheGuard guard(cache);
  std::optional<std::uint64_t> size = cache.pages.least_from(*least);
  while (size && CachedList::number_of(*cache.pages.of(*size).first()) > complete)
    size = cache.pages.least_from(*size + 1);
  if (!size) return taken;
  const CachedList& cached = cache.pages.of(*size);
  const std::size_t most = with_half ? 1 + (cached.size() - 1) / 2 : 1;
  while (taken.size() < most && CachedList::number_of(*cached.first()) <= complete) {
    Region* const pages = cache.pages.take_first(*size);
    leave_cache(cache, *pages);
    taken.add(pages, CachedList::number_of(*pages));
  }
  return taken;
}

bool Flusher::steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size,
                          const Caller& caller) {
  StreamCache* const own = caller.own() ? &caches_.of(*caller.timeline) : nullptr;
  CachedList taken = take_complete_pages(cache, size, complete, own != nullptr);
  if (taken.empty()) return false;
  pool_.deallocate(taken.take_first(), {});
  while (own != nullptr && !taken.empty()) take_over(*own, *taken.take_first(), caller);
  return true;
}

void Flusher::take_over(StreamCache& own, Region& pages, const Caller& caller) {
  const Bytes bytes = pages.range.size;
  pool_.pass_on(&pages, {bytes, bytes, pool_.memory().tuning.grain_alignment()}, caller);
  const CacheGuard guard(own);
  own.tally.index_begins(bytes, bytes);
  own.put_pages(&pages, serving_.page_sizes().number_of(bytes), 0);
  ownership_.enter(pages, bytes, own);
}

bool Flusher::steal_segments(StreamCache& cache, std::uint64_t complete, Bytes size,
                             const Caller& caller) {
  const Bytes share =
      caller.timeline == nullptr ? 0 : caches_.of(*caller.timeline).segments.share_bytes();
  const std::uint64_t units = size / kUnit;
  const std::uint64_t wanted = std::max<std::uint64_t>(share / size, 1);
  if (has_many_free_pages(cache)) part_free_pages(cache);
  SegmentChain taken;
  {
    const CacheGuard guard(cache);
    SegmentChain found;
    std::uint64_t looked_at = 0;
    cache.segments.lists().for_each_from(units, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free() && segment->units >= units && segment->number <= complete)
        found.add(segment);
      return found.count() < 2 * wanted && ++looked_at < kMostSegmentsLookedAt;
    });
    const std::uint64_t count = std::min(wanted, (found.count() + 1) / 2);
    while (taken.count() < count) {
      Segment* const segment = found.take_first();
      cache.segments.detach(segment);
      taken.add(segment);
    }
  }
  const bool has_taken = taken.count() > 0;
  while (Segment* const segment = taken.take_first()) cut_pages_.end(segment, {});
  return has_taken;
}

bool Flusher::has_many_free_pages(StreamCache& cache) {
  if (!cache.segments.may_have_free_pages()) return false;
  const CacheGuard guard(cache);
  return cache.segments.many_free_page_units() > 0;
}

void Flusher::part_free_pages(StreamCache& cache) {
  if (!cache.segments.may_have_free_pages()) return;
  SegmentChain several;
  {
    const CacheGuard guard(cache);
    several = cache.segments.of_several_pages();
  }
  while (Segment* const segment = several.take_first()) part_free_pages(cache, segment);
}

// Takes host memory between two holds of the lock. If a warm call moved the border meanwhile, looks
// for it again.
void Flusher::part_free_pages(StreamCache& cache, Segment* segment) {
  const std::uint64_t page_units = cache.segments.page_units();
  const auto border = [&] {
    const CacheGuard guard(cache);
    return segment->first_border(page_units);
  };
  while (const std::uint64_t at = border()) {
    SegmentRoom front_room(at), back_room(segment->units - at);
    Segment* const back = cut_pages_.new_segment();
    VPMM_RACE_WINDOW("where free pages begin or end was read, the segment was not split");
    const CacheGuard guard(cache);
    if (segment->first_border(page_units) == at) {
      cache.segments.split(*segment, at, *back, front_room, back_room);
      segment = back;
    } else {
      cut_pages_.forget(back);
    }
  }
}

// The index counts them as allocated until pool_.deallocate().
void Flusher::leave_cache(StreamCache& cache, Region& pages) {
  cache.tally.index_ends(pages.owner.requested, pages.range.size);
  ownership_.leave(pages);
}

void Flusher::flush(StreamCache& cache, FreePages which) {
  CachedList pages;
  SegmentChain free;
  const std::optional<time::TimelineId> of_timeline = cache.timeline_now();
  {
    const CacheGuard guard(cache);
    cache.slabs.end_empty();
  }
  if (which == FreePages::all || has_many_free_pages(cache)) part_free_pages(cache);
  {
    const CacheGuard guard(cache);
    if (cache.cached_bytes() == 0) return;
    free = cache.segments.detach_free();
    pages = cache.pages.take_all();
    if (of_timeline) cache.wants_attention.store(true, std::memory_order_relaxed);
  }
  time::Timeline* const timeline = of_timeline ? timelines_.find(*of_timeline) : nullptr;
  std::uint64_t latest = 0;
  Bytes bytes = 0;
  const auto stamp_of = [&](std::uint64_t number) VPMM_REQUIRES(pool_lock) {
    if (number == 0) return time::Stamp{};
    if (timeline != nullptr) return time::Stamp({timeline->id, number});
    return cache.unproven ? timelines_.reduce(time::Stamp(*cache.unproven)) : time::Stamp{};
  };
  const Region* each = pages.first();
  for (std::size_t i = 0; i < pages.size(); ++i, each = CachedList::after(*each)) {
    latest = std::max(latest, CachedList::number_of(*each));
    bytes += each->range.size;
  }
  for (Segment* segment = free.first(); segment != nullptr; segment = segment->chained) {
    latest = std::max(latest, segment->last_number());
    bytes += segment->units * kUnit;
  }
  if (timeline != nullptr) timeline->claim(latest, bytes);
  while (Segment* const segment = free.take_first())
    cut_pages_.end(segment, stamp_of(segment->last_number()));
  while (!pages.empty()) {
    Region* const region = pages.take_first();
    {
      const CacheGuard guard(cache);
      leave_cache(cache, *region);
    }
    pool_.deallocate(region, stamp_of(CachedList::number_of(*region)));
  }
}

// Note [Caches at a reset]
// A warm free does not notice a reset by the program. Until a call notices the reset, work of the
// new context may use freed memory, for instance on a stream with a reused handle. So the memory of
// the cache, and of its last live blocks later, waits for an event behind everything queued by
// then.
void Flusher::retire_dead() {
  const auto& streams = caches_.by_timeline();
  for (auto it = streams.begin(); it != streams.end();) {
    const auto [id, in_service] = *it++;
    StreamCache& cache = *in_service;
    time::Timeline& timeline = *timelines_.find(id);
    if (!timeline.is_over) continue;
    cache.unproven = timelines_.every_stream().next(cache.cached_bytes());
    caches_.end(id);
    flush(cache);
    caches_.retire_if_empty(cache);
    timeline.next_number = nullptr;
  }
}

}  // namespace vpmm::small
