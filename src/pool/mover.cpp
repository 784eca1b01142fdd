// pool: plans carried out, with an undo for each step.
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

// What bookkeeping may take for a piece of a plan: its chunk, mapping and regions, and its places in a few lists.
constexpr std::size_t kHostBytesPerPiece = 1024;

// What a plan names changes when it is carried out, so it is written before; empty where nobody wants to read it. Must
// not throw: waits are queued already.
std::string text_of(const Plan& plan, Bytes page_size) noexcept {
  if (!observe::logs(observe::LogLevel::info)) return {};
  try {
    return to_string(plan, page_size) + message_of(" for {} us", plan.price().driver_us);
  } catch (...) {
    return {};
  }
}

}  // namespace

// A chunk of a run.
struct Mover::Piece {
  vm::Placement placement;
  vm::Chunk* chunk = nullptr;  // null: to be created
  bool is_created = false;     // by this flight, and not given back since
  bool is_stuck = false;       // after a failure: mapped, and even the undo could not unmap it
  bool is_held = false;        // after a failure: created, and the undo could not release it
};

// What is mapped side by side: pieces that tile `range`.
struct Mover::Run {
  AddressRange range;
  Region* region = nullptr;
  Vector<Piece> pieces;
  Vector<vm::Placement> placements;  // of the pieces, with room for all: no memory is asked for in the air
  bool is_mapped = false;
  std::uint64_t access_version = 0;

  void add(vm::Chunk* chunk, Bytes size) {
    const DevicePtr at = pieces.empty() ? range.begin : pieces.back().placement.range.end();
    const driver::ChunkHandle handle = chunk == nullptr ? driver::ChunkHandle{} : chunk->handle;
    pieces.push_back({{handle, {at, size}}, chunk, false, false, false});
  }
};

struct Mover::Flight {
  const Plan* plan = nullptr;
  Vector<Region*> kept;     // by address, not joined: each remembers its stamp
  Vector<Region*> sources;  // one per move
  Region* split = nullptr;
  bool is_split_unmapped = false;
  bool is_split_released = false;
  Run left;                         // what a split leaves free
  Run span;                         // for the request
  std::uint64_t undone_chunks = 0;  // after a failure: were created
  Bytes undone_bytes = 0;
};

Result<Region*> Mover::carry_out(MutexLock& lock, const Plan& plan, region::Owner owner) {
  if (plan.is_hit()) return take_hit(plan, std::move(owner));
  const HostPromise promise(plan.pieces() * kHostBytesPerPiece + 1);
  if (!promise.is_kept()) return no_host_memory();
  memory_.chunks.provide(plan.pieces());
  const std::string text = text_of(plan, memory_.page_size());
  Flight flight = detach(plan);
  std::optional<Error> error;
  memory_.coming_bytes += plan.growth();
  for (bool is_first = true; !error && (is_first || !is_current(flight)); is_first = false) {
    const Flights::InFlight away(memory_.flights, lock,
                                 plan.split && is_first ? Flights::Work::unmaps : Flights::Work::maps);
    error = is_first ? execute(flight) : map(flight, flight.span);
    if (!is_first && flight.left.is_mapped) static_cast<void>(map(flight, flight.left));
  }
  memory_.coming_bytes -= plan.growth();
  settle_split(flight);
  if (!error) {
    Region* const span = publish(flight);
    observe::log(observe::LogLevel::debug, "plan: {}", text);
    if (plan.request == 0) return memory_.index.attach_free(span, {});
    return memory_.index.attach_allocated(span, std::move(owner));
  }
  memory_.note_peaks(flight.undone_chunks, flight.undone_bytes);
  undo(flight);
  ++memory_.counters.failed_plans;
  observe::log(observe::LogLevel::info, "a plan is undone: {}", error->message);
  observe::log(observe::LogLevel::info, "plan undone: {}", text);
  return std::move(*error);
}

Region* Mover::take_hit(const Plan& plan, region::Owner owner) {
  if (plan.kept.size() == 1) return memory_.index.allocate(plan.kept[0].from, plan.kept[0].range, std::move(owner));
  Region* joined = nullptr;
  for (const Part& part : plan.kept) {
    Region* const piece = memory_.index.detach(part.from, part.range);
    joined = joined == nullptr ? piece : memory_.index.join_in_flight(joined, piece);
  }
  return memory_.index.attach_allocated(joined, std::move(owner));
}

Mover::Flight Mover::detach(const Plan& plan) {
  Flight flight;
  flight.plan = &plan;
  flight.kept.reserve(plan.kept.size());
  flight.sources.reserve(plan.moves.size());
  flight.span.range = plan.mapped;
  Vector<vm::Chunk*> moved;
  for (const Move& move : plan.moves)
    for (const vm::Mapping& mapping : move.chunks) moved.push_back(mapping.chunk);
  // Large ones first, so that later requests find what they need at either end.
  std::stable_sort(moved.begin(), moved.end(),
                   [](const vm::Chunk* a, const vm::Chunk* b) { return a->size > b->size; });
  flight.span.pieces.reserve(plan.pieces());
  flight.span.placements.reserve(plan.pieces());
  auto next = moved.begin();
  for (const Bytes size : plan.creates) {
    for (; next != moved.end() && (*next)->size >= size; ++next) flight.span.add(*next, (*next)->size);
    flight.span.add(nullptr, size);
  }
  for (; next != moved.end(); ++next) flight.span.add(*next, (*next)->size);
  if (plan.split) {
    flight.left.range = plan.split->left;
    flight.left.pieces.reserve(plan.split->left_chunks.size());
    flight.left.placements.reserve(plan.split->left_chunks.size());
    for (const Bytes size : plan.split->left_chunks) flight.left.add(nullptr, size);
  }
  // A region may give several parts; what is left of it after each stands beside it.
  const auto detach_part = [&](const Part& part) VPMM_REQUIRES(pool_lock) {
    Region* near = part.from;
    while (part.range.begin < near->range.begin) near = near->previous;
    while (near->range.end() <= part.range.begin) near = near->next;
    return memory_.index.detach(near, part.range);
  };
  flight.span.region = memory_.index.detach(plan.hole, plan.mapped);
  for (const Move& move : plan.moves) flight.sources.push_back(detach_part(move.part));
  if (plan.split) flight.split = detach_part(plan.split->part);
  for (const Part& part : plan.kept) flight.kept.push_back(detach_part(part));
  return flight;
}

// --- without the lock: these touch nothing but the flight and the driver ---------------------------------------------

std::optional<Error> Mover::execute(Flight& flight) {
  std::optional<Error> error = give_back_split(flight);
  if (!error) error = create(flight);
  if (error) return error;
  if (flight.plan->split) {
    // Not the request's: without it there is less idle memory, and no more.
    if (const std::optional<Error> lost = map(flight, flight.left))
      observe::log(observe::LogLevel::warning, "what a split leaves is lost: {}", lost->message);
  }
  return map(flight, flight.span);
}

std::optional<Error> Mover::give_back_split(Flight& flight) {
  if (!flight.plan->split) return std::nullopt;
  const vm::Mapping& chunk = flight.plan->split->chunk;
  Result<void> done = memory_.mapper.unmap(chunk.range());
  flight.is_split_unmapped = done.ok();
  if (done) done = memory_.mapper.release(chunk.chunk->handle);
  flight.is_split_released = done.ok();
  if (!done) return std::move(done.error());
  return std::nullopt;
}

std::optional<Error> Mover::create(Flight& flight) {
  for (Run* run : {&flight.left, &flight.span}) {
    for (Piece& piece : run->pieces) {
      if (piece.chunk != nullptr) continue;
      Result<driver::ChunkHandle> created = memory_.mapper.create(piece.placement.range.size);
      if (!created) {
        release_created(flight, flight.left);
        release_created(flight, flight.span);
        return std::move(created.error());
      }
      piece.placement.handle = created.value();
      piece.is_created = true;
    }
  }
  return std::nullopt;
}

// The first time, or again for devices that were given access since.
std::optional<Error> Mover::map(Flight& flight, Run& run) {
  if (!run.is_mapped)
    for (const Piece& piece : run.pieces) run.placements.push_back(piece.placement);
  vm::MapOutcome outcome = run.is_mapped ? memory_.mapper.catch_up(run.range, run.placements)
                                         : memory_.mapper.map_run(run.range, run.placements);
  run.access_version = outcome.access_version;
  run.is_mapped = !outcome.error;
  if (!outcome.error) return std::nullopt;
  for (const vm::Placement& stuck : outcome.still_mapped)
    for (Piece& piece : run.pieces) piece.is_stuck |= piece.placement.range == stuck.range;
  release_created(flight, run);
  return std::move(outcome.error);
}

void Mover::release_created(Flight& flight, Run& run) {
  for (Piece& piece : run.pieces) {
    if (!std::exchange(piece.is_created, false)) continue;
    ++flight.undone_chunks;
    flight.undone_bytes += piece.placement.range.size;
    piece.is_held = !memory_.mapper.release(piece.placement.handle);
  }
}

// --- under it again --------------------------------------------------------------------------------------------------

bool Mover::is_current(const Flight& flight) const {
  const std::uint64_t version = memory_.mapper.access_version();
  return flight.span.access_version == version && (!flight.left.is_mapped || flight.left.access_version == version);
}

// What was one chunk: a free region and a hole, or, where it failed, whatever became of it.
void Mover::settle_split(Flight& flight) {
  if (!flight.plan->split) return;
  const Split& split = *flight.plan->split;
  if (!flight.is_split_unmapped) {
    memory_.index.attach_free(flight.split, {}, flight.split->age);
    return;
  }
  vm::Chunk* const chunk = split.chunk.chunk;
  using Fate = MappingObserver::Fate;
  memory_.leave_place(*chunk, flight.is_split_released ? Fate::given_back : Fate::lives_on);
  memory_.chunks.unmap(split.chunk.range());
  if (flight.is_split_released) {
    ++memory_.counters.chunks_released;
    memory_.chunks.handle_released(chunk);
  } else {
    memory_.quarantine.orphans.push_back(chunk);
  }
  Region* rest = flight.split;
  if (split.left.begin > rest->range.begin) {
    const auto [front, back] = memory_.index.split_in_flight(rest, split.left.begin);
    memory_.index.attach_hole(front);
    rest = back;
  }
  if (split.left.end() < rest->range.end()) {
    const auto [front, back] = memory_.index.split_in_flight(rest, split.left.end());
    memory_.index.attach_hole(back);
    rest = front;
  }
  flight.left.region = rest;
  if (!flight.left.is_mapped) return bury_stuck(flight.left);
  enter_chunks(flight.left);
  memory_.index.attach_free(rest, {});
}

// What even the undo could not put right: a mapping becomes a zombie, a chunk an orphan; both are counted as
// quarantined and sweeps try again. The rest is a hole.
void Mover::bury_stuck(Run& run) {
  Region* rest = run.region;
  for (Piece& piece : run.pieces) {
    if (!piece.is_stuck && !piece.is_held) continue;
    const AddressRange range = piece.placement.range;
    observe::log(observe::LogLevel::warning, "the driver would not undo: {} bytes at {:#x} are quarantined", range.size,
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
      if (range.end() < stuck->range.end()) std::tie(stuck, rest) = memory_.index.split_in_flight(stuck, range.end());
      memory_.chunks.map(piece.chunk, range.begin);
      memory_.index.attach_zombie(stuck, {});
      memory_.quarantine.stuck[range.begin] = range.size;
    }
    if (is_new && piece.is_held && !piece.is_stuck) memory_.quarantine.orphans.push_back(piece.chunk);
    if (is_new && !piece.is_held) memory_.chunks.handle_released(piece.chunk);
    if (rest == nullptr) return;
  }
  memory_.index.attach_hole(rest);
}

// Everything goes back where it was.
void Mover::undo(Flight& flight) {
  for (const Vector<Region*>* taken : {&flight.sources, &flight.kept})
    for (Region* region : *taken)
      memory_.index.attach_free(region, memory_.timelines.reduce(region->stamp), region->age);
  bury_stuck(flight.span);
}

void Mover::enter_chunks(Run& run) {
  for (Piece& piece : run.pieces) {
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

// Returns the span in flight, joined with what was kept.
Region* Mover::publish(Flight& flight) {
  for (const Move& move : flight.plan->moves)
    for (const vm::Mapping& mapping : move.chunks) memory_.leave_place(*mapping.chunk, MappingObserver::Fate::lives_on);
  enter_chunks(flight.span);
  for (Region* source : flight.sources) memory_.index.attach_zombie(source, memory_.timelines.reduce(source->stamp));
  Region* span = flight.span.region;
  if (flight.kept.empty()) return span;
  const bool is_behind = flight.kept.front()->range.begin > span->range.begin;
  Region* joined = is_behind ? span : nullptr;
  for (Region* kept : flight.kept) joined = joined == nullptr ? kept : memory_.index.join_in_flight(joined, kept);
  return is_behind ? joined : memory_.index.join_in_flight(joined, span);
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
