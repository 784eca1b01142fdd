// small: calls that a stream's cache serves: no lock but the cache's, no driver work.
#include <algorithm>

#include "small/small_pool.hpp"

namespace vpmm::small {

// `flatten` makes one function of a warm call, without a record of where things are between two: a tenth of a pair.

static_assert(kLeastRun < kLeastPage, "a block is smaller than any page that is cut");

[[gnu::flatten]] DevicePtr SmallPool::try_allocate(const Client& client, Bytes bytes) {
  Shard& shard = *client.shard;
  AddressRange taken;
  const CacheGuard guard(shard);
  if (!shard.serves(client.id)) return {};
  switch (server_of(bytes, 0)) {
    case Server::blocks: {
      const std::size_t slab_class = small::slab_class(bytes);
      taken = {shard.take_block(slab_class, bytes), kShapes[slab_class].block};
      break;
    }
    case Server::runs: taken = {shard.take_run(bytes), run_units(bytes) * kUnit}; break;
    case Server::pages: {
      const std::uint64_t pages = page_unit_.pages_up(bytes);
      region::Region* const region = pages > kMostPages || !keeps_pages_ ? nullptr : shard.take_pages(pages);
      if (region == nullptr) return {};
      taken = region->range;
      region->asked = bytes;
      shard.tally.begin(bytes, taken.size);
      break;
    }
    case Server::driver_pool: return {};
  }
  if (is_null(taken.begin)) return {};
  ++shard.activity;
  if (observer_ != nullptr && client.stream) observer_->on_allocate(taken, *client.stream);
  if (observer_ != nullptr && !client.stream) observer_->on_allocate_any_stream(taken);
  return taken.begin;
}

[[gnu::flatten]] SmallPool::Freed SmallPool::try_free(const Client& client, DevicePtr ptr) {
  const Location at = locate(ptr);
  if (at.shard == nullptr || at.shard != client.shard) return Freed::no;
  Shard& shard = *at.shard;
  const CacheGuard guard(shard);
  return shard.serves(client.id) ? cache(at, ptr, client.stream) : Freed::no;
}

// Note [A free may go by the handle]
// Handles are used again, so which stream an *allocation* is for is asked every time. A free that names the handle by
// which the stream of that very allocation called last need not ask: whether it is still that stream, or a later one
// with its handle, the memory goes where the first would have put it. Only that stream's own later work takes it from
// there without proof, and a stream that is no more has none; everybody else needs an event of the whole context,
// which covers the later stream as well. A stream that is being captured cannot harm either: it gets no ordinary memory
// before the capture is over. Nor can a stream of a context that others made since a reset: what is in hand when that
// is noticed waits for an event of the new context (Note [In hand at a reset]). That the later stream belongs to
// another context of the device, and calls for the first time with this free, is the one thing that is not noticed.
[[gnu::flatten]] SmallPool::Freed SmallPool::try_free_by_handle(DevicePtr ptr, driver::StreamHandle stream) {
  const auto handle = static_cast<std::uint64_t>(stream);
  if (handle == kNoHandle) return Freed::no;
  const Location at = locate(ptr);
  Shard* const shard = at.shard;
  if (shard == nullptr || shard->handle.load(std::memory_order_relaxed) != handle) return Freed::not_known;
  const CacheGuard guard(*shard);
  const bool is_in_service = shard->handle.load(std::memory_order_relaxed) == handle &&
                             !shard->wants_attention.load(std::memory_order_relaxed);
  // Of the two streams it may be, neither is named.
  return is_in_service ? cache(at, ptr, std::nullopt) : Freed::no;
}

// What is anybody else's, was used elsewhere, or is no live allocation at all, is for the way through the pool's lock.
SmallPool::Freed SmallPool::cache(const Location& at, DevicePtr ptr, const Stream& stream) {
  Shard& shard = *at.shard;
  if (region::Region* const pages = at.owner.region()) return cache_pages(shard, *at.entry, *pages, ptr, stream);
  if (Extent* const extent = at.owner.extent()) {
    if (extent->shard() != &shard || !extent->range().contains(ptr)) return Freed::no;
    const std::uint64_t unit = extent->unit_of(ptr);
    if (extent->at(unit) != ptr || !extent->has_run_at(unit) || extent->is_used_elsewhere(unit)) return Freed::no;
    const Bytes requested = extent->requested(unit);
    const Freed freed = note_free(shard, {ptr, run_units(requested) * kUnit}, stream);
    shard.give_run(*extent, unit, requested);
    return freed;
  }
  Slab* const slab = at.owner.slab();
  if (slab == nullptr || slab->shard() != &shard) return Freed::no;
  const std::uint64_t index = slab->index_of(ptr);
  if (!slab->is_live(index) || slab->block(index) != ptr || slab->is_used_elsewhere(index)) return Freed::no;
  const Freed freed = note_free(shard, {ptr, slab->block_bytes()}, stream);
  shard.give_block(slab, index);
  return freed;
}

SmallPool::Freed SmallPool::cache_pages(Shard& shard, const PageEntry& entry, region::Region& region, DevicePtr ptr,
                                        const Stream& stream) {
  // What is listed leaves its entry under the lock of the shard that stands there: who came too late finds another one.
  if (entry.owner() != Owner(&region) || entry.shard() != &shard) return Freed::no;
  const std::uint64_t pages = page_unit_.pages_up(region.tenant.requested);
  if (pages > kMostPages || !keeps_pages_) return Freed::no;
  if (region.range.begin != ptr || holder_of(region) != nullptr || region.tenant.timeline != shard.timeline ||
      !region.tenant.other_uses.empty() || region.tenant.capture != 0)
    return Freed::no;
  if (!shard.pages.provide(pages)) return Freed::no;
  const Freed freed = note_free(shard, region.range, stream);
  shard.tally.end(region.asked, region.range.size);
  shard.keep_pages(&region, pages);
  return freed;
}

// Before it is in the cache, where another thread of the stream may take it.
SmallPool::Freed SmallPool::note_free(Shard& shard, AddressRange range, const Stream& stream) {
  ++shard.activity;
  if (observer_ != nullptr && stream) observer_->on_deallocate(range, *stream);
  if (observer_ != nullptr && !stream) observer_->on_deallocate_any_stream(range);
  const bool is_due = shard.pacing.is_due(range.size, misses(), stream_count(), [this] { return driver_.now_ns(); });
  if (!is_due) return Freed::yes;
  shard.wants_event = true;
  return Freed::yes_and_event_is_due;
}

}  // namespace vpmm::small
