// region: one run of address space in one state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

enum class RegionState : std::uint8_t {
  hole,       // reserved, nothing mapped                                   [*n]
  free,       // mapped, owned by nobody, usable once its stamp allows      [-n]
  allocated,  // mapped, owned by a user                                    [n]
  zombie,     // the old mapping of chunks that moved, until its stamp allows unmapping  [~n]
  in_flight,  // taken out by a request that is mapping or unmapping it     [#n]
};

// Whether a stamp of theirs means anything.
constexpr bool has_stamp(RegionState state) {
  return state == RegionState::free || state == RegionState::zombie;
}

// Whose allocation it is.
struct Owner {
  Bytes requested = 0;  // what the user asked for; the region is this rounded up
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream
  Vector<time::TimelineId> other_uses;       // streams named with record_use
  std::uint64_t capture = 0;                 // allocated in this stream capture; 0: none
};

struct Region;
struct Reservation;   // known to RegionIndex alone
struct TimelineFile;  // likewise

// A region's place in an ordered list of regions.
struct Link {
  Region* previous = nullptr;
  Region* next = nullptr;
  std::uint64_t number = 0;  // what the list is in order of
};

// A node of RegionIndex. RegionIndex alone changes its fields, except owner.other_uses, holder,
// has_own_chunks, asked, and by_age of an allocated region, by which the room above links it. What
// becomes of an allocated region has no holder and no own chunks. In flight it remembers stamp and
// age of what it was cut from.
//
// With very many regions every line of a node is a cache miss, so fields that are used together
// stand together: first what an operation on a neighbour looks at.
struct alignas(kCacheLine) Region {
  AddressRange range;
  Region* previous = nullptr;  // neighbours in the same reservation, by address
  Region* next = nullptr;
  Reservation* reservation = nullptr;  // the one they share
  std::uint64_t age = 0;               // free, zombie: order of becoming so, smaller is older
  void* holder = nullptr;              // allocated: what a room above keeps about it
  RegionState state = RegionState::hole;
  bool has_own_chunks = false;   // allocated: no other allocation touches them
  std::uint32_t size_place = 0;  // free, hole: where in the heap of its size

  time::Stamp stamp;  // free, zombie: what must have finished
  Link by_age;        // likewise; allocated: like holder
  struct {
    TimelineFile* file = nullptr;  // null: no part of the stamp is filed here
    Link by_sequence;
  } parts[2];  // likewise: the parts of the stamp, in any order

  Owner owner;  // allocated
  // Allocated: what its present user asked for, where a room above passes it on; like holder.
  Bytes asked VPMM_GUARDED_BY(cache_lock) = 0;
};

inline bool is_free(const Region* region) {
  return region != nullptr && region->state == RegionState::free;
}

}  // namespace vpmm::region
