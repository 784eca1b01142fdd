// pool: phase 2: a plan is made under the lock, worked off without it, and published or undone under it.
#include <algorithm>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"
#include "pool/in_flight.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

// What bookkeeping may take for a piece of a plan: its chunk, mapping and regions, and its places in a few lists.
constexpr std::size_t kHostBytesPerPiece = 1024;

// Half-way through a change, so it must not throw.
void log_plan(observe::LogLevel level, const Plan& plan, Bytes page_size, std::string_view what) noexcept {
  if (!observe::logs(level)) return;
  try {
    observe::log(level, "{}: {}", what, to_string(plan, page_size));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a message
  }
}

}  // namespace

// Note [Detach, work, publish]
// Under the lock, everything a plan touches is taken out of the index (in flight). The driver calls then run without
// the lock, and the result is put back under it. Nobody else can see, take or unmap what is in flight, and a failure
// puts everything back as it was.
struct Pool::Flight {
  struct Piece {
    vm::Placement placement;
    vm::Chunk* chunk = nullptr;  // null: to be created
    bool is_stuck = false;       // after a failure: mapped, and even the undo could not unmap it
    bool is_held = false;        // after a failure: created, and the undo could not release it
  };
  const Plan* plan = nullptr;
  Region* kept = nullptr;
  Region* mapped = nullptr;  // part of a hole, to be filled
  Vector<Region*> sources;   // one per move
  Region* first = nullptr;   // the two ends of chunks, where they were
  Region* last = nullptr;
  Vector<Piece> pieces;              // in the order of the plan; they tile plan->mapped
  Vector<vm::Placement> placements;  // of the pieces, with room for all: no memory is asked for in the air
  std::uint64_t access_version = 0;
  std::uint64_t undone_chunks = 0;  // after a failure: were created
  Bytes undone_bytes = 0;
};

Need Pool::need_of(const PageRequest& request, const Caller& caller) const {
  Need need;
  need.size = request.size;
  need.alignment = request.alignment;
  need.own = caller.own();
  need.may_wait = caller.may_queue();
  need.mapped = chunks_.chunk_bytes();
  need.peak_used = std::max(peak_used_, wanted_bytes() + request.size);
  need.peak_asked = peak_asked();
  need.growth_room = growth_room();
  return need;
}

Result<Plan> Pool::make_plan(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort) {
  std::optional<Bytes> gpu_room;  // once it is known to be less than was wanted
  for (;;) {
    Need need = need_of(request, caller);
    if (gpu_room) need.growth_room = std::min(need.growth_room, *gpu_room);
    std::variant<Plan, NoPlan> planned = planner_.plan(need, effort);
    if (Plan* plan = std::get_if<Plan>(&planned)) {
      const Bytes created = plan->created_bytes();
      if (created <= unasked_growth_) return std::move(*plan);
      VPMM_TRY(ask_for_room(lock, created));
      if (created > unasked_growth_) gpu_room = driver_free_;
      continue;
    }
    const NoPlan& failure = std::get<NoPlan>(planned);
    if (failure.reason == NoPlan::Reason::memory)
      return Error{ErrorCode::out_of_memory,
                   message_of("{} bytes are missing{}", failure.missing, gpu_room ? " on the GPU" : "")};
    VPMM_TRY(add_reservation(lock, failure.missing + request.alignment - page_alignment()));
  }
}

// Note [The driver is asked before it is filled]
// A plan that is too large for the GPU would create all that is free before the driver refuses, and take it from others
// meanwhile. So nothing is created beyond what the driver says is free. It is asked again when half of that is used up
// or a plan has failed: a few times while a pool grows, and often only where little is left. What its stream-ordered
// pools hold unused it does not call free, but gives to a call that needs it: hence the try in one piece.
Result<void> Pool::ask_for_room(MutexLock& lock, Bytes bytes) {
  driver::MemInfo info;
  const Result<void> asked = driver::checked(driver::Call::mem_get_info, driver_.mem_get_info(info));
  if (!asked && asked.error().code == ErrorCode::poisoned) return asked.error();
  driver_free_ = asked ? info.free : bytes;  // where it cannot say, the plan will show
  unasked_growth_ = bytes <= driver_free_ ? std::max(bytes, driver_free_ / 2) : 0;
  if (unasked_growth_ > 0) return {};
  Result<driver::ChunkHandle> tried = driver::ChunkHandle{};
  bool is_released = true;
  {
    const InFlight away(*this, lock);
    tried = mapper_.create(bytes);
    is_released = !tried || mapper_.release(tried.value()).ok();
  }
  if (!tried && tried.error().code == ErrorCode::poisoned) return std::move(tried.error());
  if (tried) note_peaks(1, bytes);
  if (!is_released) orphans_.push_back(chunks_.add(tried.value(), bytes));
  if (tried && is_released) driver_free_ = unasked_growth_ = bytes;
  return {};
}

Result<DevicePtr> Pool::build(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort) {
  ++misses_;
  want_proof(request, caller);
  VPMM_TRY_ASSIGN(Plan plan, make_plan(lock, request, caller, effort));
  const bool sets_record = !plan.creates.empty() && grows_past_peak(plan.created_bytes());
  if (sets_record && !is_cleanup_held_ && relief_.shrink_caches(lock)) {
    VPMM_TRY_ASSIGN(plan, make_plan(lock, request, caller, effort));
  }
  if (chunks_.mapping_count() + plan.pieces() > config_.max_mappings) {
    VPMM_TRY(sweep(lock, chunks_.mapping_count()));
    VPMM_TRY_ASSIGN(plan, make_plan(lock, request, caller, Effort::grow_only));
  }
  return carry_out(lock, plan, request, caller);
}

// Note [Caches shrink before the footprint grows]
// Below the largest footprint so far nothing is gained by giving cached memory back; past it, every cached byte is one
// that the peak would carry for ever.
bool Pool::grows_past_peak(Bytes created) const {
  return chunks_.chunk_bytes() + other_bytes_ + created > counters_.peak_mapped_bytes;
}

Result<void> Pool::queue_waits(const Vector<time::StampPart>& waits, const Caller& caller) {
  for (const time::StampPart& part : waits) {
    VPMM_CHECK(caller.may_queue(), "a wait for a caller that may not wait");
    VPMM_TRY(timelines_.queue_wait(*caller.stream, part));
    ++counters_.gpu_waits;
  }
  return {};
}

// The old mappings become zombies; one on the caller's own timeline needs an event before it can ever be unmapped.
void Pool::prove_moves(const Plan& plan, const Caller& caller) {
  if (!caller.own()) return;
  const Vector<time::Stamp> stamps = plan.moved_stamps();
  const bool is_unproven = std::any_of(stamps.begin(), stamps.end(), [&](const time::Stamp& stamp) {
    return std::any_of(stamp.parts().begin(), stamp.parts().end(), [&](const time::StampPart& part) {
      return part.timeline == caller.timeline->id && part.sequence > caller.timeline->provable;
    });
  });
  if (is_unproven && !timelines_.close(*caller.timeline, *caller.stream)) caller.timeline->wanted = true;
}

Result<DevicePtr> Pool::carry_out(MutexLock& lock, const Plan& plan, const PageRequest& request, const Caller& caller) {
  const HostPromise promise(plan.pieces() * kHostBytesPerPiece + 1);
  if (!promise.is_kept()) return no_host_memory();
  chunks_.provide(plan.creates.size());
  // Waits come first: once they are queued the memory is ordered for the caller whatever happens next.
  VPMM_TRY(queue_waits(plan.waits, caller));
  prove_moves(plan, caller);
  Flight flight = detach(plan);
  unasked_growth_ -= std::min(unasked_growth_, plan.created_bytes());
  std::optional<Error> error;
  bool is_current = false;
  for (bool is_mapped = false; !error && !is_current; is_mapped = true) {
    {
      const InFlight away(*this, lock);
      error = is_mapped ? catch_up(flight) : execute(flight);
    }
    is_current = flight.access_version == mapper_.access_version();
  }
  if (!error) return publish(flight, request, caller);
  unasked_growth_ = 0;
  note_peaks(flight.undone_chunks, flight.undone_bytes);
  undo(flight);
  ++counters_.failed_plans;
  observe::log(observe::LogLevel::info, "a plan is undone: {}", error->message);
  log_plan(observe::LogLevel::info, plan, page_size(), "plan undone");
  return std::move(*error);
}

Pool::Flight Pool::detach(const Plan& plan) {
  Flight flight;
  flight.plan = &plan;
  flight.pieces.reserve(plan.pieces());
  flight.placements.reserve(plan.pieces());
  flight.sources.reserve(plan.moves.size());
  if (plan.kept != nullptr) flight.kept = index_.detach(plan.kept, plan.kept_range);
  flight.mapped = index_.detach(plan.hole, plan.mapped);
  // A region may give several parts; what is left of it after each stands beside it.
  const auto detach_part = [&](Region* near, const AddressRange& part) {
    while (part.begin < near->range.begin) near = near->previous;
    while (near->range.end() <= part.begin) near = near->next;
    return index_.detach(near, part);
  };
  DevicePtr at = plan.mapped.begin;
  const auto add = [&](vm::Chunk* chunk, driver::ChunkHandle handle, Bytes size) {
    flight.pieces.push_back({{handle, {at, size}}, chunk});
    at = at + size;
  };
  const auto add_chunk = [&](vm::Chunk* chunk) { add(chunk, chunk->handle, chunk->size); };
  if (plan.first) {
    flight.first = detach_part(plan.first->from, plan.first->range);
    add_chunk(plan.first->mapping.chunk);
  }
  for (const Move& move : plan.moves) {
    flight.sources.push_back(detach_part(move.from, move.range));
    for (const vm::Mapping& mapping : move.chunks) add_chunk(mapping.chunk);
  }
  for (const Bytes size : plan.creates) add(nullptr, driver::ChunkHandle{}, size);
  if (plan.last) {
    flight.last = detach_part(plan.last->from, plan.last->range);
    add_chunk(plan.last->mapping.chunk);
  }
  return flight;
}

// Runs without the context's lock, as do the three below; touches nothing but the flight and the driver.
std::optional<Error> Pool::execute(Flight& flight) {
  for (std::size_t i = 0; i < flight.pieces.size(); ++i) {
    Flight::Piece& piece = flight.pieces[i];
    if (piece.chunk != nullptr) continue;
    Result<driver::ChunkHandle> created = mapper_.create(piece.placement.range.size);
    if (!created) {
      release_created(flight, i);
      return std::move(created.error());
    }
    piece.placement.handle = created.value();
  }
  for (const Flight::Piece& piece : flight.pieces) flight.placements.push_back(piece.placement);
  return finish(flight, mapper_.map_run(flight.plan->mapped, flight.placements));
}

// For devices that were given access since the flight was mapped.
std::optional<Error> Pool::catch_up(Flight& flight) {
  return finish(flight, mapper_.catch_up(flight.plan->mapped, flight.placements));
}

std::optional<Error> Pool::finish(Flight& flight, vm::MapOutcome outcome) {
  flight.access_version = outcome.access_version;
  if (!outcome.error) return std::nullopt;
  for (const vm::Placement& stuck : outcome.still_mapped)
    for (Flight::Piece& piece : flight.pieces) piece.is_stuck |= piece.placement.range == stuck.range;
  release_created(flight, flight.pieces.size());
  return std::move(outcome.error);
}

// Of the first `count` pieces.
void Pool::release_created(Flight& flight, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Flight::Piece& piece = flight.pieces[i];
    if (piece.chunk != nullptr) continue;
    ++flight.undone_chunks;
    flight.undone_bytes += piece.placement.range.size;
    piece.is_held = !mapper_.release(piece.placement.handle);
  }
}

// Everything goes back where it was.
void Pool::undo(Flight& flight) {
  const auto give_back = [this](Region* taken) {
    if (taken != nullptr) index_.attach_free(taken, timelines_.reduce(taken->stamp), taken->age);
  };
  std::for_each(flight.sources.begin(), flight.sources.end(), give_back);
  for (Region* taken : {flight.first, flight.last, flight.kept}) give_back(taken);
  bury_stuck(flight);
}

// What even the undo could not put right: a mapping becomes a zombie, a chunk an orphan; both are counted as
// quarantined and sweeps try again.
void Pool::bury_stuck(Flight& flight) {
  Region* rest = flight.mapped;
  for (Flight::Piece& piece : flight.pieces) {
    if (!piece.is_stuck && !piece.is_held) continue;
    observe::log(observe::LogLevel::warning, "the driver would not undo: {} bytes at {:#x} are quarantined",
                 piece.placement.range.size, to_integer(piece.placement.range.begin));
    const bool is_new = piece.chunk == nullptr;
    if (is_new) piece.chunk = chunks_.add(piece.placement.handle, piece.placement.range.size);
    if (piece.is_stuck) {
      if (piece.placement.range.begin > rest->range.begin) {
        const auto [front, back] = index_.split_in_flight(rest, piece.placement.range.begin);
        index_.attach_hole(front);
        rest = back;
      }
      Region* stuck = rest;
      rest = nullptr;
      if (piece.placement.range.end() < stuck->range.end())
        std::tie(stuck, rest) = index_.split_in_flight(stuck, piece.placement.range.end());
      chunks_.map(piece.chunk, piece.placement.range.begin);
      index_.attach_zombie(stuck, {});
      stuck_[piece.placement.range.begin] = piece.placement.range.size;
    }
    if (is_new && piece.is_held && !piece.is_stuck) orphans_.push_back(piece.chunk);
    if (is_new && !piece.is_held) chunks_.handle_released(piece.chunk);
    if (rest == nullptr) return;
  }
  index_.attach_hole(rest);
}

// Note [Surplus is newer than the waits]
// Whole chunks are moved, so the span may be larger than the request. The rest was perhaps used on other streams, for
// which the caller's stream now waits: for the caller it is ordered from here on, for others once a number taken after
// the waits is complete.
time::Stamp Pool::surplus_stamp(const Plan& plan, const Caller& caller) {
  if (is_complete(plan)) return {};
  return time::Stamp(timelines_.next(*caller.timeline, 0));
}

bool Pool::is_complete(const Plan& plan) const {
  const auto is_over = [this](const time::Stamp& stamp) { return timelines_.reduce(stamp).is_complete(); };
  const Vector<time::Stamp> moved = plan.moved_stamps();
  return (plan.kept == nullptr || is_over(plan.kept_stamp)) && std::all_of(moved.begin(), moved.end(), is_over);
}

// What the two ends leave behind, and what of their new mappings is not theirs. Returns the rest of what was mapped.
Region* Pool::cast_shadows(Flight& flight) {
  const Plan& plan = *flight.plan;
  Region* span = flight.mapped;
  Region* shadow = nullptr;
  if (plan.first) {
    leave_shadow(flight.first, plan.first->mapping);
    std::tie(shadow, span) = index_.split_in_flight(span, span->range.begin + plan.rest_before());
    index_.attach_shadow(shadow, {});
  }
  if (plan.last) {
    leave_shadow(flight.last, plan.last->mapping);
    std::tie(span, shadow) = index_.split_in_flight(span, span->range.begin + (span->range.size - plan.rest_behind()));
    index_.attach_shadow(shadow, {});
  }
  return span;
}

DevicePtr Pool::publish(Flight& flight, const PageRequest& request, const Caller& caller) {
  const Plan& plan = *flight.plan;
  for (Flight::Piece& piece : flight.pieces) {
    if (piece.chunk == nullptr) {
      piece.chunk = chunks_.add(piece.placement.handle, piece.placement.range.size);
      ++counters_.chunks_created;
    } else {
      ++counters_.chunks_moved;
      counters_.bytes_moved += piece.chunk->size;
    }
    chunks_.map(piece.chunk, piece.placement.range.begin);
  }
  for (Region* source : flight.sources) index_.attach_zombie(source, timelines_.reduce(source->stamp));
  Region* span = cast_shadows(flight);
  if (flight.kept != nullptr)
    span = flight.kept->range.begin < span->range.begin ? index_.join_in_flight(flight.kept, span)
                                                        : index_.join_in_flight(span, flight.kept);
  if (plan.request == 0) {
    index_.attach_free(span, {});
    note_peaks();
    return plan.allocation;
  }
  was_complete_ = is_complete(plan);
  const time::Stamp rest = span->range.size > plan.request ? surplus_stamp(plan, caller) : time::Stamp{};
  Region* front = nullptr;
  Region* back = nullptr;
  if (span->range.begin < plan.allocation) std::tie(front, span) = index_.split_in_flight(span, plan.allocation);
  if (plan.allocation + plan.request < span->range.end())
    std::tie(span, back) = index_.split_in_flight(span, plan.allocation + plan.request);
  if (front != nullptr) index_.attach_free(front, rest);
  if (back != nullptr) index_.attach_free(back, rest);
  region::Tenant tenant = tenant_of(request, caller);
  count_tenant(tenant, +1);
  const DevicePtr begin = index_.attach_allocated(span, std::move(tenant))->range.begin;
  ++counters_.plans;
  if (!plan.creates.empty()) spared_since_growth_ = 0;
  log_plan(observe::LogLevel::debug, plan, page_size(), "plan");
  note_peaks();
  return begin;
}

}  // namespace vpmm::pool
