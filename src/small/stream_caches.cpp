// SPDX-License-Identifier: Apache-2.0
// small: caches begin and end with their streams.
#include "small/stream_caches.hpp"

#include <utility>

namespace vpmm::small {

namespace {

constexpr std::uint64_t kSpareSlabs = 2;  // that a cache may cut without a call here

}  // namespace

void StreamCaches::prepare() {
  StreamCache& first = caches_.emplace_back(page_size_);
  first.is_unused = true;
  unused_.push_back(&first);
}

StreamCache& StreamCaches::of(time::Timeline& timeline) {
  if (StreamCache* const found = find(&timeline)) return *found;
  StreamCache* cache = nullptr;
  if (unused_.empty()) {
    cache = &caches_.emplace_back(page_size_);
  } else {
    cache = unused_.back();
    unused_.pop_back();
    cache->is_unused = false;
  }
  by_timeline_.emplace(timeline.id, cache);
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
  cache->unproven.reset();
  cache->activity.idle_looks = 0;
  const CacheGuard guard(*cache);
  cache->service.timeline = timeline.id;
  cache->events.pacing.begin(misses());
  cache->next_number.begin(timeline.numbers.last);
  timeline.next_number = &cache->next_number;
  cache->wants_attention.store(false, std::memory_order_relaxed);
  cache->service.stream.store(timeline.stream ? static_cast<std::uint64_t>(*timeline.stream) : 0,
                              std::memory_order_relaxed);
  return *cache;
}

StreamCache* StreamCaches::find(const time::Timeline* timeline) {
  if (timeline == nullptr) return nullptr;
  const auto found = by_timeline_.find(timeline->id);
  return found == by_timeline_.end() ? nullptr : found->second;
}

void StreamCaches::provide_slabs(StreamCache& cache) {
  const auto has_spare = [&] {
    const CacheGuard guard(cache);
    return cache.slabs.has_spare();
  };
  if (has_spare()) return;
  for (std::uint64_t i = 0; i < kSpareSlabs; ++i, ++slab_count_) {
    Slab* const slab = slabs_.take();
    const CacheGuard guard(cache);
    cache.slabs.add_spare(slab);
  }
}

void StreamCaches::end(time::TimelineId timeline) {
  const auto found = by_timeline_.find(timeline);
  StreamCache& cache = *found->second;
  by_timeline_.erase(found);
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
  allow(cache, 0);
  const CacheGuard guard(cache);
  cache.service.stream.store(0, std::memory_order_relaxed);
  cache.service.handle.store(kNoHandle, std::memory_order_relaxed);
  cache.service.timeline.reset();
}

void StreamCaches::allow(StreamCache& cache, Bytes bytes) {
  allowed_ += bytes - std::exchange(cache.keeping.allowed, bytes);
  const CacheGuard guard(cache);
  cache.keeping.most = cache.keeping.wanted = kAlwaysKept + bytes;
}

void StreamCaches::retire_if_empty(StreamCache& cache) {
  if (cache.is_unused || cache.timeline_now() || &cache == &any_) return;
  const auto is_empty = [&] {
    const CacheGuard guard(cache);
    return cache.segments.empty();
  };
  if (!is_empty()) return;
  const auto take_spare = [&] {
    const CacheGuard guard(cache);
    Slab* const slab = cache.slabs.has_spare() ? cache.slabs.take_spare() : nullptr;
    if (slab == nullptr) return slab;
    slab->set_cache(nullptr);  // as with segments
    return slab;
  };
  for (; Slab* const slab = take_spare(); --slab_count_) slabs_.give_back(slab);
  cache.is_unused = true;
  unused_.push_back(&cache);
}

void StreamCaches::want_events(const time::Timeline* except) {
  const std::uint64_t count = misses_.fetch_add(1, std::memory_order_relaxed) + 1;
  StreamCache* const own = find(except);
  if (own == nullptr) return;
  const CacheGuard guard(*own);
  own->events.pacing.miss(count);
}

Tally StreamCaches::tally() const {
  Tally sum;
  for (const StreamCache& cache : caches_) sum += cache.tally_now();
  return sum;
}

Bytes StreamCaches::cached_bytes() const {
  Bytes bytes = 0;
  for (const StreamCache& cache : caches_) bytes += cache.cached_bytes();
  return bytes;
}

Bytes StreamCaches::cached_pages_bytes() const {
  Bytes bytes = 0;
  for (const StreamCache& cache : caches_) bytes += cache.pages.bytes();
  return bytes;
}

}  // namespace vpmm::small
