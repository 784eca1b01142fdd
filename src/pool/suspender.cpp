// SPDX-License-Identifier: Apache-2.0
// pool: suspends and resumes allocations.
#include "pool/suspender.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "observe/log.hpp"
#include "pool/address_space.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

// Host memory that bookkeeping may take per chunk.
constexpr std::size_t kHostBytesPerChunk = 1024;

// The chunks of a region at another address; `begin`: where the region's begin is then.
Vector<vm::Placement> placements_at(DevicePtr begin, AddressRange region,
                                    const Vector<vm::Mapping>& mappings) {
  Vector<vm::Placement> placements;
  placements.reserve(mappings.size());
  for (const vm::Mapping& mapping : mappings)
    placements.push_back(
        {mapping.chunk->handle, {begin + (mapping.at - region.begin), mapping.chunk->size}});
  return placements;
}

}  // namespace

struct Suspender::Leaving {
  Region* region = nullptr;
  Vector<vm::Mapping> mappings;
  Vector<vm::Placement> here;  // for an undo
  Vector<bool> is_released;    // by chunk: the driver took the handle back
  bool is_unmapped = false;
};

// The place in the pool of memory that stays there.
struct Suspender::Away {
  Region* region = nullptr;  // null: none
  Vector<vm::Mapping> mappings;
  Vector<vm::Placement> placements;  // of their chunks
  Vector<vm::Placement> left;        // after a failure: those that the driver left mapped
};

struct Suspender::Refilling {
  Refill refill;
  Vector<vm::Mapping> mappings;  // of the memory
  Vector<vm::Placement> here;    // for an undo
  Vector<vm::Placement> there;   // at the suspended region
  Vector<vm::Placement> stuck;   // after a failure: those of `there` that the driver left mapped
  Vector<vm::Placement> left;    // likewise, of `here`, which is then not mapped as a whole
  bool is_here = true;           // mapped at the memory's address
  bool is_there = false;
};

Result<Region*> Suspender::find_hole(MutexLock& lock, Bytes size) {
  Region* hole = memory_.index.smallest_hole(size, memory_.page_alignment());
  while (hole == nullptr) {
    VPMM_TRY(add_reservation(memory_, lock, size));
    memory_.flights.wait_for_grant(lock);  // one may have begun without the lock
    hole = memory_.index.smallest_hole(size, memory_.page_alignment());
  }
  return memory_.index.detach(hole, {align_up(hole->range.begin, memory_.page_alignment()), size});
}

// --- suspending

// Called without the lock. After a failure maps again what it unmapped.
std::optional<Error> Suspender::unmap_all(Vector<Leaving>& leaving) {
  std::optional<Error> error;
  for (Leaving& each : leaving) {
    Result<void> unmapped = memory_.mapper.unmap(each.region->range);
    each.is_unmapped = unmapped.ok();
    if (unmapped) continue;
    error = std::move(unmapped.error());
    break;
  }
  if (!error) return std::nullopt;
  for (Leaving& each : leaving)
    if (each.is_unmapped)
      each.is_unmapped = memory_.mapper.map_run(each.region->range, each.here).error.has_value();
  return error;
}

// Called without the lock. Returns an error only if the context is broken.
std::optional<Error> Suspender::release_all(Vector<Leaving>& leaving) {
  std::optional<Error> broken;
  for (Leaving& each : leaving)
    for (std::size_t i = 0; i < each.mappings.size(); ++i) {
      Result<void> released = memory_.mapper.release(each.mappings[i].chunk->handle);
      each.is_released[i] = released.ok();
      if (!released && released.error().code == ErrorCode::poisoned)
        broken = std::move(released.error());
    }
  return broken;
}

// Under it again: the region has no chunks any more. Those with a handle and without a new place
// are orphans.
void Suspender::leave(Leaving& leaving, Fate fate) {
  Region& region = *leaving.region;
  for (std::size_t i = 0; i < leaving.mappings.size(); ++i)
    memory_.leave_place(*leaving.mappings[i].chunk, fate == Fate::goes_to_driver
                                                        ? MappingObserver::Fate::given_back
                                                        : MappingObserver::Fate::lives_on);
  memory_.chunks.unmap(region.range);
  for (std::size_t i = 0; i < leaving.mappings.size() && fate == Fate::goes_to_driver; ++i) {
    vm::Chunk* const chunk = leaving.mappings[i].chunk;
    if (!leaving.is_released[i]) {
      memory_.quarantine.orphans.push_back(chunk);
      continue;
    }
    ++memory_.counters.chunks_released;
    memory_.chunks.handle_released(chunk);
  }
  region.is_suspended = true;
  memory_.suspended_bytes += region.range.size;
}

// Mappings that are left in a region of nobody become quarantined zombies, which sweeps retry; the
// rest becomes a hole.
void Suspender::bury(Region* in_flight) {
  Region* rest = in_flight;
  for (const vm::Mapping& stuck : memory_.chunks.inside(in_flight->range)) {
    if (stuck.at > rest->range.begin) {
      const auto [front, back] = memory_.index.split_in_flight(rest, stuck.at);
      memory_.index.attach_hole(front);
      rest = back;
    }
    Region* zombie = rest;
    rest = nullptr;
    if (stuck.end() < zombie->range.end())
      std::tie(zombie, rest) = memory_.index.split_in_flight(zombie, stuck.end());
    memory_.index.attach_zombie(zombie, {});
    memory_.quarantine.stuck[stuck.at] = stuck.chunk->size;
    observe::log(observe::LogLevel::warning,
                 "the driver would not undo: {} bytes at {:#x} are quarantined", stuck.chunk->size,
                 to_integer(stuck.at));
    if (rest == nullptr) return;
  }
  memory_.index.attach_hole(rest);
}

Suspender::Leaving Suspender::leaving_of(Region* region) {
  VPMM_CHECK(region->has_own_chunks && !region->is_suspended, memory_.index.picture());
  Leaving leaving;
  leaving.region = region;
  leaving.mappings = memory_.chunks.inside(region->range);
  leaving.here = placements_at(region->range.begin, region->range, leaving.mappings);
  leaving.is_released.assign(leaving.mappings.size(), false);
  return leaving;
}

// Finds none if address space is short.
Result<void> Suspender::find_place(MutexLock& lock, const Vector<Leaving>& leaving, Away& away) {
  Bytes size = 0;
  for (const Leaving& each : leaving) size += each.region->range.size;
  Result<Region*> hole = find_hole(lock, size);
  if (!hole && hole.error().code == ErrorCode::poisoned) return std::move(hole.error());
  if (!hole) {
    memory_.flights.wait_for_grant(lock);
    return {};
  }
  away.region = hole.value();
  DevicePtr at = away.region->range.begin;
  for (const Leaving& each : leaving) {
    for (const vm::Placement& one : placements_at(at, each.region->range, each.mappings))
      away.placements.push_back(one);
    for (const vm::Mapping& mapping : each.mappings) away.mappings.push_back(mapping);
    at = at + each.region->range.size;
  }
  return {};
}

// Called without the lock. Maps all at the new place before it unmaps the old one.
std::optional<Error> Suspender::move_away(Away& away, Vector<Leaving>& leaving) {
  if (away.region != nullptr) {
    vm::MapOutcome outcome = memory_.mapper.map_run(away.region->range, away.placements);
    away.left = std::move(outcome.still_mapped);
    if (outcome.error) return std::move(outcome.error);
  }
  std::optional<Error> error = unmap_all(leaving);
  if (error && away.region != nullptr && !memory_.mapper.unmap(away.region->range))
    away.left = away.placements;
  return error;
}

// Enters what the driver left mapped: some of the `placements` of these chunks.
void Suspender::enter_left(const Vector<vm::Placement>& left,
                           const Vector<vm::Placement>& placements,
                           const Vector<vm::Mapping>& mappings) {
  for (const vm::Placement& each : left)
    for (std::size_t i = 0; i < placements.size(); ++i)
      if (placements[i].range == each.range)
        memory_.chunks.map(mappings[i].chunk, each.range.begin);
}

Result<void> Suspender::suspend(MutexLock& lock, const Vector<Region*>& regions, Fate fate) {
  if (regions.empty()) return {};
  memory_.flights.wait_for_grant(lock);
  Vector<Leaving> leaving;
  leaving.reserve(regions.size());
  std::size_t chunks = 0;
  for (Region* const region : regions) {
    leaving.push_back(leaving_of(region));
    chunks += leaving.back().mappings.size();
  }
  const HostPromise promise(chunks * kHostBytesPerChunk + 1);
  if (!promise.is_kept()) return no_host_memory();
  Away away;
  // Beyond the limit of mappings nothing is mapped a second time.
  const bool has_mappings = memory_.held_mappings() + chunks <= memory_.config.limits.max_mappings;
  if (fate == Fate::stays_in_pool && has_mappings) VPMM_TRY(find_place(lock, leaving, away));
  if (away.region == nullptr) fate = Fate::goes_to_driver;
  std::optional<Error> error;
  std::optional<Error> broken;  // the context; the memory is suspended all the same
  {
    const Flights::InFlight flight(memory_.flights, lock, Flights::FlightWork::unmaps);
    error = move_away(away, leaving);
    if (!error && fate == Fate::goes_to_driver) broken = release_all(leaving);
  }
  if (error) {
    enter_left(away.left, away.placements, away.mappings);
    if (away.region != nullptr) bury(away.region);
    // Their chunks have no place any more: sweeps release them.
    for (Leaving& each : leaving)
      if (each.is_unmapped) leave(each, Fate::goes_to_driver);
    return std::move(*error);
  }
  for (Leaving& each : leaving) leave(each, fate);
  if (broken) return std::move(*broken);
  if (away.region == nullptr) return {};
  for (std::size_t i = 0; i < away.mappings.size(); ++i)
    enter(*away.mappings[i].chunk, away.placements[i].range.begin);
  memory_.index.attach_free(away.region, {});
  return {};
}

// --- resuming

void Suspender::enter(vm::Chunk& chunk, DevicePtr at) {
  memory_.chunks.map(&chunk, at);
  memory_.enter_place(chunk, at);
  ++memory_.counters.chunks_moved;
  memory_.counters.bytes_moved += chunk.size;
}

// The memory at its new place.
void Suspender::arrive(const Refilling& refilling) {
  Region& region = *refilling.refill.suspended;
  for (std::size_t i = 0; i < refilling.mappings.size(); ++i)
    enter(*refilling.mappings[i].chunk, refilling.there[i].range.begin);
  region.is_suspended = false;
  memory_.suspended_bytes -= region.range.size;
}

// Makes the old address a hole, but for mappings that the driver left there.
void Suspender::end_memory(const Refilling& refilling) {
  Region* const memory = refilling.refill.memory;
  const AddressRange range = memory->range;
  for (const vm::Mapping& mapping : refilling.mappings)
    memory_.leave_place(*mapping.chunk, MappingObserver::Fate::lives_on);
  Region* const flying = memory_.index.detach(memory_.index.release(memory, {}), range);
  ++memory_.counters.deallocations;
  memory_.chunks.unmap(range);
  enter_left(refilling.left, refilling.here, refilling.mappings);
  bury(flying);
}

// Called without the lock. Unmaps before it maps, so the limit of mappings holds. After a failure
// moves back what it moved.
std::optional<Error> Suspender::move_all(Vector<Refilling>& refilling) {
  std::optional<Error> error;
  for (Refilling& each : refilling) {
    Result<void> unmapped = memory_.mapper.unmap(each.refill.memory->range);
    each.is_here = !unmapped;
    if (!unmapped) error = std::move(unmapped.error());
    if (error) break;
    vm::MapOutcome outcome = memory_.mapper.map_run(each.refill.suspended->range, each.there);
    each.is_there = !outcome.error;
    each.stuck = std::move(outcome.still_mapped);
    error = std::move(outcome.error);
    if (error) break;
  }
  if (!error) return std::nullopt;
  for (Refilling& each : refilling) {
    if (each.is_there) each.is_there = !memory_.mapper.unmap(each.refill.suspended->range);
    if (each.is_there || each.is_here) continue;
    vm::MapOutcome undone = memory_.mapper.map_run(each.refill.memory->range, each.here);
    each.is_here = !undone.error;
    each.left = std::move(undone.still_mapped);
  }
  return error;
}

Suspender::Refilling Suspender::refilling_of(const Refill& refill) {
  const AddressRange from = refill.memory->range;
  const AddressRange to = refill.suspended->range;
  VPMM_CHECK(
      refill.suspended->is_suspended && refill.memory->has_own_chunks && from.size == to.size,
      memory_.index.picture());
  Refilling refilling;
  refilling.refill = refill;
  refilling.mappings = memory_.chunks.inside(from);
  refilling.here = placements_at(from.begin, from, refilling.mappings);
  refilling.there = placements_at(to.begin, from, refilling.mappings);
  return refilling;
}

// Called without the lock. Unmaps the rest of an earlier undo; the list keeps the unmapped ones.
std::optional<Error> Suspender::unmap_leftovers(Vector<vm::Mapping>& leftovers) {
  for (std::size_t i = 0; i < leftovers.size(); ++i)
    if (Result<void> gone = memory_.mapper.unmap(leftovers[i].range()); !gone) {
      leftovers.resize(i);
      return std::move(gone.error());
    }
  return std::nullopt;
}

// After a move, or its undo.
void Suspender::settle(const Refilling& refilling, Refill& refill) {
  enter_left(refilling.stuck, refilling.there, refilling.mappings);
  for (const vm::Placement& stuck : refilling.stuck)
    memory_.quarantine.stuck[stuck.range.begin] = stuck.range.size;
  if (refilling.is_here) return;
  end_memory(refilling);
  if (refilling.is_there) return arrive(refilling);
  // Chunks mapped nowhere are released by sweeps, those left at the old address with their mapping.
  for (std::size_t i = 0; i < refilling.mappings.size(); ++i) {
    const bool is_left = std::any_of(
        refilling.left.begin(), refilling.left.end(),
        [&](const vm::Placement& left) { return left.range == refilling.here[i].range; });
    if (!is_left) memory_.quarantine.orphans.push_back(refilling.mappings[i].chunk);
  }
  refill.memory = nullptr;
}

Result<void> Suspender::resume(MutexLock& lock, Vector<Refill>& refills) {
  if (refills.empty()) return {};
  memory_.flights.wait_for_grant(lock);
  Vector<Refilling> refilling;
  refilling.reserve(refills.size());
  std::size_t chunks = 0;
  for (const Refill& refill : refills) {
    refilling.push_back(refilling_of(refill));
    chunks += refilling.back().mappings.size();
  }
  const HostPromise promise(chunks * kHostBytesPerChunk + 1);
  if (!promise.is_kept()) return no_host_memory();
  Vector<vm::Mapping> leftovers;  // of an earlier undo that the driver refused
  for (const Refilling& each : refilling)
    for (const vm::Mapping& left : memory_.chunks.inside(each.refill.suspended->range))
      leftovers.push_back(left);
  std::optional<Error> error;
  {
    const Flights::InFlight flight(memory_.flights, lock, Flights::FlightWork::unmaps);
    error = unmap_leftovers(leftovers);
    if (!error) error = move_all(refilling);
  }
  for (const vm::Mapping& gone : leftovers) {
    memory_.quarantine.stuck.erase(gone.at);
    memory_.chunks.unmap(gone.range());
  }
  for (std::size_t i = 0; i < refilling.size(); ++i) settle(refilling[i], refills[i]);
  if (error) return std::move(*error);
  return {};
}

void Suspender::drop(Region* suspended) {
  const AddressRange range = suspended->range;
  VPMM_CHECK(suspended->is_suspended, memory_.index.picture());
  memory_.suspended_bytes -= range.size;
  ++memory_.counters.deallocations;
  bury(memory_.index.detach(memory_.index.release(suspended, {}), range));
}

}  // namespace vpmm::pool
