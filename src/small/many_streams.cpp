// small: of many streams each keeps a bounded amount, and those that are idle nothing.
#include <algorithm>

#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;

namespace {

// Of many streams, while hardly anything is live, and of what is mapped.
constexpr Bytes kMostKeptIdle = 64 * kMiB;
constexpr Bytes kKeptIdleDivisor = 100;
// A stream that called at none of them gives back what it keeps. Streams that call in turn and miss
// are looked at four times a turn at most.
constexpr std::uint64_t kLooksUntilIdle = 8;

}  // namespace

// Note [Many streams keep a bounded amount]
// Each of a few streams keeps all it freed. Of many, those that are idle would keep more than the
// others use. So every cache may keep kAlwaysKept, and more as far as it is allowed to. A free that
// would leave more takes the pool's lock, and asks there. All that is allowed is half of what is
// live and cached at most, or a little where that is less. Warm calls do not change that sum. So
// whatever is freed in whatever order, caches keep at most as much as is live, and hardly anything
// when nothing is.
//
// Bounds: n caches keep n kAlwaysKept + allowed, and allowed <= (live + cached - n kAlwaysKept) / 2
// after each call through the lock.

Bytes SmallPool::live_and_cached_bytes() const {
  return pool_.used_bytes() - std::min(pool_.used_bytes(), cut_pages_.free_bytes());
}

Bytes SmallPool::most_allowed() const {
  const Bytes always = caches_.all().size() * kAlwaysKept;
  const Bytes used = live_and_cached_bytes();
  const Bytes least = std::min(kMostKeptIdle, pool_.mapped_bytes() / kKeptIdleDivisor);
  return std::max((used - std::min(used, always)) / 2, least - std::min(least, always));
}

void SmallPool::bound_caches(bool are_many, const Caller& caller) {
  const bool has_changed = are_many != caches_.are_bounded();
  caches_.set_bounded(are_many);
  if (!are_many) return;
  if (has_changed)
    for (StreamCache& cache : caches_.all()) bound(cache);
  if (StreamCache* const own = caches_.find(caller.timeline)) bound(*own);
  // No more is taken back than the call itself freed.
  Deque<StreamCache>& all = caches_.all();
  for (std::size_t looks = 0; looks < all.size() && caches_.allowed() > most_allowed(); ++looks)
    take_back(all[turn_++ % all.size()]);
}

void SmallPool::bound(StreamCache& cache) {
  Bytes wanted = 0;
  {
    const CacheGuard guard(cache);
    wanted = std::max(cache.cached_bytes(), cache.wants_to_keep);
    if (wanted <= cache.may_keep) return;
  }
  const Bytes bytes = wanted - kAlwaysKept;
  if (caches_.allowed() - cache.allowed + bytes <= most_allowed())
    return caches_.allow(cache, bytes);
  caches_.allow(cache, cache.allowed);
  if (cache.cached_bytes() > kAlwaysKept + cache.allowed) flush(cache, FreePages::all);
}

void SmallPool::take_back(StreamCache& cache) {
  if (cache.allowed == 0) return;
  caches_.allow(cache, 0);
  flush(cache, FreePages::all);
}

bool SmallPool::is_idle(const time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return true;
  const bool was_active = [&] {
    const CacheGuard guard(*cache);
    return cache->was_active();
  }();
  cache->idle_looks = was_active ? 0 : cache->idle_looks + 1;
  if (cache->idle_looks == kLooksUntilIdle) give_back(timeline);
  return !was_active;
}

void SmallPool::give_back(const time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return;
  caches_.allow(*cache, 0);
  flush(*cache, FreePages::all);
}

// Of many streams each would come for it again.
bool SmallPool::is_left_alone(const StreamCache& cache) const {
  return caches_.are_bounded() && cache.cached_bytes() <= kAlwaysKept;
}

void SmallPool::retire(time::Timeline& timeline) {
  StreamCache* const cache = caches_.find(&timeline);
  if (cache == nullptr) return;
  caches_.end(timeline.id);
  timeline.next_number = nullptr;
  caches_.retire_if_empty(*cache);
}

}  // namespace vpmm::small
