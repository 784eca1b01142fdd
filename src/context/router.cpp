// SPDX-License-Identifier: Apache-2.0
// context: requests to pages, parts of pages, arenas or the driver's pool.
#include "context/router.hpp"

#include <algorithm>

#include "base/message.hpp"
#include "base/quantity.hpp"

namespace vpmm::context {

using pool::Caller;
using pool::Standing;

namespace {

constexpr Bytes kSmallAlignment = 256;  // promised by the driver's stream-ordered pool
constexpr Bytes kReliefForSmall = 64 * kMiB;
// Guarded allocations take whole pages, and a mapping each, so they leave an eighth of both to
// those that share.
constexpr Bytes kKeptForOthers = 8;

bool is_shortage(const Result<DevicePtr>& result) {
  return !result && result.error().code == ErrorCode::out_of_memory;
}

}  // namespace

// A capturing stream gets whole pages, which stay with its graph; a stream-ordered allocation would
// become a node of the graph.
Result<DevicePtr> Router::allocate(MutexLock& lock, const pool::Request& request,
                                   const Caller& caller) {
  if (request.is_guarded) {
    VPMM_TRY_ASSIGN(const DevicePtr guarded, allocate_guarded(lock, request, caller));
    if (!is_null(guarded)) return guarded;
  }
  Result<DevicePtr> result = allocate_unguarded(lock, request, caller);
  if (device_.guard != nullptr && device_.guard->has_freed() && is_shortage(result)) {
    prover_.synchronize(lock);
    VPMM_TRY(prover_.settle_guarded(lock, guard::Guarded::kAll));
    result = allocate_unguarded(lock, request, caller);
  }
  if (result && request.is_guarded) device_.guard->count_unguarded();
  return result;
}

// Null: the request cannot be guarded, or memory, mappings or addresses are short.
Result<DevicePtr> Router::allocate_guarded(MutexLock& lock, const pool::Request& request,
                                           const Caller& caller) {
  const Bytes pages = device_.guard->pages_for(request.bytes, request.alignment);
  if (pages == 0 || request.arena != pool::ArenaId{} || request.one_chunk ||
      caller.standing != Standing::ordinary || device_.config.ipc_isolate)
    return DevicePtr{};
  const std::uint64_t mappings = device_.config.limits.max_mappings;
  if (device_.pool->memory().held_mappings() >= mappings - mappings / kKeptForOthers)
    return DevicePtr{};
  Bytes room = 0;
  if (const std::optional<Bytes> capacity = footprint_.capacity())
    room = *capacity;
  else if (device_.driver.device_total_mem(device_.primary.device(), room) !=
           driver::CuResult::success)
    return DevicePtr{};
  if (footprint_.held() + pages > room - room / kKeptForOthers) return DevicePtr{};
  footprint_.tell_pool(pages);  // others allocate while it is mapped
  Result<DevicePtr> guarded = device_.guard->allocate(lock, request, caller);
  footprint_.tell_pool();
  const bool is_broken = !guarded && guarded.error().code == ErrorCode::poisoned;
  return guarded || is_broken ? std::move(guarded) : DevicePtr{};
}

Result<DevicePtr> Router::allocate_unguarded(MutexLock& lock, const pool::Request& request,
                                             const Caller& caller) {
  if (request.arena != pool::ArenaId{}) return allocate_in_arena(lock, request, caller);
  using Server = small::Server;
  Server server = Server::driver_pool;
  if (device_.pool != nullptr)
    server = caller.standing == Standing::ordinary
                 ? device_.small->serving().server_of(request.bytes, request.alignment)
                 : Server::pages;
  if (request.one_chunk) return allocate_one_chunk(lock, request, caller);
  const bool is_cut = server == Server::pages &&
                      device_.small->cuts_pages_for(caller, request.bytes, request.alignment);
  if (server == Server::pages && !is_cut) return allocate_pages(lock, request, caller);
  if (server != Server::driver_pool) {
    Result<DevicePtr> cut =
        slow_path_.allocate_small(lock, request.bytes, request.alignment, caller);
    // A range of grains may fit where no whole page is free to cut.
    return is_cut && is_shortage(cut) ? allocate_pages(lock, request, caller) : cut;
  }
  if (caller.standing != Standing::ordinary)
    return Error{
        ErrorCode::capture_active,
        "without the virtual memory pool, memory cannot be allocated on a capturing stream"};
  if (request.alignment > kSmallAlignment)
    return Error{
        ErrorCode::unsupported,
        message_of("alignment {} needs the virtual memory pool, which is off or not supported here",
                   request.alignment)};
  return allocate_stream_ordered(lock, request, caller);
}

Result<DevicePtr> Router::allocate_one_chunk(MutexLock& lock, const pool::Request& request,
                                             const Caller& caller) {
  if (device_.pool != nullptr) return allocate_pages(lock, request, caller);
  return Error{
      ErrorCode::unsupported,
      "one physical chunk needs the virtual memory pool, which is off or not supported here"};
}

Result<void> Router::check_alignment(Bytes alignment) const {
  const Bytes page = device_.page_size;
  if (alignment <= device_.pool->memory().page_alignment() || is_power_of_two(page)) return {};
  return Error{
      ErrorCode::unsupported,
      message_of("alignment {} needs a page size (VPMM_PAGE_SIZE, {} bytes) that is a power of two",
                 alignment, page)};
}

Result<DevicePtr> Router::allocate_in_arena(MutexLock& lock, const pool::Request& request,
                                            const Caller& caller) {
  if (device_.pool == nullptr) return arena::no_arenas();
  VPMM_TRY(check_alignment(request.alignment));
  return slow_path_.allocate_in_arena(lock, request, caller);
}

pool::PageRequest Router::pages_for(const pool::Request& request) const {
  const bool has_whole_pages = request.one_chunk || request.bytes <= device_.page_size;
  const Bytes natural = has_whole_pages ? device_.pool->memory().page_alignment()
                                        : device_.pool->memory().tuning.grain_alignment();
  const Bytes size = request.one_chunk ? round_up(request.bytes, device_.page_size)
                                       : device_.small->serving().size_of_pages(request.bytes);
  return {request.bytes, size, std::max(request.alignment, natural), false,
          request.one_chunk ? pool::Chunks::one : pool::Chunks::shared};
}

Result<DevicePtr> Router::allocate_pages(MutexLock& lock, const pool::Request& request,
                                         const Caller& caller) {
  VPMM_TRY(check_alignment(request.alignment));
  const pool::PageRequest pages = pages_for(request);
  if (caller.standing == Standing::capturing && !request.one_chunk) {
    region::Region* parked = captures_.take_parked(caller.capture, *caller.stream, pages);
    if (parked != nullptr) {
      region::Region* const rest = device_.pool->pass_on(parked, pages, caller);
      if (rest != nullptr) captures_.park(caller.capture, rest, caller.stream);
      // Observers see the end of the parked memory only now: launches of the graph used it.
      recorder_.observe_end(parked->range, caller.stream);
      return parked->range.begin;
    }
  }
  VPMM_TRY_ASSIGN(const pool::Placed placed, slow_path_.place({lock, pages, caller}));
  // Frees of other allocations take the lock: to forget a tag, or to find a chunk again.
  if (request.is_plain()) enlist(placed.begin, request.bytes, caller);
  return placed.begin;
}

void Router::enlist(DevicePtr begin, Bytes bytes, const Caller& caller) {
  if (caller.own())
    device_.small->ownership().enlist(*device_.pool->memory().index.allocated_around(begin), bytes,
                                      device_.small->caches().of(*caller.timeline));
}

// If the driver's pool cannot grow, gives idle memory of the pool back.
Result<DevicePtr> Router::allocate_stream_ordered(MutexLock& lock, const pool::Request& request,
                                                  const Caller& caller) {
  const auto once = [&]() VPMM_REQUIRES(pool_lock) {
    return device_.driver_pool->allocate(lock, request.bytes, caller.stream, caller.timeline);
  };
  Result<DevicePtr> result = once();
  if (is_shortage(result) && device_.pool != nullptr) {
    const Bytes mapped = footprint_.held();
    const Bytes room = std::max(kReliefForSmall, 2 * request.bytes);
    VPMM_TRY(device_.pool->trim(lock, mapped > room ? mapped - room : 0));
    result = once();
  }
  if (is_shortage(result)) {
    prover_.synchronize(lock);
    VPMM_TRY(device_.driver_pool->settle(lock));
    if (device_.pool != nullptr) VPMM_TRY(device_.pool->trim(lock, 0));
    result = once();
  }
  footprint_.look_at_driver_pool();
  // Drops failures: only idle memory stays mapped then.
  if (result) footprint_.offset_growth(lock);
  if (is_shortage(result))
    return Error{ErrorCode::out_of_memory,
                 message_of("of the driver's stream-ordered pool: {}", result.error().message)};
  if (result && footprint_.is_over_capacity())
    VPMM_TRY(keep_capacity(lock, result.value(), caller));
  // A reset by others, while the lock was dropped, has ended the allocation.
  if (result && device_.driver_pool->block_around(result.value()) == nullptr)
    return Error{ErrorCode::out_of_memory, "the CUDA context was reset meanwhile"};
  return result;
}

// The driver's pool has no limit. Pays its growth past the capacity with idle pages, or undoes the
// request: out_of_memory, or the error of the try. A block that the driver does not take back waits
// until everything queued so far is over, and is tried again.
Result<void> Router::keep_capacity(MutexLock& lock, DevicePtr begin, const Caller& caller) {
  Result<Bytes> released =
      device_.pool == nullptr ? Bytes{0} : device_.pool->trim(lock, *footprint_.capacity());
  driver_pool::PoolBlock* block = device_.driver_pool->block_around(begin);
  if (block == nullptr || (released && !footprint_.is_over_capacity())) return {};
  if (!caller.may_queue() || !device_.driver_pool->deallocate_on(lock, block, *caller.stream)) {
    block = device_.driver_pool->block_around(begin);
    const time::Stamp stamp =
        caller.may_queue() ? device_.stamper.stamp_of_all(block->requested) : time::Stamp();
    static_cast<void>(
        device_.primary.noted(device_.driver_pool->deallocate_after(lock, block, stamp)));
  }
  if (!released) return std::move(released.error());
  static_cast<void>(footprint_.trim_driver_pool(lock));
  return Error{ErrorCode::out_of_memory,
               message_of("below a page, and the capacity limit of {} is reached",
                          readable_bytes(*footprint_.capacity()))};
}

// Creates as many pages as fit; halves the step after a failure.
Result<void> Router::preallocate_once(MutexLock& lock) {
  if (has_preallocated_) return {};
  has_preallocated_ = true;
  if (device_.pool == nullptr || device_.config.pages == 0) return {};
  settings::note_mapped_ahead();
  const std::uint64_t most = pool::kAddressSpace / device_.page_size;
  for (std::uint64_t missing = std::min(device_.config.pages, most), step = missing;
       step > 0 && missing > 0; step = std::min(step, missing)) {
    Result<void> done = device_.pool->preallocate(
        lock, device_.pool->memory().mapped_bytes() + step * device_.page_size);
    if (!done && done.error().code == ErrorCode::poisoned) return done;
    if (done)
      missing -= step;
    else
      step /= 2;
  }
  footprint_.note_peaks();  // growth of the driver's pool is paid beyond them
  return {};
}

}  // namespace vpmm::context
