// pool: a plan lists the driver calls that will satisfy one request; it is decided before any is made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "region/region.hpp"
#include "time/stamp.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// Idle chunks that leave their old address.
struct Move {
  region::Region* from = nullptr;
  AddressRange range;               // whole mappings inside `from`
  time::Stamp stamp;                // of `from`: the old mapping becomes a zombie with it
  std::vector<vm::Mapping> chunks;  // by address
};

// The new span is `kept` and `mapped` side by side; `mapped` is filled from moves, then creates, in that order.
struct Plan {
  Bytes request = 0;
  region::Region* kept = nullptr;  // a free region that is extended in place; none: all of the span is mapped anew
  AddressRange kept_range;
  time::Stamp kept_stamp;
  region::Region* hole = nullptr;
  AddressRange mapped;     // part of the hole
  DevicePtr allocation{};  // where the request begins in the span
  std::vector<time::StampPart> waits;
  std::vector<Move> moves;
  std::vector<Bytes> creates;

  AddressRange span() const {
    if (kept == nullptr) return mapped;
    const bool front = kept_range.begin < mapped.begin;
    return {front ? kept_range.begin : mapped.begin, kept_range.size + mapped.size};
  }
  Bytes moved_bytes() const;
  Bytes created_bytes() const;
};

// "11 = keep 3 + move 8 of [-10] + create 0, wait 0", in units of `unit`.
std::string to_string(const Plan& plan, Bytes unit);

}  // namespace vpmm::pool
