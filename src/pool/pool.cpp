// SPDX-License-Identifier: Apache-2.0
// pool: path of a request, from a fit to a plan that maps, and path of a free.
#include "pool/pool.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"
#include "pool/address_space.hpp"
#include "pool/grow_delay.hpp"
#include "pool/strategies.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

// Mappings unmapped per call for all streams, so that no call stalls. Halved: zombies keep their
// mappings longer; doubled: a call takes longer.
constexpr std::uint64_t kMappingsSweptPerCall = 16;

}  // namespace

Pool::Pool(driver::Driver& driver, const driver::ChunkProperties& properties,
           const settings::Config& config, Bytes page_size, time::Timelines& timelines)
    : memory_(driver, properties, config, page_size, timelines), room_(config.limits.capacity) {}

// --- the way of a request

std::optional<Placed> Pool::find(const PageRequest& request, const Caller& caller) {
  const Decision decision = fit(memory_.view(), planner_.ask_of(request, caller));
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return std::nullopt;
  return take(*plan, request, caller);
}

Result<std::optional<Placed>> Pool::find_waiting(const PageRequest& request, const Caller& caller,
                                                 Effort effort) {
  if (!planner_.takes_waiting(caller, effort)) return std::optional<Placed>();
  Ask ask = planner_.ask_of(request, caller);
  ask.takes_waiting = true;
  const Decision decision = fit(memory_.view(), ask);
  const Plan* const plan = std::get_if<Plan>(&decision);
  if (plan == nullptr) return std::optional<Placed>();
  VPMM_TRY(queue_waits(*plan, caller));
  return std::optional<Placed>(take(*plan, request, caller));
}

Result<Answer> Pool::map(MutexLock& lock, const PageRequest& request, const Caller& caller,
                         Effort effort, std::uint64_t began_ns) {
  for (;;) {
    VPMM_TRY_ASSIGN(Decision decision, decide_in_room(lock, request, caller, effort));
    const NoPlan* const none = std::get_if<NoPlan>(&decision);
    if (none != nullptr) return Answer(Needs{Needs::What::memory, none->missing, 0});
    const Plan& plan = std::get<Plan>(decision);
    if (effort == Effort::by_policy && !is_cleanup_held_) {
      // For a request of one chunk, the caller's own pending memory is on its way, too.
      const Caller user = request.chunks == Chunks::one ? Caller{} : caller;
      const std::uint64_t until_ns = planner_.delay_until(plan, user, began_ns);
      if (memory_.driver.now_ns() < until_ns) return Answer(Needs{Needs::What::time, 0, until_ns});
    }
    const bool has_room =
        memory_.held_mappings() + plan.pieces() <= memory_.config.limits.max_mappings;
    if (has_room || effort == Effort::few_mappings) {
      VPMM_TRY_ASSIGN(const Placed placed, carry_out(lock, plan, request, caller));
      return Answer(placed);
    }
    VPMM_TRY(reclaimer_.sweep(lock, memory_.chunks.mapping_count()));
    effort = Effort::few_mappings;
  }
}

Result<Decision> Pool::decide_in_room(MutexLock& lock, const PageRequest& request,
                                      const Caller& caller, Effort effort) {
  std::optional<Bytes> gpu_room;  // set once less is free than wanted
  for (;;) {
    memory_.flights.wait_for_grant(lock);
    if (room_.is_old(memory_.driver.now_ns())) VPMM_TRY(ask_for_room(lock, 0));
    Ask ask = planner_.ask_of(request, caller);
    if (gpu_room) ask.growth_room = std::min(ask.growth_room, *gpu_room);
    Decision decision = planner_.decide(ask, caller, effort);
    if (const NoPlan* const none = std::get_if<NoPlan>(&decision)) {
      if (none->reason == NoPlan::Reason::memory) return decision;
      VPMM_TRY(
          add_reservation(memory_, lock, none->missing + ask.alignment - memory_.page_alignment()));
      continue;
    }
    const Bytes growth = std::get<Plan>(decision).growth();
    if (growth == 0 || room_.covers(memory_.claimed_bytes(), growth)) return decision;
    VPMM_TRY(ask_for_room(lock, growth));
    if (!room_.covers(memory_.claimed_bytes(), growth))
      gpu_room = round_down(room_.free(memory_.claimed_bytes()), memory_.page_size());
  }
}

Result<void> Pool::ask_for_room(MutexLock& lock, Bytes bytes) {
  const auto learn = [&](Bytes free) VPMM_REQUIRES(pool_lock) {
    room_.learn(memory_.claimed_bytes(), free, bytes, memory_.driver.now_ns());
  };
  driver::MemInfo info;
  const Result<void> asked =
      driver::checked(driver::Call::mem_get_info, memory_.driver.mem_get_info(info));
  if (!asked && asked.error().code == ErrorCode::poisoned) return asked.error();
  // Memory of flights may be created already or not, so it is not counted as free.
  const Bytes free = info.free - std::min(info.free, memory_.flights.coming_bytes());
  learn(asked ? free : bytes);  // without an answer, the plan will show
  if (!asked || bytes <= free) return {};
  VPMM_TRY_ASSIGN(const bool is_given, mover_.try_out(lock, bytes));
  if (is_given) learn(bytes);
  return {};
}

Placed Pool::take(const Plan& plan, const PageRequest& request, const Caller& caller) {
  return placed(mover_.take_hit(plan, owner_of(request, caller)), plan, request);
}

Result<Placed> Pool::carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request,
                               const Caller& caller) {
  // Queues waits first: from then on the memory is ordered for the caller, also after a failure.
  VPMM_TRY(queue_waits(plan, caller));
  prove_moves(plan, caller);
  Result<Region*> moved = mover_.carry_out(lock, plan, owner_of(request, caller));
  if (moved) return placed(moved.value(), plan, request);
  room_.doubt();
  return std::move(moved.error());
}

Placed Pool::placed(Region* region, const Plan& plan, const PageRequest& request) {
  region->has_own_chunks = planner_.has_own_chunks(request);
  time::count_references(memory_.timelines, region->owner.timeline, region->owner.other_uses, +1);
  planner_.note_placed(region->owner.timeline);
  ++(plan.is_hit() ? memory_.counters.hits : memory_.counters.plans);
  ++memory_.counters.allocations;
  memory_.note_peaks();
  return {region->range.begin, plan.is_complete()};
}

Result<void> Pool::queue_waits(const Plan& plan, const Caller& caller) {
  for (const time::StampPart& part : plan.waits) {
    VPMM_CHECK(caller.may_queue(), "a wait for a caller that may not wait");
    VPMM_TRY(memory_.timelines.queue_wait(*caller.stream, part));
    ++memory_.counters.gpu_waits;
  }
  return {};
}

// Moves turn old mappings into zombies; one on the caller's own timeline needs an event before its
// unmap is possible. What a caller without one moves is complete.
void Pool::prove_moves(const Plan& plan, const Caller& caller) {
  const bool is_unproven = std::any_of(plan.moves.begin(), plan.moves.end(), [&](const Move& move) {
    const auto parts = move.part.stamp.parts();
    return std::any_of(parts.begin(), parts.end(), [&](const time::StampPart& part) {
      return part.timeline == caller.timeline->id &&
             part.sequence > caller.timeline->numbers.provable;
    });
  });
  if (is_unproven && !memory_.timelines.close(*caller.timeline, *caller.stream))
    caller.timeline->wanted = true;
}

// --- when memory is short

Result<bool> Pool::sweep_all(MutexLock& lock) {
  const Bytes held = memory_.mapped_bytes();
  const std::uint64_t mappings = memory_.chunks.mapping_count();
  VPMM_TRY(reclaimer_.sweep(lock, mappings));
  return memory_.mapped_bytes() != held || memory_.chunks.mapping_count() != mappings;
}

// Note [Chunks are made anew]
// At the limit of mappings, the pool's or the driver's, idle chunks cannot move. Given back, they
// make room for one chunk with one mapping; only if they suffice, or they would be lost in vain.
Result<bool> Pool::make_room(MutexLock& lock, const PageRequest& request) {
  // A chunk that a zombie maps cannot be given back.
  VPMM_TRY(reclaimer_.sweep(lock, memory_.chunks.mapping_count()));
  Bytes room = room_.below_capacity(memory_.claimed_bytes());
  if (driver::MemInfo info; memory_.driver.mem_get_info(info) == driver::CuResult::success)
    room = std::min(room, info.free);
  const Bytes wanted = round_up(request.size, memory_.page_size());
  room = round_down(room, memory_.page_size());  // no page is in what is left of it
  if (room >= wanted) return false;
  const Bytes missing =
      wanted - room + round_up(room_.above_capacity(memory_.claimed_bytes()), memory_.page_size());
  if (reclaimer_.releasable_bytes(missing) < missing) return false;
  VPMM_TRY_ASSIGN(const Bytes released, trim(lock, memory_.held_bytes() - missing));
  return released >= missing;
}

Result<bool> Pool::give_way(MutexLock& lock, const PageRequest& request, const Caller& caller) {
  if (is_cleanup_held_) return false;
  const Ask ask = planner_.ask_of(request, caller);
  const Decision decision = planner_.decide(ask, caller, Effort::by_policy);
  const Plan* const plan = std::get_if<Plan>(&decision);
  const Bytes growth = plan == nullptr ? request.size : plan->growth();
  const Bytes idle = reclaimer_.releasable_bytes(growth - std::min(ask.early_growth, growth));
  if (idle == 0) return false;
  VPMM_TRY_ASSIGN(const Bytes released,
                  trim(lock, memory_.held_bytes() - std::min(idle, memory_.held_bytes())));
  return released > 0;
}

// --- the way of a free

void Pool::deallocate(Region* region, const time::Stamp& stamp) {
  time::count_references(memory_.timelines, region->owner.timeline, region->owner.other_uses, -1);
  memory_.chunks.end_use(region->range);
  memory_.index.release(region, memory_.timelines.reduce(stamp));
  ++returned_;
  ++memory_.counters.deallocations;
}

void Pool::disown(Region* region) {
  time::count_references(memory_.timelines, region->owner.timeline, region->owner.other_uses, -1);
  region->owner.timeline.reset();
}

Region* Pool::divide(Region* region, DevicePtr at) {
  const AddressRange whole = region->range;
  Region* const behind = memory_.index.split_allocated(region, at);
  behind->has_own_chunks = region->has_own_chunks;
  time::count_references(memory_.timelines, behind->owner.timeline, behind->owner.other_uses, +1);
  memory_.chunks.end_use(whole);
  memory_.chunks.begin_use(region->range);
  memory_.chunks.begin_use(behind->range);
  ++memory_.counters.allocations;
  return behind;
}

Bytes Pool::front_for(const Region& region, const PageRequest& request) const {
  const DevicePtr begin = region.range.begin;
  if (region.range.size < request.size || !is_aligned(begin, request.alignment)) return 0;
  if (!planner_.has_own_chunks(request)) return request.size;
  const Bytes whole = memory_.chunks.first_border(begin + request.size) - begin;
  return whole <= request.size + request.size / kExcessShare ? whole : 0;
}

Region* Pool::pass_on(Region* region, const PageRequest& request, const Caller& caller) {
  region->has_own_chunks = planner_.has_own_chunks(request);
  const DevicePtr end = region->range.begin + front_for(*region, request);
  const bool has_rest = end != region->range.end();
  Region* const rest = has_rest ? divide(region, end) : nullptr;
  time::count_references(memory_.timelines, region->owner.timeline, region->owner.other_uses, -1);
  region::Owner owner = owner_of(request, caller);
  time::count_references(memory_.timelines, owner.timeline, owner.other_uses, +1);
  memory_.index.hand_over(region, std::move(owner));
  memory_.counters.deallocations += has_rest ? 0 : 1;
  memory_.counters.allocations += has_rest ? 0 : 1;  // divide() counted it
  ++memory_.counters.hits;
  return rest;
}

Region* Pool::unite(Region* front) {
  Region* const back = front->next;
  time::count_references(memory_.timelines, back->owner.timeline, back->owner.other_uses, -1);
  memory_.chunks.end_use(front->range);
  memory_.chunks.end_use(back->range);
  Region* const whole = memory_.index.join(front, back);
  memory_.chunks.begin_use(whole->range);
  ++memory_.counters.deallocations;
  return whole;
}

// --- completion

void Pool::advance(const Vector<time::StampPart>& done) {
  for (const time::StampPart& part : done) memory_.index.advance(part.timeline, part.sequence);
  returned_ += done.size();
}

Result<void> Pool::settle(MutexLock& lock) {
  if (is_cleanup_held_) return {};
  return reclaimer_.sweep(lock, kMappingsSweptPerCall);
}

Result<Bytes> Pool::trim(MutexLock& lock, Bytes bytes_to_keep) {
  memory_.timelines.for_each([](time::Timeline& timeline) {
    if (!timeline.numbers.are_provable()) timeline.wanted = true;
  });
  return reclaimer_.trim(lock, bytes_to_keep);
}

// --- before anybody asks

// Note [A pool tries its calls out]
// A process's first creation, mapping and access take the driver half as long again as later ones,
// and programs time their first allocation more often than the making of their pool. So one page
// comes and goes. Only call counts show it, unless its release fails. A failure of the try is not
// reported, as the first allocation repeats it; except for a broken context.
Result<void> Pool::prepare(MutexLock& lock) {
  VPMM_TRY(add_reservation(memory_, lock,
                           std::max<Bytes>(1, memory_.config.pages) * memory_.page_size()));
  VPMM_TRY(ask_for_room(lock, memory_.page_size()));
  const observe::Statistics counted = memory_.counters;
  Result<void> tried = preallocate(lock, memory_.page_size());
  if (Result<Bytes> given_back = trim(lock, 0); !given_back) tried = std::move(given_back.error());
  if (memory_.chunks.chunk_count() == 0) {
    memory_.counters = counted;
    reset_peaks();
  }
  if (!tried && tried.error().code == ErrorCode::poisoned) return tried;
  return {};
}

Result<void> Pool::preallocate(MutexLock& lock, Bytes bytes) {
  const Bytes wanted = round_up(bytes, memory_.page_size());
  if (wanted <= memory_.mapped_bytes()) return {};
  const Bytes missing = wanted - memory_.mapped_bytes();
  const auto too_much = [&](const std::string& why) VPMM_REQUIRES(pool_lock) {
    return Error{ErrorCode::out_of_memory,
                 message_of("out of device memory: asked to map {} in all, {} are mapped; {}",
                            readable_bytes(bytes), readable_bytes(memory_.mapped_bytes()), why)};
  };
  if (missing > room_.below_capacity(memory_.claimed_bytes()))
    return too_much(message_of("the limit is {}", readable_bytes(*room_.capacity())));
  if (!room_.covers(memory_.claimed_bytes(), missing)) VPMM_TRY(ask_for_room(lock, missing));
  if (!room_.covers(memory_.claimed_bytes(), missing)) return too_much("the GPU has less free");
  const Bytes held = memory_.claimed_bytes();
  const Bytes chunk = memory_.tuning.chunk_size(missing, held, room_.all(held));
  Region* hole = memory_.index.smallest_hole(missing, memory_.page_alignment());
  while (hole == nullptr) {
    VPMM_TRY(add_reservation(memory_, lock, missing));
    hole = memory_.index.smallest_hole(missing, memory_.page_alignment());
  }
  Result<void> filled = mover_.fill(lock, hole, {hole->range.begin, missing},
                                    *memory_.tuning.chunks_for(missing, chunk, missing));
  if (!filled) room_.doubt();
  if (!filled) return filled;
  planner_.note_peak(missing);  // the program announces as much use
  memory_.note_peaks();
  return {};
}

// --- references and figures

region::Owner Pool::owner_of(const PageRequest& request, const Caller& caller) const {
  region::Owner owner;
  owner.requested = request.requested;
  if (caller.timeline != nullptr) owner.timeline = caller.timeline->id;
  owner.capture = caller.capture;
  return owner;
}

void Pool::reset_peaks() {
  planner_.reset_peak();
  memory_.reset_peaks();
}

}  // namespace vpmm::pool
