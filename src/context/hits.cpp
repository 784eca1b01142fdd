// SPDX-License-Identifier: Apache-2.0
// context: hits of an only stream, and of requests without a stream.
#include "context/hits.hpp"

#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "context/owners.hpp"

namespace vpmm::context {

DevicePtr Hits::allocate(const Client& client, Bytes bytes, Bytes alignment) {
  if (client.cache == nullptr ||
      device_.small->serving().server_of(bytes, alignment) != small::Server::pages)
    return {};
  const PoolLock lock(parts_.mutex);
  const pool::Caller caller{client.stream, entrance_.timeline_without_visit(client)};
  if (caller.timeline == nullptr || device_.small->cuts_pages_for(caller, bytes, alignment))
    return {};
  const HostPromise promise;
  if (!promise.is_kept()) return {};
  // As SlowPath::attempt() does.
  small::Flusher& flusher = device_.small->flusher();
  const pool::Request request{bytes, alignment, client.stream};
  flusher.give_back_before(caller, bytes);
  device_.pool->planner().set_cached_bytes(device_.small->caches().cached_bytes());
  for (;;) {
    const DevicePtr begin = take(request, caller);
    if (!is_null(begin)) return begin;
    if (!flusher.flush_one(caller, device_.small->serving().size_of_pages(bytes))) return {};
  }
}

DevicePtr Hits::allocate_if_ready(Bytes bytes, Bytes alignment) {
  if (device_.config.page_chunks || !has_natural_place(bytes, alignment) ||
      parts_.allocations.has_deferred())
    return {};
  if (device_.guard == nullptr) return take_if_ready(bytes, alignment);
  if (device_.guard->sampler().is_to_leave()) return {};
  const DevicePtr begin = take_if_ready(bytes, alignment);
  if (is_null(begin)) device_.guard->sampler().count_again();
  return begin;
}

DevicePtr Hits::take_if_ready(Bytes bytes, Bytes alignment) {
  pool::Request request;
  request.bytes = bytes;
  request.alignment = alignment;
  if (report::CallLog* const log = parts_.front.way().log) request.stack = log->capture_stack();
  if (!parts_.mutex.try_lock()) return {};
  const PoolLock lock(parts_.mutex, std::adopt_lock);
  if (!parts_.router.has_preallocated() || parts_.recorder.wants_all_calls()) return {};
  const HostPromise promise;
  return promise.is_kept() ? take(request, pool::Caller()) : DevicePtr{};
}

DevicePtr Hits::take(const pool::Request& request, const pool::Caller& caller) {
  parts_.allocations.provide();  // may throw, so before memory is taken
  const std::optional<pool::Placed> found =
      device_.pool->find(parts_.router.pages_for(request), caller);
  if (!found) return {};
  const DevicePtr begin = found->begin;
  Entrance::afterwards([&]() VPMM_REQUIRES(pool_lock) {
    parts_.router.enlist(begin, request.bytes, caller);
    parts_.recorder.allocated(parts_.allocations.range_to_tell(begin, request.bytes), begin,
                              request, caller);
    parts_.footprint.note_peaks();
  });
  return begin;
}

Hits::Freed Hits::free(const Client& client, DevicePtr ptr) {
  if (client.cache == nullptr || entrance_.is_visit_due()) return Freed::no;
  PoolLock lock(parts_.mutex);
  const pool::Caller caller{client.stream, entrance_.timeline_without_visit(client)};
  const HostPromise promise;
  if (caller.timeline == nullptr || !promise.is_kept()) return Freed::no;
  const OwnedBy owner = Owners(device_, parts_.arenas).of(ptr);
  const Pages* const pages = std::get_if<Pages>(&owner);
  // Memory that others may hold counts as used by all streams, and a graph's is of no stream.
  if (pages == nullptr || pages->region->range.begin != ptr || small::is_cached(*pages->region) ||
      pages->region->owner.timeline != caller.timeline->id ||
      !pages->region->owner.other_uses.empty())
    return Freed::no;
  parts_.footprint.note_peaks();
  if (!parts_.allocations.free(lock, owner, ptr, caller.stream, caller)) return Freed::no;
  return device_.timelines.is_due(*caller.timeline) ? Freed::yes_and_event_is_due : Freed::yes;
}

}  // namespace vpmm::context
