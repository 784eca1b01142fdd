// SPDX-License-Identifier: Apache-2.0
// context: public calls on arenas.
#include "context/arena_calls.hpp"

#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

Result<pool::ArenaId> ArenaCalls::create(const arena::ArenaOptions& options) {
  if (device_.pool == nullptr) return arena::no_arenas();
  const PoolLock lock(parts_.mutex);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  arena::ArenaOptions tagged = options;
  if (tagged.tag == 0 && !tagged.is_external) tagged.tag = parts_.tags.scopes().innermost().tag;
  return parts_.arenas.create(tagged);
}

Result<DevicePtr> ArenaCalls::allocate_at(pool::ArenaId arena, AddressRange range,
                                          pool::Stream stream, std::uint32_t library) {
  if (range.empty() || range.size > pool::kAddressSpace)
    return parts_.mistake(
        {ErrorCode::invalid_argument, message_of("{} bytes at {:#x} are nothing to allocate",
                                                 range.size, to_integer(range.begin))});
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const pool::Caller caller, visit.identify(stream));
  pool::Request request{range.size, 0, stream, arena};
  request.library = library;
  parts_.tags.route(request);
  VPMM_TRY(limits_.check_tag(request));
  parts_.allocations.provide();
  Result<DevicePtr> begin = parts_.arenas.take_at(arena, range, caller);
  if (!begin) return parts_.allocations.mistake(std::move(begin.error()));
  Entrance::afterwards([&]() VPMM_REQUIRES(pool_lock) {
    parts_.recorder.allocated(parts_.allocations.range_to_tell(begin.value(), range.size),
                              begin.value(), request, caller);
    entrance_.leave(caller);
    parts_.footprint.note_peaks();
  });
  return begin;
}

Result<void> ArenaCalls::pin(pool::ArenaId arena) {
  const PoolLock lock(parts_.mutex);
  return parts_.arenas.pin(arena);
}

Result<void> ArenaCalls::add(pool::ArenaId arena, AddressRange memory) {
  const PoolLock lock(parts_.mutex);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return parts_.arenas.external().add(
      arena, memory,
      [&](AddressRange part) VPMM_REQUIRES(pool_lock) { return device_.owns_part_of(part); });
}

// Note [External memory]
Result<AddressRange> ArenaCalls::take(pool::ArenaId arena) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  parts_.allocations.drain(visit.lock());
  VPMM_TRY_ASSIGN(const bool is_worth_a_wait, parts_.arenas.external().has_idle(arena));
  if (!is_worth_a_wait) return AddressRange{};
  VPMM_TRY(device_.primary.noted(parts_.peers.find_contexts()));
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(parts_.prover.wait_for_everything(visit.lock()));
  return parts_.arenas.external().take(arena);
}

Result<Bytes> ArenaCalls::trim(pool::ArenaId arena) {
  const PoolLock lock(parts_.mutex);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return parts_.arenas.trim(arena);
}

// Leaves out freed memory that is kept for other processes.
Result<Vector<DevicePtr>> ArenaCalls::live(pool::ArenaId arena) const {
  const PoolLock lock(parts_.mutex);
  VPMM_TRY_ASSIGN(Vector<DevicePtr> live, parts_.arenas.live_in(arena));
  std::erase_if(
      live, [&](DevicePtr begin) VPMM_REQUIRES(pool_lock) { return parts_.shares.is_kept(begin); });
  return live;
}

Result<void> ArenaCalls::release(pool::ArenaId arena) {
  {
    const PoolLock lock(parts_.mutex);
    const HostPromise promise;
    if (!promise.is_kept()) return no_host_memory();
    VPMM_TRY(parts_.arenas.release(arena));
    if (parts_.host_copies.empty()) return {};
  }
  // A failure is dropped: the next free, suspend or resume tries again.
  Visit visit(entrance_);
  if (visit.status())
    parts_.host_copies.drop_unless([&](pool::ArenaId id) VPMM_REQUIRES(pool_lock) {
      return parts_.arenas.find(id) != nullptr;
    });
  return {};
}

}  // namespace vpmm::context
