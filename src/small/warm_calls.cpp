// SPDX-License-Identifier: Apache-2.0
// small: the warm allocation and the warm free.
#include "small/warm_calls.hpp"

namespace vpmm::small {

// `flatten` inlines all of a call into the function of its server, which saves a tenth of a pair.
// The servers stay apart (`noinline`): one function for all of them keeps its operands on the
// stack.

DevicePtr WarmCalls::try_allocate(const FirstCache& client, Bytes bytes) const {
  switch (serving_.server_of(bytes, 0)) {
    case Server::blocks: return try_block(client, bytes);
    case Server::spans: return try_span(client, bytes);
    case Server::pages: return try_pages(client, bytes);
    case Server::driver_pool: break;
  }
  return {};
}

[[gnu::noinline, gnu::flatten]] DevicePtr WarmCalls::try_block(const FirstCache& client,
                                                               Bytes bytes) const {
  StreamCache& cache = *client.cache;
  const std::size_t slab_class = small::slab_class(bytes);
  const CacheGuard guard(cache);
  if (!cache.serves(client.id)) return {};
  return hand_out(client, {cache.take_block(slab_class, bytes), kShapes[slab_class].block});
}

[[gnu::noinline]] DevicePtr WarmCalls::try_span(const FirstCache& client, Bytes bytes) const {
  StreamCache& cache = *client.cache;
  const CacheGuard guard(cache);
  return cache.serves(client.id) ? hand_out(client, take_span(cache, bytes)) : DevicePtr{};
}

[[gnu::noinline, gnu::flatten]] AddressRange WarmCalls::take_span(StreamCache& cache, Bytes bytes) {
  return {cache.take_span(bytes), span_units(bytes) * kUnit};
}

[[gnu::noinline]] DevicePtr WarmCalls::try_pages(const FirstCache& client, Bytes bytes) const {
  if (!serving_.keeps_pages(bytes)) return {};
  StreamCache& cache = *client.cache;
  const PageSizes& sizes = serving_.page_sizes();
  const Bytes size = sizes.rounded(bytes);
  const CacheGuard guard(cache);
  if (!cache.serves(client.id)) return {};
  region::Region* const region = cache.take_pages(sizes.number_of(size));
  if (region == nullptr) return hand_out(client, take_instead_of_pages(cache, bytes));
  region->asked = bytes;
  cache.tally.begin(bytes, size);
  return hand_out(client, {region->range.begin, size});
}

[[gnu::noinline]] AddressRange WarmCalls::take_instead_of_pages(StreamCache& cache,
                                                                Bytes bytes) const {
  const AddressRange span =
      serving_.cuts_pages_for(cache.crowding) ? take_span(cache, bytes) : AddressRange{};
  if (is_null(span.begin))
    serving_.note_miss(cache.crowding, lock_ != nullptr && lock_->is_taken());
  return span;
}

void WarmCalls::tell(const FirstCache& client, AddressRange taken) const {
  if (client.stream)
    observer_->on_allocate(taken, *client.stream);
  else
    observer_->on_allocate_any_stream(taken);
}

[[gnu::flatten]] WarmCalls::Freed WarmCalls::try_free(const FirstCache& client, DevicePtr ptr) {
  const Location at = ownership_.locate(ptr);
  if (at.cache != client.cache) return Freed::no;
  StreamCache& cache = *at.cache;
  const CacheGuard guard(cache);
  return cache.serves(client.id) ? put(at, ptr, client.stream) : Freed::no;
}

// Note [A free may go by the handle]
// CUDA reuses handles, so every *allocation* asks the driver for the stream behind its handle. A
// free may skip that if its handle is the one with which the allocating stream called last. The
// caller is that stream or a later one with the same handle, and in both cases the memory goes into
// the first one's cache. Only later work of the first stream takes it from there without proof, and
// a stream that ended has no later work. Every other stream needs an event of the whole context,
// which covers the later stream as well. A capturing stream gets no ordinary memory before its
// capture is over. A stream of a context made since a reset is safe too: memory that is cached when
// the reset is noticed waits for an event of the new context (Note [Caches at a reset]). One case
// goes unnoticed: the later stream belongs to another context of the device, and this free is its
// first call.
[[gnu::flatten]] WarmCalls::Freed WarmCalls::try_free_by_handle(DevicePtr ptr,
                                                                driver::StreamHandle stream) {
  const auto handle = static_cast<std::uint64_t>(stream);
  if (handle == kNoHandle) return Freed::no;
  const Location at = ownership_.locate(ptr);
  StreamCache* const cache = at.cache;
  if (cache == nullptr || cache->service.handle.load(std::memory_order_relaxed) != handle)
    return Freed::not_known;
  const CacheGuard guard(*cache);
  const bool is_in_service = cache->service.handle.load(std::memory_order_relaxed) == handle &&
                             !cache->wants_attention.load(std::memory_order_relaxed);
  // The free is of one of two streams, so the observer hears of neither.
  return is_in_service ? put(at, ptr, std::nullopt) : Freed::no;
}

// Memory of other streams, memory that record_use named, and dead addresses go through the pool's
// lock.
WarmCalls::Freed WarmCalls::put(const Location& at, DevicePtr ptr, const Stream& stream) const {
  if (region::Region* const pages = at.content.region()) return put_pages(at, *pages, ptr, stream);
  if (Segment* const segment = at.content.segment())
    return put_span(*at.cache, *segment, ptr, stream);
  Slab* const slab = at.content.slab();
  return slab == nullptr ? Freed::no : put_block(*at.cache, *slab, ptr, stream);
}

WarmCalls::Freed WarmCalls::put_span(StreamCache& cache, Segment& segment, DevicePtr ptr,
                                     const Stream& stream) const {
  if (segment.cache() != &cache || !segment.range().contains(ptr)) return Freed::no;
  const std::uint64_t unit = segment.unit_of(ptr);
  if (segment.at(unit) != ptr || !segment.has_span_at(unit) || segment.is_used_elsewhere(unit))
    return Freed::no;
  const Bytes requested = segment.requested(unit);
  const std::uint64_t units = span_units(requested);
  const bool is_refused = refuses(cache, segment.kept_after(units) * kUnit);
  if (is_refused) return Freed::no;
  const Freed freed = note_free(cache, {ptr, units * kUnit}, stream);
  cache.give_span(segment, unit, requested);
  return freed;
}

WarmCalls::Freed WarmCalls::put_block(StreamCache& cache, Slab& slab, DevicePtr ptr,
                                      const Stream& stream) const {
  if (slab.cache() != &cache) return Freed::no;
  const std::uint64_t index = slab.index_of(ptr);
  if (!slab.is_live(index) || slab.block(index) != ptr || slab.is_used_elsewhere(index))
    return Freed::no;
  const bool is_refused =
      caches_.are_bounded() && slab.is_last_live() && cache.refuse(slab.bytes());
  if (is_refused) return Freed::no;
  const Freed freed = note_free(cache, {ptr, slab.block_bytes()}, stream);
  cache.give_block(&slab, index);
  return freed;
}

WarmCalls::Freed WarmCalls::put_pages(const Location& at, region::Region& region, DevicePtr ptr,
                                      const Stream& stream) const {
  StreamCache& cache = *at.cache;
  // Listed pages leave their entry under the lock of its cache, so a call that came too late finds
  // another content.
  if (at.entry->content() != Content(&region) || at.entry->cache() != &cache) return Freed::no;
  if (!serving_.keeps_pages(region.range.size)) return Freed::no;
  if (region.range.begin != ptr || holder_of(region) != nullptr ||
      region.owner.timeline != cache.service.timeline || !region.owner.other_uses.empty() ||
      region.owner.capture != 0)
    return Freed::no;
  const bool is_refused = refuses(cache, region.range.size);
  if (is_refused) return Freed::no;
  const std::uint64_t size = serving_.page_sizes().number_of(region.range.size);
  const Freed freed = note_free(cache, region.range, stream);
  cache.tally.end(region.asked, region.range.size);
  cache.put_pages(&region, size, cache.next_number.of_a_free());
  return freed;
}

// Runs before the memory is in the cache, where another thread of the stream may take it.
WarmCalls::Freed WarmCalls::note_free(StreamCache& cache, AddressRange range,
                                      const Stream& stream) const {
  if (observer_ != nullptr && stream) observer_->on_deallocate(range, *stream);
  if (observer_ != nullptr && !stream) observer_->on_deallocate_any_stream(range);
  time::EventPacing& pacing = cache.events.pacing;
  const bool is_due = serving_.proves_frees()
                          ? pacing.is_due(range.size, serving_.page_size())
                          : pacing.is_due(range.size, caches_.misses(), caches_.stream_count(),
                                          [this] { return driver_.now_ns(); });
  if (!is_due) return Freed::yes;
  cache.events.is_due = true;
  // If this call does not record it, the next does.
  cache.wants_attention.store(true, std::memory_order_relaxed);
  return Freed::yes_and_event_is_due;
}

}  // namespace vpmm::small
