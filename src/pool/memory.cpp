// pool: peaks and invariants of what a pool has.
#include "pool/memory.hpp"

#include <algorithm>

#include "base/message.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

void Memory::note_peaks(std::uint64_t undone_chunks, Bytes undone_bytes) {
  counters.peak_mapped_bytes = std::max(counters.peak_mapped_bytes, held_bytes() + undone_bytes);
  counters.peak_chunks = std::max(counters.peak_chunks, chunks.chunk_count() + undone_chunks);
  counters.peak_mappings = std::max(counters.peak_mappings, chunks.mapping_count());
}

void Memory::reset_peaks() {
  counters.peak_mapped_bytes = held_bytes();
  counters.peak_chunks = chunks.chunk_count();
  counters.peak_mappings = chunks.mapping_count();
}

std::string Memory::validate() const {
  if (std::string broken = index.validate(); !broken.empty()) return broken;
  if (std::string broken = chunks.validate(); !broken.empty()) return broken;
  if (!flights.empty()) return {};  // the two change hands while something is in flight
  std::string broken;
  index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
    if (!broken.empty()) return;
    if (region.state == RegionState::in_flight) {
      broken = message_of("in flight without a flight: {}", index.picture());
      return;
    }
    DevicePtr reached = region.range.begin;
    Bytes mapped = 0;
    chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      if (mapping.at != reached)
        broken = message_of("a chunk at {:#x} begins or ends inside a region of {} bytes at {:#x}",
                            to_integer(mapping.at), region.range.size, to_integer(region.range.begin));
      const bool counts = region.state != RegionState::zombie;
      if (counts != (mapping.chunk->place == mapping.at))
        broken = message_of("the chunk at {:#x} is said to be at {:#x}", to_integer(mapping.at),
                            to_integer(mapping.chunk->place));
      reached = mapping.range().end();
      mapped += mapping.chunk->size;
    });
    const Bytes expected = region.state == RegionState::hole ? 0 : region.range.size;
    if (broken.empty() && mapped != expected)
      broken = message_of("{} of the {} bytes of region [{}] are mapped", mapped, expected, region.range.size);
  });
  return broken;
}

}  // namespace vpmm::pool
