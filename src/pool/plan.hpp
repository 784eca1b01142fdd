// pool: a plan lists the driver calls that will satisfy one request; it is decided before any is made.
#pragma once

#include <optional>
#include <string>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"
#include "time/stamp.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// Idle chunks that leave their old address.
struct Move {
  region::Region* from = nullptr;
  AddressRange range;          // whole mappings inside `from`
  time::Stamp stamp;           // of `from`: the old mapping becomes a zombie with it
  Vector<vm::Mapping> chunks;  // by address
};

// The free back, or front, of a chunk that is partly in use. Note [Ends of chunks in use]
struct End {
  region::Region* from = nullptr;
  AddressRange range;   // part of `from`
  time::Stamp stamp;    // of `from`
  vm::Mapping mapping;  // where the chunk is now

  Bytes rest() const { return mapping.chunk->size - range.size; }
};

// The new span is `kept` and `mapped` side by side, without the rests of chunks of which only an end is used. `mapped`
// is filled from `first`, moves, creates and `last`, in that order.
struct Plan {
  Bytes request = 0;               // 0: nobody asked, all of the span is free
  region::Region* kept = nullptr;  // a free region that is extended in place; none: all of the span is mapped anew
  AddressRange kept_range;
  time::Stamp kept_stamp;
  region::Region* hole = nullptr;
  AddressRange mapped;     // part of the hole
  DevicePtr allocation{};  // where the request begins in the span
  Vector<time::StampPart> waits;
  std::optional<End> first;  // whose back the span begins with
  Vector<Move> moves;
  Vector<Bytes> creates;
  std::optional<End> last;  // whose front the span ends with

  Bytes moved_bytes() const;
  Bytes created_bytes() const;
  std::uint64_t pieces() const;   // chunks that will be mapped
  Bytes end_chunk_bytes() const;  // of the chunks whose ends are taken
  Bytes rest_before() const { return first ? first->rest() : 0; }
  Bytes rest_behind() const { return last ? last->rest() : 0; }
  // The stamps of what leaves its place. That of `kept` comes in addition for whoever uses the span.
  Vector<time::Stamp> moved_stamps() const;
};

// "11 = keep 3 back 1 of 2 move 4 of [-10] create 2 front 1 of 8 after 1 waits", in units of `unit`.
std::string to_string(const Plan& plan, Bytes unit);

}  // namespace vpmm::pool
