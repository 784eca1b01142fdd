// context: the way of a request and of a free through one device.
#include "context/device_context.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"
#include "context/config.hpp"
#include "context/neighbours.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using pool::Caller;
using pool::Standing;

namespace {

constexpr Bytes kSmallAlignment = 256;  // what the driver's asynchronous pool promises
constexpr Bytes kReliefForSmall = 64 * kMiB;

std::optional<std::uint64_t> stream_key(const Caller& caller) {
  if (caller.timeline == nullptr || !caller.timeline->stream) return std::nullopt;
  return static_cast<std::uint64_t>(*caller.timeline->stream);
}

}  // namespace

// --- a request ------------------------------------------------------------------------------------------------------

Result<DevicePtr> DeviceContext::allocate_slowly(const Request& request, const time::TimelineId* bound) {
  Result<DevicePtr> result = allocate_or_call_back(request, bound);
  if (result) return result;
  const PoolLock lock(mutex_);
  ++failed_allocations_;
  return result;
}

Result<DevicePtr> DeviceContext::allocate_or_call_back(const Request& request, const time::TimelineId* bound) {
  if (request.alignment != 0 && !is_power_of_two(request.alignment))
    return mistake({ErrorCode::invalid_argument, message_of("alignment {} is not a power of two", request.alignment)});
  if (request.bytes > kAddressSpace || request.alignment > kAddressSpace)
    return mistake({ErrorCode::invalid_argument, message_of("{} bytes at alignment {} is more than any address space",
                                                            request.bytes, request.alignment)});
  for (bool has_asked = false;;) {
    Result<DevicePtr> result = allocate_once(request, bound);
    if (result || result.error().code != ErrorCode::out_of_memory) return result;
    if (!std::exchange(has_asked, true) && ask_for_idle(request.bytes) > 0) continue;
    OutOfMemoryCallback callback;
    {
      const PoolLock lock(mutex_);
      callback = out_of_memory_;
    }
    if (!callback || !callback({request.bytes, primary_.device()})) return result;
    has_asked = false;  // it may have freed memory of theirs
  }
}

Result<DevicePtr> DeviceContext::allocate_once(const Request& request, const time::TimelineId* bound) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  // First of all: a capture of this stream must be known before an event of the whole context might break it.
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(request.stream, bound));
  if (bound != nullptr && caller.timeline == nullptr && !caller.stream)
    return Error{ErrorCode::invalid_argument, "the bound stream is gone: its CUDA context was reset"};
  const bool has_drained = drain_deferred(lock);
  VPMM_TRY(primary_.noted(settle(lock)));
  VPMM_TRY(primary_.noted(preallocate_once(lock)));
  deferred_.provide(live_allocations() + 1);  // it may throw, so before anything is taken
  Result<DevicePtr> result = primary_.noted(route(lock, request, caller));
  if (!result) return result;
  // The memory is the caller's already, so a failure from here on is not the request's; the next call meets it again.
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    announce_allocation(result.value(), request, caller);
    leave(caller);
    note_peaks(caller);
    static_cast<void>(primary_.noted(bound_any_stream(lock)));
    if (has_drained)
      static_cast<void>(primary_.noted(trim_above_threshold(lock)));  // these frees could not do it themselves
  });
  return result;
}

// A stream that captures gets whole pages, which stay with its graph; a stream-ordered allocation would become a node
// of it.
Result<DevicePtr> DeviceContext::route(MutexLock& lock, const Request& request, const Caller& caller) {
  using Server = small::SmallPool::Server;
  Server server = Server::driver_pool;
  if (pool_ != nullptr)
    server =
        caller.standing == Standing::ordinary ? small_->server_of(request.bytes, request.alignment) : Server::pages;
  if (server == Server::pages) return allocate_pages(lock, request, caller);
  if (server != Server::driver_pool) return allocate_small(lock, request, caller);
  if (caller.standing != Standing::ordinary)
    return Error{ErrorCode::capture_active,
                 "without the virtual memory pool, memory cannot be allocated on a capturing stream"};
  if (request.alignment > kSmallAlignment)
    return Error{ErrorCode::unsupported,
                 message_of("alignment {} needs the virtual memory pool, which is off or not supported here",
                            request.alignment)};
  return allocate_stream_ordered(lock, request, caller);
}

Result<DevicePtr> DeviceContext::allocate_pages(MutexLock& lock, const Request& request, const Caller& caller) {
  const Bytes page = pool_->page_size();
  const Bytes natural = pool_->page_alignment();
  if (request.alignment > natural && !is_power_of_two(page))
    return Error{ErrorCode::unsupported,
                 message_of("alignment {} needs a page size (VPMM_PAGE_SIZE, {} bytes) that is a power of two",
                            request.alignment, page)};
  const pool::PageRequest pages{request.bytes, round_up(request.bytes, page), std::max(request.alignment, natural)};
  if (caller.standing == Standing::capturing) {
    region::Region* parked = captures_.take_parked(caller.capture, *caller.stream, pages.size, pages.alignment);
    if (parked != nullptr) {
      // Nobody was told when it was parked, for launches of the graph still use it.
      if (observer_ != nullptr) observer_->on_deallocate(parked->range, *caller.stream);
      return pool_->pass_on(parked, pages, caller);
    }
  }
  VPMM_TRY_ASSIGN(const pool::Placed placed, place(lock, pages, caller));
  if (caller.own())
    small_->enlist(*pool_->allocated_around(placed.begin), request.bytes, small_->cache_of(*caller.timeline));
  return placed.begin;
}

// When the driver's pool cannot grow, our idle memory makes room for it.
Result<DevicePtr> DeviceContext::allocate_stream_ordered(MutexLock& lock, const Request& request,
                                                         const Caller& caller) {
  const auto once = [&]() VPMM_REQUIRES(pool_lock) {
    return driver_pool_->allocate(lock, request.bytes, caller.stream, caller.timeline);
  };
  const auto is_short = [](const Result<DevicePtr>& r) { return !r && r.error().code == ErrorCode::out_of_memory; };
  Result<DevicePtr> result = once();
  if (is_short(result) && pool_ != nullptr) {
    const Bytes mapped = pool_->mapped_bytes() + driver_pool_bytes_;
    const Bytes room = std::max(kReliefForSmall, 2 * request.bytes);
    VPMM_TRY(pool_->trim(lock, mapped > room ? mapped - room : 0));
    result = once();
  }
  if (is_short(result)) {
    synchronize_contexts(lock);
    VPMM_TRY(driver_pool_->settle(lock));
    if (pool_ != nullptr) VPMM_TRY(pool_->trim(lock, 0));
    result = once();
  }
  const Bytes reserved_before = std::exchange(driver_pool_bytes_, driver_pool_->reserved_bytes());
  // Only what was idle stays mapped when this fails, and the request has its memory.
  if (result && driver_pool_bytes_ > reserved_before) static_cast<void>(primary_.noted(offset_growth(lock)));
  if (is_short(result))
    return Error{ErrorCode::out_of_memory,
                 message_of("out of device memory: asked for {} bytes of the driver's stream-ordered pool; {}",
                            request.bytes, result.error().message)};
  if (result && is_over_capacity()) VPMM_TRY(keep_capacity(lock, result.value(), request, caller));
  return result;
}

// The driver's pool has no limit of its own, so growth past the capacity is paid with idle pages, or undone.
Result<void> DeviceContext::keep_capacity(MutexLock& lock, DevicePtr begin, const Request& request,
                                          const Caller& caller) {
  if (pool_ != nullptr) {
    pool_->set_other_bytes(driver_pool_bytes_);
    VPMM_TRY(pool_->trim(lock, *capacity_));
  }
  if (!is_over_capacity()) return {};
  driver_pool::Block* block = driver_pool_->block_around(begin);
  VPMM_TRY(caller.may_queue() ? driver_pool_->deallocate_on(lock, block, *caller.stream)
                              : driver_pool_->deallocate_after(lock, block, {}));
  trim_driver_pool(lock);
  return Error{ErrorCode::out_of_memory,
               message_of("out of device memory: asked for {} bytes below a page, and the capacity limit of {} bytes "
                          "is reached",
                          request.bytes, *capacity_)};
}

// The other half of Note [Caches shrink before the footprint grows]: growth of the driver's pool past the peak is paid
// with idle pages. In page mode only: a large chunk is not worth a small request.
Result<void> DeviceContext::offset_growth(MutexLock& lock) {
  if (pool_ == nullptr || !config_.page_chunks || cleanup_holds_ != 0) return {};
  if (pool_->mapped_bytes() + driver_pool_bytes_ <= peak_mapped_) return {};
  pool_->set_other_bytes(driver_pool_bytes_);
  VPMM_TRY(pool_->trim(lock, peak_mapped_));
  return {};
}

// VPMM_PAGES, at the first allocation and best effort: as many pages as fit, by halving what is still missing.
Result<void> DeviceContext::preallocate_once(MutexLock& lock) {
  if (has_preallocated_) return {};
  has_preallocated_ = true;
  if (pool_ == nullptr || config_.pages == 0) return {};
  note_mapped_ahead();
  const std::uint64_t most = kAddressSpace / pool_->page_size();
  for (std::uint64_t missing = std::min(config_.pages, most), step = missing; step > 0 && missing > 0;
       step = std::min(step, missing)) {
    Result<void> done = pool_->preallocate(lock, pool_->mapped_bytes() + step * pool_->page_size());
    if (!done && done.error().code == ErrorCode::poisoned) return done;
    if (done)
      missing -= step;
    else
      step /= 2;
  }
  return {};
}

void DeviceContext::announce_allocation(DevicePtr begin, const Request& request, const Caller& caller) {
  if (recording_) recording_->record_allocate(begin, request.bytes, stream_key(caller), driver_.now_ns() / 1000);
  if (observer_ == nullptr) return;
  const region::Region* region = pool_ == nullptr ? nullptr : pool_->allocated_around(begin);
  AddressRange range{begin, request.bytes};
  if (region != nullptr)
    range = small::SmallPool::is_arena(*region) ? small_->find(*region, begin)->range : region->range;
  if (request.stream)
    observer_->on_allocate(range, *request.stream);
  else
    observer_->on_allocate_any_stream(range);
}

// --- a free ---------------------------------------------------------------------------------------------------------

Result<void> DeviceContext::deallocate_slowly(DevicePtr ptr, const Stream& stream, const time::TimelineId* bound) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(stream, bound));
  VPMM_TRY(primary_.noted(free_one(lock, ptr, caller.stream, caller)));
  // The memory is freed already, so a failure from here on is not the call's.
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    leave(caller);
    static_cast<void>(primary_.noted(bound_any_stream(lock)));
    static_cast<void>(primary_.noted(trim_above_threshold(lock)));
  });
  return {};
}

void DeviceContext::deallocate_deferred(DevicePtr ptr) noexcept {
  if (!is_null(ptr)) deferred_.push(to_integer(ptr));
}

bool DeviceContext::drain_deferred(MutexLock& lock) {
  captures_.take_ended([this](std::uint64_t capture) VPMM_REQUIRES(pool_lock) { release_capture(capture); });
  if (deferred_.empty()) return false;
  served_beside_deferred_.store(0, std::memory_order_relaxed);
  // Nobody is here to be told: a mistake is counted, a broken context noted, and the other frees are carried out.
  deferred_.take_all([&](std::uint64_t address) VPMM_REQUIRES(pool_lock) {
    const HostPromise promise;  // of its own: there may be any number of them
    if (!promise.is_cached()) throw std::bad_alloc();
    static_cast<void>(primary_.noted(free_one(lock, DevicePtr{address}, std::nullopt, Caller{})));
  });
  if (is_proof_due()) prove_everything();
  return true;
}

// Note [Who ends an allocation may free it]
Result<void> DeviceContext::free_one(MutexLock& lock, DevicePtr ptr, const Stream& stream, const Caller& caller) {
  region::Region* const region = pool_ == nullptr ? nullptr : pool_->allocated_around(ptr);
  if (region == nullptr) return free_block(lock, ptr, stream, caller);
  if (is_kept_for_holders(ptr)) return not_live(ptr, {});
  if (keep_for_holders(ptr)) {
    record_free(ptr, caller);
    return {};
  }
  VPMM_RACE_WINDOW("a free holds the pool's lock, nothing has ended");
  if (small::SmallPool::is_arena(*region)) {
    const std::optional<small::Allocation> ended = small_->end(*region, ptr);
    if (!ended) return not_live(ptr, live_around(*region, ptr));
    record_free(ptr, caller);
    free_small(*ended, stream, caller);
    return {};
  }
  if (region->range.begin != ptr || captures_.is_parked(region) || !small_->end(*region))
    return not_live(ptr, live_around(*region, ptr));
  record_free(ptr, caller);
  free_pages(region, stream, caller);
  return {};
}

Result<void> DeviceContext::free_block(MutexLock& lock, DevicePtr ptr, const Stream& stream, const Caller& caller) {
  driver_pool::Block* const block = driver_pool_ == nullptr ? nullptr : driver_pool_->block_around(ptr);
  if (block == nullptr) return not_live(ptr, {});
  if (block->begin != ptr) return not_live(ptr, {block->begin, block->requested});
  record_free(ptr, caller);
  return free_stream_ordered(lock, block, stream, caller);
}

void DeviceContext::record_free(DevicePtr ptr, const Caller& caller) {
  if (recording_) recording_->record_deallocate(ptr, stream_key(caller), driver_.now_ns() / 1000);
}

// The named stream need not wait for others that used the memory: the pool does, so to an observer any of them may be
// the last.
void DeviceContext::announce_deallocation(AddressRange range, const Uses& uses, const Stream& stream,
                                          const Caller& caller) {
  if (observer_ == nullptr) return;
  const bool is_alone =
      stream && uses.others.empty() && caller.timeline != nullptr && (!uses.owner || uses.owner == caller.timeline->id);
  if (is_alone)
    observer_->on_deallocate(range, *stream);
  else
    observer_->on_deallocate_any_stream(range);
}

// Requires: they were live and were ended.
void DeviceContext::free_pages(region::Region* region, const Stream& stream, const Caller& caller) {
  if (captures_.keeps(region->owner.capture)) {
    const bool is_inside = caller.capture == region->owner.capture;
    captures_.park(region->owner.capture, region, is_inside ? caller.stream : std::nullopt);
    return;
  }
  const Uses uses{region->owner.timeline, region->owner.other_uses, region->range.size};
  announce_deallocation(region->range, uses, stream, caller);
  pool_->deallocate(region, stamp_of(uses, caller));
}

// Whether it is a user's: not kept by a cache, not parked for a graph, not kept for other processes alone.
bool DeviceContext::is_live(const region::Region* region) const {
  return !small::SmallPool::is_cached(*region) && !captures_.is_parked(region) &&
         !is_kept_for_holders(region->range.begin);
}

// The live allocation in it around `ptr`; empty: nothing live is there.
AddressRange DeviceContext::live_around(const region::Region& region, DevicePtr ptr) const {
  if (!small::SmallPool::is_arena(region)) return is_live(&region) ? region.range : AddressRange{};
  const std::optional<small::Allocation> small = find_live(region, ptr);
  return small ? small->range : AddressRange{};
}

// Requires: it was live and was ended.
void DeviceContext::free_small(const small::Allocation& ended, const Stream& stream, const Caller& caller) {
  const Uses uses{ended.timeline, small_->other_uses(ended), ended.range.size};
  announce_deallocation(ended.range, uses, stream, caller);
  small_->deallocate(ended, stamp_of(uses, caller));
}

// A free on the one stream that used the memory is the driver's to order; everything else waits here until its stamp is
// complete.
Result<void> DeviceContext::free_stream_ordered(MutexLock& lock, driver_pool::Block* block, const Stream& stream,
                                                const Caller& caller) {
  const Uses uses{block->timeline, block->other_uses, block->requested};
  announce_deallocation({block->begin, block->requested}, uses, stream, caller);
  const bool is_alone =
      caller.may_queue() && block->other_uses.empty() && (!block->timeline || block->timeline == caller.timeline->id);
  if (is_alone) {
    const AddressRange range{block->begin, block->requested};
    Result<void> freed = driver_pool_->deallocate_on(lock, block, *caller.stream);
    if (!freed && observer_ != nullptr) observer_->on_allocate(range, *stream);  // it is the caller's still
    return freed;
  }
  return driver_pool_->deallocate_after(lock, block, stamp_of(uses, caller));
}

// Note [Free on which stream]
// The stream that is named, the streams that record_use named, and, when it is another one, the stream of the
// allocation, whose queued work may use the memory too. More than two are "all streams now".
time::Stamp DeviceContext::stamp_of(const Uses& uses, const Caller& caller) {
  Vector<time::Timeline*> timelines;
  const auto add = [&](std::optional<time::TimelineId> id) VPMM_REQUIRES(pool_lock) {
    time::Timeline* timeline = id ? timelines_.find(*id) : nullptr;
    if (timeline != nullptr && !timeline->is_over &&
        std::find(timelines.begin(), timelines.end(), timeline) == timelines.end())
      timelines.push_back(timeline);
  };
  const time::Timeline* const owner = uses.owner ? timelines_.find(*uses.owner) : nullptr;
  const bool names_owner =
      !caller.stream && config_.unnamed_free == UnnamedFree::allocating_stream && owner != nullptr && !owner->is_over;
  const bool is_unnamed = !caller.stream && uses.others.empty();
  if (caller.timeline == nullptr && !names_owner)
    return time::Stamp(timelines_.next(is_unnamed ? timelines_.any_stream() : all_streams(), uses.bytes));
  if (caller.timeline != nullptr) add(caller.timeline->id);
  add(uses.owner);
  for (const time::TimelineId other : uses.others) add(other);
  if (timelines.size() > 2) return time::Stamp(timelines_.next(all_streams(), uses.bytes));
  const time::StampPart first = timelines_.next(*timelines[0], uses.bytes);
  if (timelines.size() == 1) return time::Stamp(first);
  timelines[1]->wanted = true;
  return time::Stamp(first, timelines_.next(*timelines[1], 0));
}

Error DeviceContext::mistake(Error error) {
  const PoolLock lock(mutex_);
  ++caller_mistakes_;
  return error;
}

Error DeviceContext::not_live(DevicePtr ptr, AddressRange around) {
  ++caller_mistakes_;
  if (!around.empty() && around.begin != ptr)
    return Error{ErrorCode::invalid_pointer, message_of("{:#x} points inside the allocation that starts at {:#x}",
                                                        to_integer(ptr), to_integer(around.begin))};
  return Error{ErrorCode::invalid_pointer,
               message_of("{:#x} is not a live allocation of this pool: it was freed already, or comes from elsewhere",
                          to_integer(ptr))};
}

Result<void> DeviceContext::record_use(DevicePtr ptr, driver::StreamHandle stream) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(stream));
  time::Timeline& user = caller.timeline != nullptr ? *caller.timeline : all_streams();
  // Every free waits for the stream of the allocation anyway, but for one without a stream where VPMM_ANY_STREAM leaves
  // out streams that nobody named: there it counts that this one was.
  const auto is_news = [&](std::optional<time::TimelineId> owner) {
    return owner != user.id || config_.any_stream == AnyStreamOrder::legacy;
  };
  region::Region* const region = pool_ == nullptr ? nullptr : pool_->allocated_around(ptr);
  if (region == nullptr) {
    driver_pool::Block* const block = driver_pool_ == nullptr ? nullptr : driver_pool_->block_around(ptr);
    if (block == nullptr) return not_live(ptr, {});
    if (block->begin != ptr) return not_live(ptr, {block->begin, block->requested});
    if (is_news(block->timeline)) driver_pool_->record_use(block, user);
  } else if (const AddressRange live = live_around(*region, ptr); live.empty() || live.begin != ptr) {
    return not_live(ptr, live);
  } else if (small::SmallPool::is_arena(*region)) {
    const std::optional<small::Allocation> small = find_live(*region, ptr);
    VPMM_RACE_WINDOW("what is used elsewhere was found");
    if (!small || (is_news(small->timeline) && !small_->record_use(*region, ptr, user))) return not_live(ptr, {});
  } else {
    VPMM_RACE_WINDOW("what is used elsewhere was found");
    if (is_news(region->owner.timeline) && !small_->record_use(*region, user)) return not_live(ptr, {});
  }
  leave(caller);
  return {};
}

// --- putting off ----------------------------------------------------------------------------------------------------

// Note [Cleaning up can be put off]
// A program may have a moment in which no call should take long. While it says so, the pool lets zombies and idle
// memory be, and the host does not wait; what is complete is used again all the same. Running out of memory, or of
// mappings, comes first: the steps of a shortage are always taken. So does what the caller asks for itself (trim,
// synchronize, reset). When the last hold ends, the calls that follow catch up, each a bounded amount.
void DeviceContext::defer_cleanup_begin() {
  const PoolLock lock(mutex_);
  ++cleanup_holds_;
  if (pool_ != nullptr) pool_->hold_cleanup(true);
}

Result<void> DeviceContext::defer_cleanup_end() {
  const PoolLock lock(mutex_);
  if (cleanup_holds_ == 0) return Error{ErrorCode::invalid_argument, "defer_cleanup_end without defer_cleanup_begin"};
  if (--cleanup_holds_ == 0 && pool_ != nullptr) pool_->hold_cleanup(false);
  return {};
}

// --- captures -------------------------------------------------------------------------------------------------------

Result<void> DeviceContext::capture_begin() {
  PoolLock lock(mutex_);
  captures_.announce();
  context_wait_ended_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return context_waits_ == 0; });
  return {};
}

Result<void> DeviceContext::capture_end() {
  const PoolLock lock(mutex_);
  if (captures_.end_announced()) return {};
  return Error{ErrorCode::invalid_argument, "capture_end without capture_begin"};
}

Result<void> DeviceContext::capture_release(driver::CaptureId id) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  const auto capture = static_cast<std::uint64_t>(id);
  if (!captures_.keeps(capture))
    return Error{ErrorCode::invalid_argument, message_of("no memory is kept for capture {}", capture)};
  release_capture(capture);
  return {};
}

void DeviceContext::release_capture(std::uint64_t capture) {
  for (region::Region* region : captures_.release(capture)) {
    if (observer_ != nullptr) observer_->on_deallocate_any_stream(region->range);
    pool_->deallocate(region, time::Stamp(timelines_.next(all_streams(), region->range.size)));
  }
}

}  // namespace vpmm::context
