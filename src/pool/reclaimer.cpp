// SPDX-License-Identifier: Apache-2.0
// pool: unmaps zombies, gives idle chunks back, and releases all memory.
#include "pool/reclaimer.hpp"

#include <algorithm>
#include <new>

#include "base/host_memory.hpp"
#include "observe/log.hpp"

namespace vpmm::pool {

using region::Region;

// --- zombies

namespace {

// Returns the first mappings of `zombie`, at most `budget`, to unmap in one call.
AddressRange front_of(const vm::ChunkTable& chunks, const Region& zombie, std::uint64_t& budget)
    VPMM_REQUIRES(pool_lock) {
  AddressRange part{zombie.range.begin, 0};
  chunks.for_each_inside(zombie.range, [&](const vm::Mapping& mapping) {
    if (budget == 0) return false;
    part.size += mapping.chunk->size;
    --budget;
    return true;
  });
  return part;
}

}  // namespace

// Note [Zombies outlive their mapping's last use]
// Work queued before the chunks moved may still run through the old address, so the address is
// unmapped only once its stamp is complete. After a failed unmap the zombie stays.
Result<void> Reclaimer::sweep(MutexLock& lock, std::uint64_t max_mappings) {
  VPMM_TRY(retry_orphans(lock));
  memory_.flights.wait_for_grant(lock);
  Vector<Region*> complete;
  memory_.index.for_each_zombie([&](Region* zombie) {
    if (zombie->stamp.is_complete()) complete.push_back(zombie);
    return complete.size() < max_mappings;
  });
  Vector<Region*> flying;
  Vector<Result<void>> results;
  flying.reserve(complete.size());
  results.reserve(complete.size());
  for (Region* zombie : complete) {
    if (max_mappings == 0) break;
    flying.push_back(memory_.index.detach(zombie, front_of(memory_.chunks, *zombie, max_mappings)));
  }
  if (flying.empty()) return {};
  {
    const Flights::InFlight away(memory_.flights, lock, Flights::FlightWork::unmaps);
    for (const Region* zombie : flying) results.push_back(memory_.mapper.unmap(zombie->range));
  }
  Result<void> outcome;
  for (std::size_t i = 0; i < flying.size(); ++i) {
    if (results[i]) {
      bury(flying[i]);
    } else {
      memory_.quarantine.stuck[flying[i]->range.begin] = flying[i]->range.size;
      memory_.index.attach_zombie(flying[i], {});
      if (results[i].error().code == ErrorCode::poisoned) outcome = std::move(results[i].error());
    }
  }
  return outcome;
}

// Turns an unmapped zombie into a hole. A chunk without other mappings ends, or is an orphan if its
// handle is held.
void Reclaimer::bury(Region* zombie) {
  for (const vm::Mapping& mapping : memory_.chunks.inside(zombie->range))
    if (mapping.chunk->mappings == 1 && mapping.chunk->handle_held)
      memory_.quarantine.orphans.push_back(mapping.chunk);
  memory_.quarantine.stuck.erase(memory_.quarantine.stuck.lower_bound(zombie->range.begin),
                                 memory_.quarantine.stuck.lower_bound(zombie->range.end()));
  memory_.chunks.unmap(zombie->range);
  memory_.index.attach_hole(zombie);
}

Result<void> Reclaimer::retry_orphans(MutexLock& lock) {
  if (memory_.quarantine.orphans.empty()) return {};
  Vector<vm::Chunk*> orphans;
  orphans.swap(memory_.quarantine.orphans);
  Vector<bool> is_released;
  is_released.reserve(orphans.size());
  {
    const Flights::InFlight away(memory_.flights, lock);
    for (const vm::Chunk* orphan : orphans)
      is_released.push_back(memory_.mapper.release(orphan->handle).ok());
  }
  for (std::size_t i = 0; i < orphans.size(); ++i) {
    if (!is_released[i]) {
      memory_.quarantine.orphans.push_back(orphans[i]);
      continue;
    }
    memory_.chunks.handle_released(orphans[i]);
  }
  return {};
}

// --- giving back

// Gives back only complete memory, so without a wait, the oldest first.
Result<Bytes> Reclaimer::trim(MutexLock& lock, Bytes bytes_to_keep) {
  VPMM_TRY(sweep(lock, memory_.chunks.mapping_count()));
  VPMM_TRY(retry_orphans(lock));  // chunks that the sweep left without mapping
  Bytes released = 0;
  for (;;) {
    memory_.flights.wait_for_grant(lock);
    const Bytes held = memory_.held_bytes();
    if (held <= bytes_to_keep) return released;
    Region* from = nullptr;
    AddressRange idle;
    memory_.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
      idle = releasable(*free, held - bytes_to_keep);
      if (!idle.empty()) from = free;
      return from == nullptr;
    });
    if (from == nullptr) return released;
    VPMM_TRY_ASSIGN(const Bytes freed, release_idle(lock, idle, from));
    released += freed;
  }
}

// Returns whole chunks with a single mapping in a complete free region, side by side, about
// `wanted` bytes.
AddressRange Reclaimer::releasable(const Region& free, Bytes wanted) const {
  AddressRange idle;
  if (!free.stamp.is_complete()) return idle;
  memory_.chunks.for_each_inside(free.range, [&](const vm::Mapping& mapping) {
    if (idle.size >= wanted) return false;
    if (mapping.chunk->mappings > 1) return idle.empty();
    if (idle.empty()) idle.begin = mapping.at;
    idle.size += mapping.chunk->size;
    return true;
  });
  return idle;
}

// Counts also what lies beyond a chunk that is mapped twice: trim() gives back run by run.
Bytes Reclaimer::releasable_bytes(Bytes wanted) const {
  Bytes idle = 0;
  if (wanted == 0) return idle;
  memory_.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
    if (!free->stamp.is_complete()) return true;
    memory_.chunks.for_each_inside(free->range, [&](const vm::Mapping& mapping) {
      if (mapping.chunk->mappings == 1) idle += mapping.chunk->size;
      return idle < wanted;
    });
    return idle < wanted;
  });
  return idle;
}

Result<Bytes> Reclaimer::release_idle(MutexLock& lock, AddressRange idle, Region* free) {
  const Vector<vm::Mapping> mappings = memory_.chunks.inside(idle);
  Vector<bool> is_released(mappings.size(), false);
  Region* flying = memory_.index.detach(free, idle);
  Result<void> unmapped;
  {
    const Flights::InFlight away(memory_.flights, lock, Flights::FlightWork::unmaps);
    unmapped = memory_.mapper.unmap(idle);
    for (std::size_t i = 0; unmapped && i < mappings.size(); ++i)
      is_released[i] = memory_.mapper.release(mappings[i].chunk->handle).ok();
  }
  if (!unmapped) {
    memory_.index.attach_free(flying, {}, flying->age());
    return std::move(unmapped.error());
  }
  Bytes released = 0;
  using Fate = MappingObserver::Fate;
  for (std::size_t i = 0; i < mappings.size(); ++i)
    memory_.leave_place(*mappings[i].chunk, is_released[i] ? Fate::given_back : Fate::lives_on);
  memory_.chunks.unmap(idle);
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    if (!is_released[i]) {
      memory_.quarantine.orphans.push_back(mappings[i].chunk);
      continue;
    }
    released += mappings[i].chunk->size;
    ++memory_.counters.chunks_released;
    memory_.chunks.handle_released(mappings[i].chunk);
  }
  memory_.index.attach_hole(flying);
  return released;
}

void Reclaimer::release_everything() {
  Vector<AddressRange> mapped;
  Vector<vm::Chunk*> chunks;
  try {
    mapped.reserve(memory_.chunks.mapping_count());
    chunks.reserve(memory_.chunks.chunk_count());
  } catch (const std::bad_alloc&) {
    return;  // the system takes the memory with the process
  }
  memory_.index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
    if (region.state == region::RegionState::hole) return;
    memory_.chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      if (region.range.contains(mapping.at)) mapped.push_back(mapping.range());
    });
  });
  for (const AddressRange& range : mapped) {
    if (memory_.mapper.unmap(range)) memory_.chunks.unmap(range);
  }
  memory_.chunks.for_each_chunk([&](vm::Chunk& chunk) { chunks.push_back(&chunk); });
  for (vm::Chunk* chunk : chunks)
    if (chunk->handle_held && memory_.mapper.release(chunk->handle))
      memory_.chunks.handle_released(chunk);
  if (memory_.chunks.mapping_count() > 0) return;  // a reservation with mappings cannot be freed
  for (const AddressRange& reservation : memory_.reservations)
    if (!memory_.mapper.free_reservation(reservation)) return;
  memory_.reservations.clear();
}

}  // namespace vpmm::pool
