// context: public calls on arenas.
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "context/visit.hpp"

namespace vpmm::context {

using pool::Caller;

Result<ArenaId> DeviceContext::create_arena(const ArenaOptions& options) {
  if (device_.pool == nullptr) return no_arenas();
  const PoolLock lock(mutex_);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return arenas_.create(options);
}

Result<DevicePtr> DeviceContext::allocate_in_arena(const Request& request) {
  if (request.arena == ArenaId{})
    return mistake({ErrorCode::invalid_argument, "there is no arena 0"});
  if (request.bytes == 0) return DevicePtr{};
  return allocate_slowly(request, nullptr);
}

Result<DevicePtr> DeviceContext::allocate_at(ArenaId arena, AddressRange place, Stream stream) {
  if (place.empty() || place.size > kAddressSpace)
    return mistake(
        {ErrorCode::invalid_argument, message_of("{} bytes at {:#x} are nothing to allocate",
                                                 place.size, to_integer(place.begin))});
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(stream));
  allocations_.provide();
  Result<DevicePtr> begin = arenas_.take_at(arena, place, caller);
  if (!begin) return allocations_.mistake(std::move(begin.error()));
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    recorder_.allocated(begin.value(), {place.size, 0, stream, arena}, caller,
                        arenas_.range_of(begin.value()));
    leave(caller);
    footprint_.note_peaks();
  });
  return begin;
}

Result<void> DeviceContext::pin_arena(ArenaId arena) {
  const PoolLock lock(mutex_);
  return arenas_.pin(arena);
}

Result<void> DeviceContext::add_to_arena(ArenaId arena, AddressRange memory) {
  const PoolLock lock(mutex_);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return arenas_.add_external(arena, memory);
}

// Note [External memory]
Result<AddressRange> DeviceContext::take_from_arena(ArenaId arena) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  allocations_.drain(visit.lock());
  VPMM_TRY_ASSIGN(const bool is_worth_a_wait, arenas_.has_idle_external(arena));
  if (!is_worth_a_wait) return AddressRange{};
  VPMM_TRY(device_.primary.noted(peers_.find_contexts()));
  if (!prover_.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(prover_.wait_for_everything(visit.lock()));
  return arenas_.take_external(arena);
}

Result<Bytes> DeviceContext::trim_arena(ArenaId arena) {
  const PoolLock lock(mutex_);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return arenas_.trim(arena);
}

// What is freed, and kept for other processes alone, is no user's.
Result<Vector<DevicePtr>> DeviceContext::live_in_arena(ArenaId arena) const {
  const PoolLock lock(mutex_);
  VPMM_TRY_ASSIGN(Vector<DevicePtr> live, arenas_.live_in(arena));
  std::erase_if(live,
                [&](DevicePtr begin) VPMM_REQUIRES(pool_lock) { return shares_.is_kept(begin); });
  return live;
}

Result<void> DeviceContext::release_arena(ArenaId arena) {
  const PoolLock lock(mutex_);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return arenas_.release(arena);
}

}  // namespace vpmm::context
