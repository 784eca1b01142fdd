// SPDX-License-Identifier: Apache-2.0
// pool: peaks and invariants of a pool's memory.
#include "pool/memory.hpp"

#include <algorithm>

#include "base/message.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

void Memory::note_peaks(std::uint64_t undone_chunks, Bytes undone_bytes) {
  counters.peak_mapped_bytes = std::max(counters.peak_mapped_bytes, held_bytes() + undone_bytes);
  note_mappings(undone_chunks);
}

void Memory::note_mappings(std::uint64_t undone_chunks) {
  const std::uint64_t held = chunks.chunk_count() + others.mappings;
  counters.peak_chunks = std::max(counters.peak_chunks, held + undone_chunks);
  counters.peak_mappings = std::max(counters.peak_mappings, held_mappings());
}

void Memory::reset_peaks() {
  counters.peak_mapped_bytes = held_bytes();
  counters.peak_chunks = chunks.chunk_count() + others.mappings;
  counters.peak_mappings = held_mappings();
}

Bytes Memory::movable_bytes(FunctionRef<bool(const Region&, AddressRange part)> is_idle) const {
  Bytes bytes = 0;
  const vm::Chunk* chunk = nullptr;  // last chunk visited
  bool is_counted = false;
  index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
    if (region.state == RegionState::hole || region.state == RegionState::zombie) return;
    chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      const AddressRange part{
          std::max(region.range.begin, mapping.at),
          std::min(region.range.end(), mapping.end()) - std::max(region.range.begin, mapping.at)};
      const bool is_used = region.state == RegionState::in_flight ||
                           (region.state == RegionState::allocated && !is_idle(region, part));
      const bool is_next = std::exchange(chunk, mapping.chunk) != mapping.chunk;
      if (!is_next && (!is_used || !is_counted)) return;
      if (is_next && !is_used) bytes += mapping.chunk->size;
      if (!is_next) bytes -= mapping.chunk->size;
      is_counted = !is_used;
    });
  });
  return bytes;
}

void Memory::fill(observe::Statistics& statistics) const {
  statistics = counters;
  statistics.mapped_bytes = mapped_bytes();
  statistics.live_bytes = index.requested_bytes();
  statistics.allocated_bytes = index.bytes(RegionState::allocated);
  statistics.suspended_bytes = suspended_bytes;
  statistics.free_bytes = idle_bytes();
  statistics.trapped_bytes = chunks.trapped_bytes();
  statistics.pending_bytes = index.pending_bytes();
  statistics.largest_free_bytes = index.largest_free();
  for (const AddressRange& reservation : reservations)
    statistics.reserved_bytes += reservation.size;
  statistics.hole_bytes = index.bytes(RegionState::hole);
  statistics.zombie_bytes = index.bytes(RegionState::zombie);
  statistics.quarantined_bytes = quarantine.bytes();
  statistics.live_allocations = index.count(RegionState::allocated);
  statistics.free_regions = index.count(RegionState::free);
  statistics.zombie_regions = index.count(RegionState::zombie);
  statistics.chunks = chunks.chunk_count();
  statistics.mappings = chunks.mapping_count();
}

std::string Memory::validate() const {
  if (std::string broken = index.validate(); !broken.empty()) return broken;
  if (std::string broken = chunks.validate(); !broken.empty()) return broken;
  if (!flights.empty()) return {};  // index and chunks disagree during a flight
  std::string broken;
  std::uint64_t mappings = 0;
  Bytes suspended = 0;
  HashMap<const vm::Chunk*, Bytes> partly_used;
  index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
    if (!broken.empty() || region.state == RegionState::hole) return;
    if (region.state == RegionState::in_flight) {
      broken = message_of("in flight without a flight: {}", index.picture());
      return;
    }
    if (region.is_suspended) {
      suspended += region.range.size;
      mappings += chunks.inside(region.range).size();  // left by an undo that the driver refused
      return;
    }
    Bytes mapped = 0;
    chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      const bool is_whole = region.range.contains(mapping.range());
      const bool counts = region.state != RegionState::zombie;
      if (!counts && !is_whole)
        broken =
            message_of("a chunk at {:#x} begins or ends inside the zombie of {} bytes at {:#x}",
                       to_integer(mapping.at), region.range.size, to_integer(region.range.begin));
      if (counts != (mapping.chunk->place == mapping.at))
        broken = message_of("the chunk at {:#x} is said to be at {:#x}", to_integer(mapping.at),
                            to_integer(mapping.chunk->place));
      const Bytes bytes =
          std::min(region.range.end(), mapping.end()) - std::max(region.range.begin, mapping.at);
      if (region.state == RegionState::allocated && !is_whole) partly_used[mapping.chunk] += bytes;
      if (region.state == RegionState::allocated && !is_whole && region.has_own_chunks)
        broken = message_of(
            "the chunk at {:#x} is not only of the allocation at {:#x} that has own chunks",
            to_integer(mapping.at), to_integer(region.range.begin));
      if (region.range.contains(mapping.at)) ++mappings;
      mapped += bytes;
    });
    if (broken.empty() && mapped != region.range.size)
      broken = message_of("{} of the {} bytes of region [{}] are mapped", mapped, region.range.size,
                          index.picture());
  });
  if (!broken.empty()) return broken;
  if (suspended != suspended_bytes)
    return message_of("{} bytes are suspended, {} counted", suspended, suspended_bytes);
  if (mappings != chunks.mapping_count())
    return message_of("{} mappings in regions, {} in all", mappings, chunks.mapping_count());
  chunks.for_each_chunk([&](const vm::Chunk& chunk) {
    const auto found = partly_used.find(&chunk);
    const Bytes used = found == partly_used.end() ? 0 : found->second;
    if (used != chunk.partly_used)
      broken = message_of("{} bytes of the chunk at {:#x} are used in part, {} counted", used,
                          to_integer(chunk.place), chunk.partly_used);
  });
  return broken;
}

}  // namespace vpmm::pool
