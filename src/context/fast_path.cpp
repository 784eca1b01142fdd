// SPDX-License-Identifier: Apache-2.0
// context: calls served by the cache of their stream, under the cache's lock only.
#include <algorithm>
#include <utility>

#include "base/message.hpp"
#include "context/context.hpp"
#include "process/process_gate.hpp"

namespace vpmm::context {

using Freed = small::WarmCalls::Freed;

[[gnu::always_inline]] inline DevicePtr Context::try_allocate(const Way& way, const Client& client,
                                                              Bytes bytes, Bytes alignment) {
  if (device_.guard != nullptr && way.serves &&
      device_.small->serving().may_be_cached(bytes, alignment) &&
      device_.guard->sampler().is_to_leave())
    return {};
  if (client.cache == nullptr || !device_.small->serving().may_be_cached(bytes, alignment))
    return {};
  const DevicePtr begin = device_.small->warm_calls().try_allocate(client, bytes);
  if (way.log != nullptr && !is_null(begin)) record(*way.log, client, begin, bytes);
  return begin;
}

Result<DevicePtr> Context::allocate(const pool::Request& request) {
  if (request.bytes == 0) return DevicePtr{};
  if (request.stream && request.is_plain()) {
    const Way way = parts_.front.way();
    const bool may_hit = hits_.may_serve(request.bytes, request.alignment);
    if (way.serves && !way.would_wait() &&
        (may_hit || device_.small->serving().may_be_cached(request.bytes, request.alignment))) {
      const Client client = parts_.front.client_of(way, *request.stream);
      DevicePtr begin = try_allocate(way, client, request.bytes, request.alignment);
      if (is_null(begin) && may_hit)
        begin = hits_.allocate(client, request.bytes, request.alignment);
      if (!is_null(begin)) return begin;
    }
  }
  return allocate_slowly(request, nullptr);
}

DevicePtr Context::allocate_if_ready(Bytes bytes, Bytes alignment, driver::StreamHandle stream) {
  const Way way = parts_.front.way();
  if (bytes == 0 || !way.serves || !device_.small->serving().may_be_cached(bytes, alignment))
    return {};
  if (way.would_wait()) return {};
  return try_once(way, parts_.front.client_of(way, stream), bytes, alignment);
}

// Null: the program makes an ordinary call, which VPMM_GUARD=1/N counts.
DevicePtr Context::try_once(const Way& way, const Client& client, Bytes bytes, Bytes alignment) {
  const DevicePtr begin = try_allocate(way, client, bytes, alignment);
  if (is_null(begin) && device_.guard != nullptr) device_.guard->sampler().count_again();
  return begin;
}

// Note [Memory that is ready for any stream]
// Memory in the any-stream cache is complete, and so is memory that the pool gives to any stream.
// So both serve a request without driver calls, and without waits for the pool's lock: a Python
// program calls this with its interpreter locked. Ordinary calls carry out deferred frees, so while
// such frees wait, only a bounded number of requests is served, and none for whole pages.
DevicePtr Context::allocate_if_ready(Bytes bytes, Bytes alignment) {
  const Way way = parts_.front.way();
  if (bytes == 0 || !way.serves || way.would_wait()) return {};
  const small::Server server = device_.small->serving().server_of(bytes, alignment);
  if (server == small::Server::driver_pool) return {};
  if (server == small::Server::pages) return hits_.allocate_if_ready(bytes, alignment);
  if (!device_.small->serving().may_be_cached(bytes, alignment)) return {};
  if (!parts_.allocations.may_pass_deferred()) return {};
  return try_once(way, {&device_.small->caches().any(), driver::StreamId{}, std::nullopt}, bytes,
                  alignment);
}

// Asks the driver for the stream's id once; reads the state of recordings for each allocation. All
// or none, also if an out-of-memory callback throws.
Result<void> Context::allocate_many(std::span<const Bytes> bytes, pool::Stream stream,
                                    std::span<DevicePtr> out) {
  if (bytes.size() != out.size())
    return Error{ErrorCode::invalid_argument,
                 message_of("{} sizes and {} results", bytes.size(), out.size())};
  const Way first = parts_.front.way();
  const Client client = stream && first.serves ? parts_.front.client_of(first, *stream) : Client{};
  const auto take_back = [&](std::size_t made) {
    for (const DevicePtr ptr : out.first(made)) free_surely(ptr, stream);
    std::fill(out.begin(), out.end(), DevicePtr{});
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    out[i] = DevicePtr{};
    if (bytes[i] == 0) continue;
    out[i] = try_allocate(parts_.front.way(), client, bytes[i], 0);
    if (!is_null(out[i])) continue;
    try {
      if (hits_.may_serve(bytes[i], 0)) out[i] = hits_.allocate(client, bytes[i], 0);
      if (!is_null(out[i])) continue;
      Result<DevicePtr> slow = allocate_slowly({bytes[i], 0, stream}, nullptr);
      if (slow) {
        out[i] = slow.value();
        continue;
      }
      take_back(i);
      return std::move(slow.error());
    } catch (...) {
      take_back(i);
      throw;
    }
  }
  return {};
}

// Defers the free if host memory is short, or the driver refuses it.
void Context::free_surely(DevicePtr ptr, pool::Stream stream) noexcept {
  try {
    if (deallocate(ptr, stream)) return;
  } catch (...) {  // NOLINT(bugprone-empty-catch): no host memory, likewise
  }
  deallocate_deferred(ptr);
}

Result<void> Context::deallocate(DevicePtr ptr, pool::Stream stream) {
  if (is_null(ptr)) return {};
  if (stream) {
    const Way way = parts_.front.way();
    if (is_freed(try_free(way, ptr, *stream), stream, nullptr)) return {};
    if (!entrance_.is_visit_due() &&
        is_freed(hits_.free(parts_.front.client_of(way, *stream), ptr), stream, nullptr))
      return {};
  }
  return deallocate_slowly(ptr, stream, nullptr);
}

// Note [A try takes what is there]
// A program calls deallocate_if_ready with a lock of its own, which GPU work and callbacks may
// want. So it asks the driver only for the stream's identity, takes only the cache's lock, and does
// not wait for room in a recording. A due event is left to the stream's next call, which takes the
// pool's lock for it and keeps the bounds.
bool Context::deallocate_if_ready(DevicePtr ptr, driver::StreamHandle stream) {
  if (is_null(ptr)) return true;
  const Way way = parts_.front.way();
  if (way.would_wait()) return false;
  const Freed freed = try_free(way, ptr, stream);
  return freed == Freed::yes || freed == Freed::yes_and_event_is_due;
}

Result<void> Context::deallocate_many(std::span<const DevicePtr> pointers, pool::Stream stream) {
  const Client client = stream ? parts_.front.client_of(parts_.front.way(), *stream) : Client{};
  Result<void> first;
  for (const DevicePtr ptr : pointers) {
    if (is_null(ptr) || is_freed(try_free(parts_.front.way(), client, ptr), stream, nullptr) ||
        is_freed(hits_.free(client, ptr), stream, nullptr))
      continue;
    Result<void> freed = deallocate_slowly(ptr, stream, nullptr);
    if (!freed && first) first = std::move(freed);
  }
  return first;
}

Freed Context::try_free(const Way& way, const Client& client, DevicePtr ptr) {
  if (client.cache == nullptr) return Freed::no;
  return way.log == nullptr ? device_.small->warm_calls().try_free(client, ptr)
                            : free_and_record(*way.log, client, ptr);
}

Freed Context::try_free(const Way& way, DevicePtr ptr, driver::StreamHandle stream) {
  if (!way.is_open) return Freed::no;
  // A recording needs the stream's id, which a free by the handle does not know.
  const Freed freed = way.log == nullptr
                          ? device_.small->warm_calls().try_free_by_handle(ptr, stream)
                          : Freed::not_known;
  return freed == Freed::not_known ? try_free(way, parts_.front.client_of(way, stream), ptr)
                                   : freed;
}

void Context::record(report::CallLog& log, const Client& client, DevicePtr begin, Bytes bytes) {
  pool::Request request;
  request.bytes = bytes;
  request.stack = log.capture_stack();
  log.allocated(begin, request, device_.small->serving().taken_for(bytes),
                report::CallLog::by(client.id, client.stream));
}

// Note [The order of claims is the order of the file]
Freed Context::free_and_record(report::CallLog& log, const Client& client, DevicePtr ptr) {
  report::CallLog::Claim place = log.claim();
  const Freed freed = device_.small->warm_calls().try_free(client, ptr);
  if (freed == Freed::yes || freed == Freed::yes_and_event_is_due)
    log.freed(std::move(place), ptr, report::CallLog::by(client.id, client.stream));
  return freed;
}

// Returns true if the memory is freed. Records the event that is due.
bool Context::is_freed(Freed freed, const pool::Stream& stream, const time::TimelineId* bound) {
  if (freed == Freed::yes_and_event_is_due) record_due_event(stream, bound);
  return freed == Freed::yes || freed == Freed::yes_and_event_is_due;
}

// Drops a failure: the event stays due, and a later call records it.
void Context::record_due_event(const pool::Stream& stream, const time::TimelineId* bound) noexcept {
  try {
    Visit visit(entrance_);
    if (!visit.status()) return;
    const Result<pool::Caller> caller = visit.identify(stream, bound);
    if (!caller) return;
    entrance_.leave(caller.value());
    entrance_.keep_bounds(visit.lock());
  } catch (...) {  // NOLINT(bugprone-empty-catch): no host memory: the event stays due
  }
}

Result<std::unique_ptr<BoundStream>> Context::bind(driver::StreamHandle stream) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const pool::Caller caller, visit.identify(stream));
  if (caller.timeline == nullptr)
    return Error{ErrorCode::capture_active, "a stream that is being captured cannot be bound"};
  Client client{nullptr, *caller.timeline->stream, stream};
  if (device_.small != nullptr) client.cache = &device_.small->caches().of(*caller.timeline);
  std::unique_ptr<BoundStream> bound =
      std::make_unique<BoundStream>(*this, client, caller.timeline->id);
  ++caller.timeline->references;  // until ~BoundStream()
  return bound;
}

// --- bound streams

BoundStream::~BoundStream() {
  if (process::is_ending()) return;
  const PoolLock lock(context_.parts_.mutex);
  if (time::Timeline* timeline = context_.parts_.device.timelines.find(timeline_))
    --timeline->references;
}

StreamFront::Way BoundStream::way() const {
  if (context_.parts_.captures.may_be_known()) return {};
  return context_.parts_.front.way();
}

DevicePtr BoundStream::try_allocate(Bytes bytes, Bytes alignment) {
  if (bytes == 0) return {};
  const StreamFront::Way now = way();
  return now.serves ? context_.try_allocate(now, client_, bytes, alignment) : DevicePtr{};
}

bool BoundStream::try_deallocate(DevicePtr ptr) {
  if (is_null(ptr)) return false;
  const StreamFront::Way now = way();
  return now.is_open &&
         context_.is_freed(context_.try_free(now, client_, ptr), client_.stream, &timeline_);
}

Result<DevicePtr> BoundStream::allocate_beyond(Bytes bytes, Bytes alignment) {
  if (bytes == 0) return DevicePtr{};
  if (way().serves && context_.hits_.may_serve(bytes, alignment) &&
      context_.hits_.may_serve_bound()) {
    const DevicePtr begin = context_.hits_.allocate(client_, bytes, alignment);
    if (!is_null(begin)) return begin;
  }
  return context_.allocate_slowly({bytes, alignment, client_.stream}, &timeline_);
}

Result<void> BoundStream::deallocate_beyond(DevicePtr ptr) {
  if (is_null(ptr)) return {};
  if (way().is_open && context_.hits_.may_serve_bound() &&
      context_.is_freed(context_.hits_.free(client_, ptr), client_.stream, &timeline_))
    return {};
  return context_.deallocate_slowly(ptr, client_.stream, &timeline_);
}

}  // namespace vpmm::context
