// SPDX-License-Identifier: Apache-2.0
// pool: carries out plans, with an undo for each step.
#include "pool/mover.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/message.hpp"
#include "observe/log.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

// Host memory that bookkeeping may take per piece: chunk, mapping, regions and list entries.
constexpr std::size_t kHostBytesPerPiece = 1024;

// Writes the plan before its parts change; empty unless logged. Must not throw: waits are queued
// already.
std::string text_of(const Plan& plan, Bytes page_size) noexcept {
  if (!observe::logs(observe::LogLevel::info)) return {};
  try {
    return to_string(plan, page_size) + message_of(" for {} us", plan.driver_us());
  } catch (...) {
    return {};
  }
}

}  // namespace

struct Mover::Piece {
  vm::Placement placement;
  vm::Chunk* chunk = nullptr;  // null: to be created
  bool is_created = false;     // created by this flight, and not released since
  bool is_stuck = false;       // after a failure: still mapped after the undo
  bool is_held = false;        // after a failure: created, and not released by the undo
};

struct Mover::Flight {
  const Plan* plan = nullptr;
  Vector<Region*> kept;  // by address, not joined: each keeps its stamp
  Vector<Region*> sources;
  Region* span = nullptr;  // region of plan->mapped
  Vector<Piece> pieces;    // tile `span`
  Vector<vm::Placement>
      placements;     // of `pieces`, reserved in full: no allocation during the flight
  time::Stamp stamp;  // of the piece with the excess
  bool is_mapped = false;
  std::uint64_t access_version = 0;
  std::uint64_t undone_chunks = 0;  // after a failure: chunks that were created
  Bytes undone_bytes = 0;

  AddressRange kept_range() const {
    return {kept.front()->range.begin, kept.back()->range.end() - kept.front()->range.begin};
  }
};

Result<Region*> Mover::carry_out(MutexLock& lock, const Plan& plan, region::Owner owner) {
  if (plan.is_hit()) return take_hit(plan, std::move(owner));
  const HostPromise promise(plan.pieces() * kHostBytesPerPiece + 1);
  if (!promise.is_kept()) return no_host_memory();
  memory_.chunks.provide(plan.pieces());
  const std::string text = text_of(plan, memory_.page_size());
  Flight flight = detach(plan);
  std::optional<Error> error;
  memory_.flights.begin_creating(plan.growth());
  do {
    const Flights::InFlight away(memory_.flights, lock);
    if (!flight.is_mapped) error = create(flight);
    if (!error) error = map(flight);
  } while (!error && flight.access_version != memory_.mapper.access_version());
  memory_.flights.end_creating(plan.growth());
  if (!error) {
    observe::log(observe::LogLevel::debug, "plan: {}", text);
    return publish(flight, std::move(owner));
  }
  memory_.note_peaks(flight.undone_chunks, flight.undone_bytes);
  undo(flight);
  ++memory_.counters.failed_plans;
  observe::log(observe::LogLevel::info, "a plan is undone: {}", error->message);
  observe::log(observe::LogLevel::info, "plan undone: {}", text);
  return std::move(*error);
}

Region* Mover::take_hit(const Plan& plan, region::Owner owner) {
  memory_.chunks.begin_use(plan.range());
  if (plan.kept.size() == 1)
    return memory_.index.allocate(plan.kept[0].from, plan.kept[0].range, std::move(owner));
  Region* joined = nullptr;
  for (const Part& part : plan.kept) {
    Region* const piece = memory_.index.detach(part.from, part.range);
    joined = joined == nullptr ? piece : memory_.index.join(joined, piece);
  }
  return memory_.index.attach_allocated(joined, std::move(owner));
}

// Orders the pieces as planned, starting beside the kept part, so that the excess lies at the far
// end.
Mover::Flight Mover::detach(const Plan& plan) {
  Flight flight;
  flight.plan = &plan;
  flight.kept.reserve(plan.kept.size());
  flight.sources.reserve(plan.moves.size());
  flight.pieces.reserve(plan.pieces());
  flight.placements.reserve(plan.pieces());
  const auto add = [&](vm::Chunk* chunk, Bytes size) {
    const driver::ChunkHandle handle = chunk == nullptr ? driver::ChunkHandle{} : chunk->handle;
    flight.pieces.push_back({{handle, {DevicePtr{}, size}}, chunk, false, false, false});
  };
  for (const Move& move : plan.moves)
    for (const vm::Mapping& mapping : move.chunks) add(mapping.chunk, mapping.chunk->size);
  for (const Bytes size : plan.creates) add(nullptr, size);
  if (plan.creates.empty() && !plan.moves.empty()) flight.stamp = plan.moves.back().part.stamp;
  if (plan.is_mapped_in_front()) std::reverse(flight.pieces.begin(), flight.pieces.end());
  DevicePtr at = plan.mapped.begin;
  for (Piece& piece : flight.pieces) {
    piece.placement.range.begin = at;
    at = at + piece.placement.range.size;
  }
  // A region may give several parts; its rests stand beside `part.from`.
  const auto detach_part = [&](const Part& part) VPMM_REQUIRES(pool_lock) {
    Region* near = part.from;
    while (part.range.begin < near->range.begin) near = near->previous;
    while (near->range.end() <= part.range.begin) near = near->next;
    return memory_.index.detach(near, part.range);
  };
  flight.span = memory_.index.detach(plan.hole, plan.mapped);
  for (const Move& move : plan.moves) flight.sources.push_back(detach_part(move.part));
  for (const Part& part : plan.kept) flight.kept.push_back(detach_part(part));
  if (!flight.kept.empty()) memory_.chunks.begin_use(flight.kept_range());
  return flight;
}

// --- without the lock: these touch nothing but the flight and the driver

std::optional<Error> Mover::create(Flight& flight) {
  for (Piece& piece : flight.pieces) {
    if (piece.chunk != nullptr) continue;
    Result<driver::ChunkHandle> created = memory_.mapper.create(piece.placement.range.size);
    if (!created) {
      release_created(flight);
      return std::move(created.error());
    }
    piece.placement.handle = created.value();
    piece.is_created = true;
  }
  return std::nullopt;
}

// Maps the pieces; on later calls grants access to devices added since.
std::optional<Error> Mover::map(Flight& flight) {
  const AddressRange whole = flight.plan->mapped;
  if (!flight.is_mapped)
    for (const Piece& piece : flight.pieces) flight.placements.push_back(piece.placement);
  vm::MapOutcome outcome = flight.is_mapped ? memory_.mapper.catch_up(whole, flight.placements)
                                            : memory_.mapper.map_run(whole, flight.placements);
  flight.access_version = outcome.access_version;
  flight.is_mapped = !outcome.error;
  if (!outcome.error) return std::nullopt;
  for (const vm::Placement& stuck : outcome.still_mapped)
    for (Piece& piece : flight.pieces) piece.is_stuck |= piece.placement.range == stuck.range;
  release_created(flight);
  return std::move(outcome.error);
}

void Mover::release_created(Flight& flight) {
  for (Piece& piece : flight.pieces) {
    if (!piece.is_created) continue;
    piece.is_created = false;
    ++flight.undone_chunks;
    flight.undone_bytes += piece.placement.range.size;
    piece.is_held = !memory_.mapper.release(piece.placement.handle);
  }
}

// --- under it again

// Turns leftovers of a failed undo into quarantined zombies (mappings) or orphans (chunks), which
// sweeps retry; the rest into a hole.
void Mover::bury_stuck(Flight& flight) {
  Region* rest = flight.span;
  for (Piece& piece : flight.pieces) {
    if (!piece.is_stuck && !piece.is_held) continue;
    const AddressRange range = piece.placement.range;
    observe::log(observe::LogLevel::warning,
                 "the driver would not undo: {} bytes at {:#x} are quarantined", range.size,
                 to_integer(range.begin));
    const bool is_new = piece.chunk == nullptr;
    if (is_new) piece.chunk = memory_.chunks.add(piece.placement.handle, range.size);
    if (piece.is_stuck) {
      if (range.begin > rest->range.begin) {
        const auto [front, back] = memory_.index.split_in_flight(rest, range.begin);
        memory_.index.attach_hole(front);
        rest = back;
      }
      Region* stuck = rest;
      rest = nullptr;
      if (range.end() < stuck->range.end())
        std::tie(stuck, rest) = memory_.index.split_in_flight(stuck, range.end());
      memory_.chunks.map(piece.chunk, range.begin);
      memory_.index.attach_zombie(stuck, {});
      memory_.quarantine.stuck[range.begin] = range.size;
    }
    if (is_new && piece.is_held && !piece.is_stuck)
      memory_.quarantine.orphans.push_back(piece.chunk);
    if (is_new && !piece.is_held) memory_.chunks.handle_released(piece.chunk);
    if (rest == nullptr) return;
  }
  memory_.index.attach_hole(rest);
}

void Mover::undo(Flight& flight) {
  if (!flight.kept.empty()) memory_.chunks.end_use(flight.kept_range());
  for (const Vector<Region*>* taken : {&flight.sources, &flight.kept})
    for (Region* region : *taken)
      memory_.index.attach_free(region, memory_.timelines.reduce(region->stamp), region->age());
  bury_stuck(flight);
}

void Mover::enter_chunks(Flight& flight) {
  for (Piece& piece : flight.pieces) {
    if (piece.chunk == nullptr) {
      piece.chunk = memory_.chunks.add(piece.placement.handle, piece.placement.range.size);
      ++memory_.counters.chunks_created;
    } else {
      ++memory_.counters.chunks_moved;
      memory_.counters.bytes_moved += piece.chunk->size;
    }
    memory_.chunks.map(piece.chunk, piece.placement.range.begin);
    memory_.enter_place(*piece.chunk, piece.placement.range.begin);
  }
}

// Frees the part of the last piece beyond the request.
void Mover::free_excess(Flight& flight) {
  const AddressRange allocation = flight.plan->range();
  Region* excess = nullptr;
  if (flight.span->range.end() > allocation.end())
    std::tie(flight.span, excess) = memory_.index.split_in_flight(flight.span, allocation.end());
  else if (flight.span->range.begin < allocation.begin)
    std::tie(excess, flight.span) = memory_.index.split_in_flight(flight.span, allocation.begin);
  if (excess != nullptr) memory_.index.attach_free(excess, memory_.timelines.reduce(flight.stamp));
}

Region* Mover::publish(Flight& flight, region::Owner owner) {
  for (const Move& move : flight.plan->moves)
    for (const vm::Mapping& mapping : move.chunks)
      memory_.leave_place(*mapping.chunk, MappingObserver::Fate::lives_on);
  enter_chunks(flight);
  for (Region* source : flight.sources)
    memory_.index.attach_zombie(source, memory_.timelines.reduce(source->stamp));
  if (flight.plan->request == 0) return memory_.index.attach_free(flight.span, {});
  if (!flight.kept.empty()) memory_.chunks.end_use(flight.kept_range());
  memory_.chunks.begin_use(flight.plan->range());
  free_excess(flight);
  auto kept = flight.kept.begin();
  const bool span_first = flight.plan->is_mapped_in_front() || kept == flight.kept.end();
  Region* joined = span_first ? flight.span : *kept++;
  for (; kept != flight.kept.end(); ++kept) joined = memory_.index.join(joined, *kept);
  if (joined->range.begin != flight.span->range.begin)
    joined = memory_.index.join(joined, flight.span);
  return memory_.index.attach_allocated(joined, std::move(owner));
}

Result<void> Mover::fill(MutexLock& lock, Region* hole, AddressRange part, Vector<Bytes> chunks) {
  Plan plan;
  plan.hole = hole;
  plan.mapped = part;
  plan.allocation = part.begin;
  plan.creates = std::move(chunks);
  const Result<Region*> filled = carry_out(lock, plan, {});
  if (!filled) return filled.error();
  return {};
}

Result<bool> Mover::try_out(MutexLock& lock, Bytes bytes) {
  Result<driver::ChunkHandle> tried = driver::ChunkHandle{};
  bool is_released = true;
  {
    const Flights::InFlight away(memory_.flights, lock);
    tried = memory_.mapper.create(bytes);
    is_released = !tried || memory_.mapper.release(tried.value()).ok();
  }
  if (!tried && tried.error().code == ErrorCode::poisoned) return std::move(tried.error());
  if (tried) memory_.note_peaks(1, bytes);
  if (!is_released) memory_.quarantine.orphans.push_back(memory_.chunks.add(tried.value(), bytes));
  return tried && is_released;
}

}  // namespace vpmm::pool
