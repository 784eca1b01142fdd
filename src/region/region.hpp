// region: one run of address space in one state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/address.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

enum class RegionState : std::uint8_t {
  hole,       // reserved, nothing mapped                                   [*n]
  free,       // mapped, owned by nobody, usable once its stamp allows      [-n]
  allocated,  // mapped, owned by a user                                    [n]
  zombie,     // the old mapping of chunks that moved, until its stamp allows unmapping  [~n]
  in_flight,  // taken out by a request that is mapping or unmapping it     [#n]
};

// Whose allocation it is.
struct Tenant {
  Bytes requested = 0;                       // what the user asked for; the region is this rounded up
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream
  std::vector<time::TimelineId> other_uses;  // streams named with record_use
  std::uint64_t capture = 0;                 // allocated in this stream capture; 0: none
};

struct Reservation;  // known to RegionIndex alone

// A node of RegionIndex. RegionIndex alone changes its fields, except tenant.other_uses and holder; what becomes of an
// allocated region has no holder. In flight it remembers stamp and age of what it was cut from.
struct Region {
  AddressRange range;
  RegionState state = RegionState::hole;
  time::Stamp stamp;           // free, zombie: what must have finished
  std::uint64_t age = 0;       // free, zombie: order of becoming so, smaller is older
  Tenant tenant;               // allocated
  void* holder = nullptr;      // allocated: what a room above keeps about it
  Region* previous = nullptr;  // neighbours in the same reservation, by address
  Region* next = nullptr;
  Reservation* reservation = nullptr;  // the one they share
};

}  // namespace vpmm::region
