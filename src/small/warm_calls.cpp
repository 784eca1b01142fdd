// small: calls that a stream's cache serves: no lock but the cache's, no driver work.
#include <algorithm>

#include "small/small_pool.hpp"

namespace vpmm::small {

// `flatten` makes one function of a warm call, without a record of where things are between two: a
// tenth of a pair.

static_assert(kLeastSpan < kLeastPage, "a block is smaller than any page that is cut");

Bytes SmallPool::taken_for(Bytes bytes) const {
  switch (server_of(bytes, 0)) {
    case Server::blocks: return kShapes[small::slab_class(bytes)].block;
    case Server::spans: return span_units(bytes) * kUnit;
    default: return page_sizes_.rounded(bytes);
  }
}

// For pages.
void SmallPool::comes_to_lock(StreamCache& cache) const {
  const bool is_taken = lock_ != nullptr && lock_->is_taken();
  if (is_taken && ++cache.hindered >= serving_.crowded_after) cache.hindered = cache.alone = 0;
  if (!is_taken && cache.hindered > 0) --cache.hindered;
  if (!is_taken && cache.alone < kAlone) ++cache.alone;
}

[[gnu::flatten]] DevicePtr SmallPool::try_allocate(const Client& client, Bytes bytes) {
  StreamCache& cache = *client.cache;
  AddressRange taken;
  const CacheGuard guard(cache);
  if (!cache.serves(client.id)) return {};
  switch (server_of(bytes, 0)) {
    case Server::blocks: {
      const std::size_t slab_class = small::slab_class(bytes);
      taken = {cache.take_block(slab_class, bytes), kShapes[slab_class].block};
      break;
    }
    case Server::spans: taken = {cache.take_span(bytes), span_units(bytes) * kUnit}; break;
    case Server::pages: {
      if (bytes > page_sizes_.most() || !serving_.caches_pages) return {};
      const bool is_cut = is_crowded(cache);
      if (is_cut) taken = {cache.take_span(bytes), span_units(bytes) * kUnit};
      if (is_cut && !is_null(taken.begin)) break;
      region::Region* const region =
          cache.take_pages(page_sizes_.number_of(page_sizes_.rounded(bytes)));
      if (region == nullptr) {
        comes_to_lock(cache);
        return {};
      }
      taken = region->range;
      region->asked = bytes;
      cache.tally.begin(bytes, taken.size);
      break;
    }
    case Server::driver_pool: return {};
  }
  if (is_null(taken.begin)) return {};
  if (observer_ != nullptr && client.stream) observer_->on_allocate(taken, *client.stream);
  if (observer_ != nullptr && !client.stream) observer_->on_allocate_any_stream(taken);
  return taken.begin;
}

[[gnu::flatten]] SmallPool::Freed SmallPool::try_free(const Client& client, DevicePtr ptr) {
  const Location at = locate(ptr);
  if (at.cache == nullptr || at.cache != client.cache) return Freed::no;
  StreamCache& cache = *at.cache;
  const CacheGuard guard(cache);
  return cache.serves(client.id) ? put(at, ptr, client.stream) : Freed::no;
}

// Note [A free may go by the handle]
// CUDA uses handles again, so every *allocation* asks which stream its handle names. A free need
// not ask if it names the handle by which the stream of that very allocation called last. It may be
// that stream or a later one with the same handle: the memory goes into the first one's cache in
// both cases. From there only later work of the first stream takes it without proof, and a stream
// that ended has none. Every other stream needs an event of the whole context, which covers the
// later stream as well. A stream that is being captured does no harm: it gets no ordinary memory
// before the capture is over. Nor does a stream of a context that was made since a reset: what is
// cached when the reset is noticed waits for an event of the new context (Note [Caches at a
// reset]). One case is not noticed: the later stream belongs to another context of the device, and
// this free is its first call.
[[gnu::flatten]] SmallPool::Freed SmallPool::try_free_by_handle(DevicePtr ptr,
                                                                driver::StreamHandle stream) {
  const auto handle = static_cast<std::uint64_t>(stream);
  if (handle == kNoHandle) return Freed::no;
  const Location at = locate(ptr);
  StreamCache* const cache = at.cache;
  if (cache == nullptr || cache->handle.load(std::memory_order_relaxed) != handle)
    return Freed::not_known;
  const CacheGuard guard(*cache);
  const bool is_in_service = cache->handle.load(std::memory_order_relaxed) == handle &&
                             !cache->wants_attention.load(std::memory_order_relaxed);
  // Of the two streams it may be, neither is named.
  return is_in_service ? put(at, ptr, std::nullopt) : Freed::no;
}

// Memory of other streams, memory that record_use named, and dead addresses go through the pool's
// lock.
SmallPool::Freed SmallPool::put(const Location& at, DevicePtr ptr, const Stream& stream) {
  StreamCache& cache = *at.cache;
  if (region::Region* const pages = at.content.region())
    return put_pages(cache, *at.entry, *pages, ptr, stream);
  if (Segment* const segment = at.content.segment()) {
    if (segment->cache() != &cache || !segment->range().contains(ptr)) return Freed::no;
    const std::uint64_t unit = segment->unit_of(ptr);
    if (segment->at(unit) != ptr || !segment->has_span_at(unit) || segment->is_used_elsewhere(unit))
      return Freed::no;
    const Bytes requested = segment->requested(unit);
    if (caches_.are_bounded() &&
        cache.is_beyond(segment->kept_after(span_units(requested)) * kUnit))
      return Freed::no;
    const Freed freed = note_free(cache, {ptr, span_units(requested) * kUnit}, stream);
    cache.give_span(*segment, unit, requested);
    return freed;
  }
  Slab* const slab = at.content.slab();
  if (slab == nullptr || slab->cache() != &cache) return Freed::no;
  const std::uint64_t index = slab->index_of(ptr);
  if (!slab->is_live(index) || slab->block(index) != ptr || slab->is_used_elsewhere(index))
    return Freed::no;
  if (caches_.are_bounded() && slab->is_last_live() && cache.is_beyond(slab->bytes()))
    return Freed::no;
  const Freed freed = note_free(cache, {ptr, slab->block_bytes()}, stream);
  cache.give_block(slab, index);
  return freed;
}

SmallPool::Freed SmallPool::put_pages(StreamCache& cache, const PagemapEntry& entry,
                                      region::Region& region, DevicePtr ptr, const Stream& stream) {
  // Listed pages leave their entry under the lock of its cache, so a call that came too late finds
  // another content.
  if (entry.content() != Content(&region) || entry.cache() != &cache) return Freed::no;
  if (region.range.size > page_sizes_.most() || !serving_.caches_pages) return Freed::no;
  const std::uint64_t size = page_sizes_.number_of(region.range.size);
  if (region.range.begin != ptr || holder_of(region) != nullptr ||
      region.owner.timeline != cache.timeline || !region.owner.other_uses.empty() ||
      region.owner.capture != 0)
    return Freed::no;
  if (caches_.are_bounded() && cache.is_beyond(region.range.size)) return Freed::no;
  if (!cache.pages.provide(size)) return Freed::no;
  const Freed freed = note_free(cache, region.range, stream);
  cache.tally.end(region.asked, region.range.size);
  cache.put_pages(&region, size, cache.next_number.of_a_free());
  return freed;
}

// Before it is in the cache, where another thread of the stream may take it.
SmallPool::Freed SmallPool::note_free(StreamCache& cache, AddressRange range,
                                      const Stream& stream) {
  if (observer_ != nullptr && stream) observer_->on_deallocate(range, *stream);
  if (observer_ != nullptr && !stream) observer_->on_deallocate_any_stream(range);
  const bool is_due =
      serving_.proves_frees
          ? cache.pacing.is_due(range.size, page_unit_.bytes())
          : cache.pacing.is_due(range.size, caches_.misses(), caches_.stream_count(),
                                [this] { return driver_.now_ns(); });
  if (!is_due) return Freed::yes;
  cache.wants_event = true;
  cache.wants_attention.store(
      true, std::memory_order_relaxed);  // where this call does not record it, the next does
  return Freed::yes_and_event_is_due;
}

}  // namespace vpmm::small
