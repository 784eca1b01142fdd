// SPDX-License-Identifier: Apache-2.0
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
  hole,       // reserved, not mapped                                             [*n]
  free,       // mapped, without owner, usable once its stamp allows              [-n]
  allocated,  // mapped, owned by a user                                          [n]
  zombie,     // old mapping of moved chunks, until its stamp allows unmapping    [~n]
  in_flight,  // taken out by a request that is mapping or unmapping it           [#n]
};

// Tells if regions in this state have a stamp.
constexpr bool has_stamp(RegionState state) {
  return state == RegionState::free || state == RegionState::zombie;
}

struct Owner {
  Bytes requested = 0;  // bytes the user asked for; the region is this rounded up
  std::optional<time::TimelineId> timeline;  // of the allocating stream; nullopt: any-stream
  Vector<time::TimelineId> other_uses;       // streams named with record_use
  std::uint64_t capture = 0;                 // stream capture of the allocation; 0: none
};

struct Region;
struct Reservation;  // defined for RegionIndex only
struct TimelineFile;

struct ListLink {
  Region* previous = nullptr;
  Region* next = nullptr;
  std::uint64_t number = 0;  // the list's order
};

// A node of RegionIndex. RegionIndex alone changes its fields, except owner.other_uses, holder,
// has_own_chunks, is_suspended, asked, and by_age of an allocated region, by which the room above
// links it. What becomes of an allocated region has no holder and no own chunks. In flight it
// remembers stamp and age of what it was cut from.
//
// With very many regions every line of a node is a cache miss, so fields used together stand
// together: first those that an operation on a neighbour reads.
struct alignas(kCacheLine) Region {
  AddressRange range;
  Region* previous = nullptr;  // neighbours in the same reservation, by address
  Region* next = nullptr;
  Reservation* reservation = nullptr;  // of this region and its neighbours
  void* holder = nullptr;              // allocated: record of a room above
  // Allocated: bytes its present user asked for, where a room above passes it on; like holder.
  Bytes asked VPMM_GUARDED_BY(cache_lock) = 0;
  RegionState state = RegionState::hole;
  bool has_own_chunks = false;   // allocated: no other allocation touches its chunks
  bool is_suspended = false;     // allocated: nothing is mapped, Note [Suspended memory]
  std::uint32_t size_place = 0;  // free, hole: place in the heap of its size

  time::Stamp stamp;  // free, zombie: what must have finished
  ListLink by_age;    // likewise, by the order of becoming so; allocated: like holder
  struct {
    TimelineFile* file = nullptr;  // null: no part of the stamp is filed here
    ListLink by_sequence;
  } parts[2];  // likewise: parts of the stamp, in any order

  Owner owner;  // allocated

  // Free, zombie, in flight: smaller is older. 0: a hole.
  std::uint64_t age() const { return by_age.number; }
};

inline bool is_free(const Region* region) {
  return region != nullptr && region->state == RegionState::free;
}

}  // namespace vpmm::region
