// SPDX-License-Identifier: Apache-2.0
// small: caches of many streams are bounded.
#include "small/cache_bounds.hpp"

#include <algorithm>

namespace vpmm::small {

using pool::Caller;

namespace {

// Bounds of many streams while hardly anything is live: bytes, and the part of mapped memory.
constexpr Bytes kMostKeptIdle = 64 * kMiB;
constexpr Bytes kKeptIdleDivisor = 100;
// A stream that called at none of so many looks gives back all it keeps. Streams that call in turn
// and miss are looked at four times a turn at most.
constexpr std::uint64_t kLooksUntilIdle = 8;

}  // namespace

Bytes CacheBounds::live_and_cached_bytes() const {
  return pool_.memory().used_bytes() -
         std::min(pool_.memory().used_bytes(), cut_pages_.free_bytes());
}

Bytes CacheBounds::most_allowed() const {
  const Bytes always = caches_.all().size() * kAlwaysKept;
  const Bytes used = live_and_cached_bytes();
  const Bytes least = std::min(kMostKeptIdle, pool_.memory().mapped_bytes() / kKeptIdleDivisor);
  return std::max((used - std::min(used, always)) / 2, least - std::min(least, always));
}

void CacheBounds::keep(bool are_many, const Caller& caller) {
  const bool has_changed = are_many != caches_.are_bounded();
  caches_.set_bounded(are_many);
  if (!are_many) return;
  if (has_changed)
    for (StreamCache& cache : caches_.all()) keep(cache);
  if (StreamCache* const own = caches_.find(caller.timeline)) keep(*own);
  // Takes back no more than the call itself freed.
  Deque<StreamCache>& all = caches_.all();
  for (std::size_t looks = 0; looks < all.size() && caches_.allowed() > most_allowed(); ++looks)
    take_back(all[turn_++ % all.size()]);
}

void CacheBounds::keep(StreamCache& cache) {
  Bytes wanted = 0;
  {
    const CacheGuard guard(cache);
    wanted = std::max(cache.cached_bytes(), cache.keeping.wanted);
    if (wanted <= cache.keeping.most) return;
  }
  const Bytes bytes = wanted - kAlwaysKept;
  if (caches_.allowed() - cache.keeping.allowed + bytes <= most_allowed())
    return caches_.allow(cache, bytes);
  caches_.allow(cache, cache.keeping.allowed);
  if (cache.cached_bytes() > kAlwaysKept + cache.keeping.allowed) flusher_.flush(cache);
}

void CacheBounds::take_back(StreamCache& cache) {
  if (cache.keeping.allowed == 0) return;
  caches_.allow(cache, 0);
  flusher_.flush(cache);
}

bool CacheBounds::look_at(const time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return true;
  bool has_called = false;
  {
    const CacheGuard guard(*cache);
    has_called = cache->look_for_calls();
  }
  std::uint64_t& looks = cache->activity.idle_looks;
  looks = has_called ? 0 : looks + 1;
  if (looks == kLooksUntilIdle) give_back(timeline);
  return !has_called;
}

void CacheBounds::give_back(const time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return;
  caches_.allow(*cache, 0);
  flusher_.flush(*cache);
}

void CacheBounds::retire(time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return;
  caches_.end(timeline.id);
  timeline.next_number = nullptr;
  caches_.retire_if_empty(*cache);
}

}  // namespace vpmm::small
