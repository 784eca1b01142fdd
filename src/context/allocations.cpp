// SPDX-License-Identifier: Apache-2.0
// context: owners of pointers, and frees by owner.
#include "context/allocations.hpp"

#include <new>
#include <string>
#include <string_view>
#include <variant>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"
#include "driver/driver_error.hpp"
#include "guard/description.hpp"

namespace vpmm::context {

using pool::Caller;

namespace {

// Number of requests served while deferred frees wait.
constexpr std::uint64_t kServedBesideDeferred = 64;
constexpr std::uint8_t kFilling = 0xFF;

// VPMM_FILL: only on the one stream that used the memory, as work of others may not be over. The
// free goes on without it.
void fill_freed(Device& device, AddressRange range, const pool::Stamper::Uses& uses,
                const Caller& caller) VPMM_REQUIRES(pool_lock) {
  if (!device.config.checks.fill_freed || !caller.may_queue() || !uses.are_of(caller)) return;
  static_cast<void>(device.primary.noted(driver::checked(
      driver::Call::memset_d8_async,
      device.driver.memset_d8_async(range.begin, kFilling, range.size, *caller.stream))));
}

}  // namespace

// --- live allocations

// Returns nullopt if none is live there.
std::optional<small::Allocation> Allocations::find_live(const region::Region& page,
                                                        DevicePtr ptr) const {
  std::optional<small::Allocation> part = device_.small->ownership().find(page, ptr);
  if (part && shares_.is_kept(part->range.begin)) part.reset();
  return part;
}

std::optional<AllocationInfo> Allocations::live_around(DevicePtr ptr) const {
  using Info = std::optional<AllocationInfo>;
  const Overloaded info{
      [](Foreign) -> Info { return std::nullopt; },
      [&](ArenaMemory memory) VPMM_REQUIRES(pool_lock) -> Info {
        const arena::ArenaBlock* const block = memory.live;
        if (block == nullptr || shares_.is_kept(block->range.begin)) return std::nullopt;
        return AllocationInfo{block->range.begin, block->requested, block->range.size,
                              arenas_.around(ptr)->id};
      },
      [&](CutPage cut) VPMM_REQUIRES(pool_lock) -> Info {
        const std::optional<small::Allocation> part = find_live(*cut.page, ptr);
        if (!part) return std::nullopt;
        return AllocationInfo{part->range.begin, part->requested, part->range.size, {}};
      },
      [&](Pages pages) VPMM_REQUIRES(pool_lock) -> Info {
        const region::Region& region = *pages.region;
        if (small::is_cached(region) || captures_.is_parked(&region) ||
            shares_.is_kept(region.range.begin))
          return std::nullopt;
        return AllocationInfo{region.range.begin,
                              device_.small->ownership().requested_of(region),
                              region.range.size,
                              {}};
      },
      [](DriverBlock of) -> Info {
        return AllocationInfo{of.block->begin, of.block->requested, of.block->requested, {}};
      },
      [](GuardedMemory of) -> Info {
        const AddressRange& range = of.block->range;
        return AllocationInfo{range.begin, range.size, range.size, {}};
      }};
  return std::visit(info, owners_.of(ptr));
}

std::optional<AllocationInfo> Allocations::live_at(DevicePtr ptr) const {
  std::optional<AllocationInfo> live = live_around(ptr);
  if (live && live->begin != ptr) live.reset();
  return live;
}

Result<AllocationInfo> Allocations::query(DevicePtr ptr) const {
  const std::optional<AllocationInfo> live = live_around(ptr);
  return live ? Result<AllocationInfo>(*live) : not_inside(ptr);
}

Error Allocations::mistake(Error error) {
  ++mistakes_;
  return error;
}

Error Allocations::not_live(DevicePtr ptr) {
  const std::optional<AllocationInfo> around = live_around(ptr);
  if (around && around->begin != ptr)
    return mistake({ErrorCode::invalid_pointer,
                    message_of("{:#x} points inside the allocation that starts at {:#x}",
                               to_integer(ptr), to_integer(around->begin))});
  if (device_.guard != nullptr)
    if (const guard::Block* const block = device_.guard->known_around(ptr);
        block != nullptr && block->mapped.contains(ptr))
      return mistake(
          {ErrorCode::invalid_pointer, message_of("{:#x} is not a live allocation: {}",
                                                  to_integer(ptr), guard::describe(*block))});
  return mistake(
      {ErrorCode::invalid_pointer, message_of("{:#x} is not a live allocation of this pool: it was "
                                              "freed already, or comes from elsewhere",
                                              to_integer(ptr))});
}

// Frees wait for the allocating stream anyway. Exception: with VPMM_ANY_STREAM=legacy a free
// without a stream does not, so that stream's use is recorded.
Result<void> Allocations::record_use(DevicePtr ptr, time::Timeline& user) {
  const auto is_news = [&](std::optional<time::TimelineId> owner) {
    return owner != user.id ||
           device_.config.streams.any_stream == settings::AnyStreamOrder::legacy;
  };
  if (!live_at(ptr)) return not_live(ptr);
  // Returns false if a warm free has ended it meanwhile.
  const Overloaded record{[](Foreign) { return false; },
                          [&](ArenaMemory memory) VPMM_REQUIRES(pool_lock) {
                            if (is_news(memory.live->timeline)) arenas_.record_use(ptr, user);
                            return true;
                          },
                          [&](CutPage cut) VPMM_REQUIRES(pool_lock) {
                            const std::optional<small::Allocation> part = find_live(*cut.page, ptr);
                            VPMM_RACE_WINDOW("what is used elsewhere was found");
                            return part &&
                                   (!is_news(part->timeline) ||
                                    device_.small->ownership().record_use(*cut.page, ptr, user));
                          },
                          [&](Pages pages) VPMM_REQUIRES(pool_lock) {
                            VPMM_RACE_WINDOW("what is used elsewhere was found");
                            return !is_news(pages.region->owner.timeline) ||
                                   device_.small->ownership().record_use(*pages.region, user);
                          },
                          [&](DriverBlock of) VPMM_REQUIRES(pool_lock) {
                            if (is_news(of.block->timeline))
                              time::add_use(of.block->other_uses, user);
                            return true;
                          },
                          [&](GuardedMemory of) VPMM_REQUIRES(pool_lock) {
                            if (is_news(of.block->timeline))
                              time::add_use(of.block->other_uses, user);
                            return true;
                          }};
  if (!std::visit(record, owners_.of(ptr))) return not_live(ptr);
  return {};
}

AddressRange Allocations::range_to_tell(DevicePtr begin, Bytes requested) const {
  const AddressRange asked{begin, requested};
  if (!recorder_.wants_ranges()) return asked;
  return std::visit(Overloaded{[&](ArenaMemory) VPMM_REQUIRES(pool_lock) {
                                 return arenas_.range_of(begin).value_or(asked);
                               },
                               [&](CutPage cut) VPMM_REQUIRES(pool_lock) {
                                 // nullopt: a wrong program freed it on another thread.
                                 const std::optional<small::Allocation> part =
                                     device_.small->ownership().find(*cut.page, begin);
                                 return part ? part->range : asked;
                               },
                               [](Pages pages) { return pages.region->range; },
                               [&](const auto&) { return asked; }},
                    owners_.of(begin));
}

// Frees of other memory take the lock: the pagemap has no whole pages (Router) and no memory of the
// driver.
void Allocations::free_through_lock(DevicePtr begin) {
  const OwnedBy owner = owners_.of(begin);
  if (const CutPage* const cut = std::get_if<CutPage>(&owner))
    device_.small->ownership().free_through_lock(*cut->page, begin);
}

Result<void> Allocations::fill(DevicePtr ptr, const Caller& caller) {
  if (!caller.may_queue() || !arenas_.is_resident(ptr)) return {};
  const std::optional<AllocationInfo> live = live_at(ptr);
  if (!live) return {};
  return driver::checked(
      driver::Call::memset_d8_async,
      device_.driver.memset_d8_async(ptr, kFilling, live->requested, *caller.stream));
}

// --- a free

Result<void> Allocations::free(MutexLock& lock, const OwnedBy& owner, DevicePtr ptr,
                               const pool::Stream& stream, const Caller& caller) {
  if (const DriverBlock* const of = std::get_if<DriverBlock>(&owner))
    return of->block->begin == ptr ? free_block(lock, of->block, stream, caller) : not_live(ptr);
  if (std::holds_alternative<Foreign>(owner) || shares_.is_kept(ptr)) return not_live(ptr);
  const report::Recorder::Told told = what_to_tell(report::EventKind::free, ptr);
  report::CallLog::Claim place = recorder_.claim_free();
  const bool is_kept = shares_.keep(ptr);
  VPMM_RACE_WINDOW("a free holds the pool's lock, nothing has ended");
  if (!is_kept && !end(owner, ptr, stream, caller)) return not_live(ptr);
  recorder_.record_free(std::move(place), ptr, caller);
  recorder_.freed(ptr, told, caller);
  if (is_kept) return {};
  arenas_.ended(ptr);
  host_copies_.drop_block(ptr);
  host_copies_.drop_unless([this](pool::ArenaId id)
                               VPMM_REQUIRES(pool_lock) { return arenas_.find(id) != nullptr; });
  return {};
}

void Allocations::free_kept(DevicePtr begin) {
  end(owners_.of(begin), begin, std::nullopt, Caller{});
  arenas_.ended(begin);
  host_copies_.drop_block(begin);
}

// Reads the allocation only if a listener asks for this kind.
report::Recorder::Told Allocations::what_to_tell(report::EventKind kind, DevicePtr begin) const {
  const std::optional<AllocationInfo> live =
      recorder_.wants(kind) ? live_around(begin) : std::nullopt;
  return live ? report::Recorder::Told{live->requested, live->arena} : report::Recorder::Told{};
}

// Note [One call ends an allocation]
bool Allocations::end(const OwnedBy& owner, DevicePtr begin, const pool::Stream& stream,
                      const Caller& caller) {
  return std::visit(
      Overloaded{
          [&](ArenaMemory) VPMM_REQUIRES(pool_lock) { return arenas_.end(begin, stream, caller); },
          [&](CutPage cut)
              VPMM_REQUIRES(pool_lock) { return end_part(*cut.page, begin, stream, caller); },
          [&](Pages pages)
              VPMM_REQUIRES(pool_lock) { return end_pages(*pages.region, begin, stream, caller); },
          [&](GuardedMemory of)
              VPMM_REQUIRES(pool_lock) { return end_guarded(*of.block, begin, stream, caller); },
          [](const auto&) { return false; }},
      owner);
}

bool Allocations::end_part(region::Region& page, DevicePtr begin, const pool::Stream& stream,
                           const Caller& caller) {
  const std::optional<small::Allocation> ended = device_.small->ownership().end(page, begin);
  if (!ended) return false;
  const pool::Stamper::Uses uses{ended->timeline, device_.small->ownership().other_uses(*ended),
                                 ended->range.size};
  fill_freed(device_, ended->range, uses, caller);
  observe_end(ended->range, uses, stream, caller);
  device_.small->deallocate(*ended, device_.stamper.stamp_of(uses, caller));
  return true;
}

bool Allocations::end_pages(region::Region& region, DevicePtr begin, const pool::Stream& stream,
                            const Caller& caller) {
  if (region.range.begin != begin || captures_.is_parked(&region) ||
      !device_.small->ownership().end(region))
    return false;
  if (captures_.keeps(region.owner.capture)) {
    const bool is_inside = caller.capture == region.owner.capture;
    captures_.park(region.owner.capture, &region, is_inside ? caller.stream : std::nullopt);
    return true;
  }
  const pool::Stamper::Uses uses{region.owner.timeline, region.owner.other_uses, region.range.size};
  fill_freed(device_, region.range, uses, caller);
  observe_end(region.range, uses, stream, caller);
  device_.pool->deallocate(&region, device_.stamper.stamp_of(uses, caller));
  return true;
}

bool Allocations::end_guarded(guard::Block& block, DevicePtr begin, const pool::Stream& stream,
                              const Caller& caller) {
  if (block.range.begin != begin) return false;
  const pool::Stamper::Uses uses{block.timeline, block.other_uses, block.range.size};
  fill_freed(device_, block.range, uses, caller);
  observe_end(block.range, uses, stream, caller);
  device_.guard->free(block, device_.stamper.stamp_of(uses, caller), caller);
  return true;
}

// The driver orders a free on the only stream that used the memory; other frees wait here until
// their stamp is complete.
Result<void> Allocations::free_block(MutexLock& lock, driver_pool::PoolBlock* block,
                                     const pool::Stream& stream, const Caller& caller) {
  const DevicePtr ptr = block->begin;
  const AddressRange range{ptr, block->requested};
  // Before the driver call, as a claimed place holds up the recording.
  recorder_.record_free(recorder_.claim_free(), ptr, caller);
  const report::Labels labels = recorder_.freed(ptr, {range.size}, caller);
  const pool::Stamper::Uses uses{block->timeline, block->other_uses, block->requested};
  fill_freed(device_, range, uses, caller);
  observe_end(range, uses, stream, caller);
  if (!caller.may_queue() || !uses.are_of(caller))
    return device_.driver_pool->deallocate_after(lock, block,
                                                 device_.stamper.stamp_of(uses, caller));
  Result<void> freed = device_.driver_pool->deallocate_on(lock, block, *caller.stream);
  if (!freed)  // the allocation is still live
    recorder_.free_failed(range, uses.owner ? caller.stream : std::nullopt, labels, caller);
  return freed;
}

// The pool, not the named stream, waits for other users: to an observer any of them may be the
// last.
void Allocations::observe_end(AddressRange range, const pool::Stamper::Uses& uses,
                              const pool::Stream& stream, const Caller& caller) const {
  recorder_.observe_end(range, stream && uses.are_of(caller) ? stream : std::nullopt);
}

void Allocations::release_capture(std::uint64_t capture) {
  for (region::Region* region : captures_.release(capture)) {
    recorder_.observe_end(region->range, std::nullopt);
    device_.pool->deallocate(region, device_.stamper.stamp_of_all(region->range.size));
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
  // Failures have no caller: counts mistakes, notes a broken context, and goes on with the other
  // frees.
  deferred_.take_all([&](std::uint64_t address) VPMM_REQUIRES(pool_lock) {
    const HostPromise promise;  // one for each free: their number is unbounded
    if (!promise.is_kept()) throw std::bad_alloc();
    static_cast<void>(
        device_.primary.noted(free(lock, DevicePtr{address}, std::nullopt, Caller{})));
  });
  prover_.prove_if_due();
  return true;
}

}  // namespace vpmm::context
