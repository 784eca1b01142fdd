// context: from a pointer to whose it is, and on to whoever takes it back.
#include "context/allocations.hpp"

#include <new>
#include <string>
#include <string_view>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"

namespace vpmm::context {

using pool::Caller;

namespace {

// Requests that may be served while deferred frees wait for somebody to carry them out.
constexpr std::uint64_t kServedBesideDeferred = 64;

}  // namespace

// --- what is live

// Whether it is a user's: not kept by a cache, not parked for a graph, not kept for other processes
// alone.
bool Allocations::is_live(const region::Region& region) const {
  return !small::is_cached(region) && !captures_.is_parked(&region) &&
         !shares_.is_kept(region.range.begin);
}

// The live small allocation around `ptr` that is a user's.
std::optional<small::Allocation> Allocations::find_live(const region::Region& page,
                                                        DevicePtr ptr) const {
  std::optional<small::Allocation> small = device_.small->ownership().find(page, ptr);
  if (small && shares_.is_kept(small->range.begin)) small.reset();
  return small;
}

const arena::Block* Allocations::block_in_arena(DevicePtr ptr) const {
  const arena::Block* const block = arenas_.live_around(ptr);
  return block != nullptr && !shares_.is_kept(block->range.begin) ? block : nullptr;
}

// The live allocation in it around `ptr`; empty: nothing live is there.
AddressRange Allocations::live_around(const region::Region* region, DevicePtr ptr) const {
  if (arenas_.has(ptr)) {
    const arena::Block* const block = block_in_arena(ptr);
    return block != nullptr ? block->range : AddressRange{};
  }
  if (!small::is_cut(*region)) return is_live(*region) ? region->range : AddressRange{};
  const std::optional<small::Allocation> small = find_live(*region, ptr);
  return small ? small->range : AddressRange{};
}

Result<AllocationInfo> Allocations::query(DevicePtr ptr) const {
  const region::Region* const region = device_.allocated_around(ptr);
  if (arenas_.has(ptr)) {
    if (const arena::Block* const block = block_in_arena(ptr))
      return AllocationInfo{block->range.begin, block->requested, block->range.size,
                            arenas_.arena_of(ptr)};
  } else if (region != nullptr && small::is_cut(*region)) {
    if (const auto small = find_live(*region, ptr))
      return AllocationInfo{small->range.begin, small->requested, small->range.size, ArenaId{}};
  } else if (region != nullptr && is_live(*region)) {
    return AllocationInfo{region->range.begin, device_.small->ownership().requested_of(*region),
                          region->range.size, ArenaId{}};
  }
  if (const driver_pool::Block* const block = device_.block_around(ptr))
    return AllocationInfo{block->begin, block->requested, block->requested, ArenaId{}};
  return not_inside(ptr);
}

Error Allocations::mistake(Error error) {
  ++mistakes_;
  return error;
}

Error Allocations::not_live(DevicePtr ptr, AddressRange around) {
  if (!around.empty() && around.begin != ptr)
    return mistake({ErrorCode::invalid_pointer,
                    message_of("{:#x} points inside the allocation that starts at {:#x}",
                               to_integer(ptr), to_integer(around.begin))});
  return mistake(
      {ErrorCode::invalid_pointer, message_of("{:#x} is not a live allocation of this pool: it was "
                                              "freed already, or comes from elsewhere",
                                              to_integer(ptr))});
}

// Every free waits for the stream of the allocation anyway, but for one without a stream where
// VPMM_ANY_STREAM leaves out streams that nobody named: there it counts that this one was.
Result<void> Allocations::record_use(DevicePtr ptr, time::Timeline& user) {
  const auto is_news = [&](std::optional<time::TimelineId> owner) {
    return owner != user.id || device_.config.any_stream == AnyStreamOrder::legacy;
  };
  region::Region* const region = device_.allocated_around(ptr);
  if (region == nullptr && !arenas_.has(ptr)) {
    driver_pool::Block* const block = device_.block_around(ptr);
    if (block == nullptr) return not_live(ptr, {});
    if (block->begin != ptr) return not_live(ptr, {block->begin, block->requested});
    if (is_news(block->timeline)) device_.driver_pool->record_use(block, user);
  } else if (const AddressRange live = live_around(region, ptr);
             live.empty() || live.begin != ptr) {
    return not_live(ptr, live);
  } else if (const arena::Block* const block = arenas_.live_around(ptr)) {
    if (is_news(block->timeline)) arenas_.record_use(ptr, user);
  } else if (small::is_cut(*region)) {
    const std::optional<small::Allocation> small = find_live(*region, ptr);
    VPMM_RACE_WINDOW("what is used elsewhere was found");
    if (!small ||
        (is_news(small->timeline) && !device_.small->ownership().record_use(*region, ptr, user)))
      return not_live(ptr, {});
  } else {
    VPMM_RACE_WINDOW("what is used elsewhere was found");
    if (is_news(region->owner.timeline) && !device_.small->ownership().record_use(*region, user))
      return not_live(ptr, {});
  }
  return {};
}

// Whole pages are not in the pagemap (Router), and what is the driver's own never is.
void Allocations::free_through_lock(DevicePtr begin) {
  const region::Region* const region = device_.allocated_around(begin);
  if (region != nullptr && small::is_cut(*region))
    device_.small->ownership().free_through_lock(*region, begin);
}

// --- a free

Result<void> Allocations::free(MutexLock& lock, DevicePtr ptr, const Stream& stream,
                               const Caller& caller) {
  region::Region* const region = device_.allocated_around(ptr);
  if (region == nullptr && !arenas_.has(ptr)) return free_block(lock, ptr, stream, caller);
  if (shares_.is_kept(ptr)) return not_live(ptr, {});
  const Recorder::Told told = what_to_tell(EventKind::free, ptr);
  CallLog::Place place = recorder_.claim_free();
  const bool is_kept = shares_.keep(ptr);
  VPMM_RACE_WINDOW("a free holds the pool's lock, nothing has ended");
  if (!is_kept && !end(ptr, stream, caller)) return not_live(ptr, live_around(region, ptr));
  recorder_.record_free(std::move(place), ptr, caller);
  recorder_.freed(ptr, told, caller);
  if (!is_kept) arenas_.ended(ptr);
  return {};
}

void Allocations::free_kept(DevicePtr begin) {
  end(begin, std::nullopt, Caller{});
  arenas_.ended(begin);
}

// Where somebody wants to know.
Recorder::Told Allocations::what_to_tell(EventKind kind, DevicePtr begin) const {
  if (!recorder_.wants(kind)) return {};
  const Result<AllocationInfo> around = query(begin);
  return around ? Recorder::Told{around.value().requested, around.value().arena} : Recorder::Told{};
}

// Note [Who ends an allocation may free it]
bool Allocations::end(DevicePtr begin, const Stream& stream, const Caller& caller) {
  if (arenas_.has(begin)) return arenas_.end(begin, stream, caller);
  region::Region* const region = device_.allocated_around(begin);
  if (!small::is_cut(*region)) {
    if (region->range.begin != begin || captures_.is_parked(region) ||
        !device_.small->ownership().end(*region))
      return false;
    free_pages(region, stream, caller);
    return true;
  }
  const std::optional<small::Allocation> ended = device_.small->ownership().end(*region, begin);
  if (!ended) return false;
  const Prover::Uses uses{ended->timeline, device_.small->ownership().other_uses(*ended),
                          ended->range.size};
  observe_end(ended->range, uses, stream, caller);
  device_.small->deallocate(*ended, prover_.stamp_of(uses, caller));
  return true;
}

void Allocations::free_pages(region::Region* region, const Stream& stream, const Caller& caller) {
  if (captures_.keeps(region->owner.capture)) {
    const bool is_inside = caller.capture == region->owner.capture;
    captures_.park(region->owner.capture, region, is_inside ? caller.stream : std::nullopt);
    return;
  }
  const Prover::Uses uses{region->owner.timeline, region->owner.other_uses, region->range.size};
  observe_end(region->range, uses, stream, caller);
  device_.pool->deallocate(region, prover_.stamp_of(uses, caller));
}

// A free on the one stream that used the memory is the driver's to order; everything else waits
// here until its stamp is complete.
Result<void> Allocations::free_block(MutexLock& lock, DevicePtr ptr, const Stream& stream,
                                     const Caller& caller) {
  driver_pool::Block* const block = device_.block_around(ptr);
  if (block == nullptr) return not_live(ptr, {});
  const AddressRange range{block->begin, block->requested};
  if (block->begin != ptr) return not_live(ptr, range);
  // Before the driver is called, for a place that is claimed holds up the recording.
  recorder_.record_free(recorder_.claim_free(), ptr, caller);
  const std::uint32_t tag = recorder_.freed(ptr, {range.size}, caller);
  const Prover::Uses uses{block->timeline, block->other_uses, block->requested};
  observe_end(range, uses, stream, caller);
  if (!caller.may_queue() || !uses.are_of(caller))
    return device_.driver_pool->deallocate_after(lock, block, prover_.stamp_of(uses, caller));
  Result<void> freed = device_.driver_pool->deallocate_on(lock, block, *caller.stream);
  if (!freed) recorder_.free_failed(range, tag, caller);  // it is the caller's still
  return freed;
}

// The named stream need not wait for others that used the memory: the pool does, so to an observer
// any of them may be the last.
void Allocations::observe_end(AddressRange range, const Prover::Uses& uses, const Stream& stream,
                              const Caller& caller) const {
  recorder_.observe_end(range, stream && uses.are_of(caller) ? stream : std::nullopt);
}

void Allocations::release_capture(std::uint64_t capture) {
  for (region::Region* region : captures_.release(capture)) {
    recorder_.observe_end(region->range, std::nullopt);
    device_.pool->deallocate(region, prover_.stamp_of_all(region->range.size));
  }
}

// --- deferred

bool Allocations::may_pass_deferred() {
  return !has_deferred() ||
         served_beside_deferred_.fetch_add(1, std::memory_order_relaxed) < kServedBesideDeferred;
}

bool Allocations::drain(MutexLock& lock) {
  captures_.take_ended([this](std::uint64_t capture)
                           VPMM_REQUIRES(pool_lock) { release_capture(capture); });
  if (!has_deferred()) return false;
  served_beside_deferred_.store(0, std::memory_order_relaxed);
  // Nobody is here to be told: a mistake is counted, a broken context noted, and the other frees
  // are carried out.
  deferred_.take_all([&](std::uint64_t address) VPMM_REQUIRES(pool_lock) {
    const HostPromise promise;  // of its own: there may be any number of them
    if (!promise.is_kept()) throw std::bad_alloc();
    static_cast<void>(
        device_.primary.noted(free(lock, DevicePtr{address}, std::nullopt, Caller{})));
  });
  prover_.prove_if_due();
  return true;
}

}  // namespace vpmm::context
