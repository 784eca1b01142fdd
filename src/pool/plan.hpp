// pool: a plan says what will satisfy one request, and at what price; it is decided before any
// driver call is made.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"
#include "time/stamp.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// Whole chunks, side by side in one free region.
struct Part {
  region::Region* from = nullptr;
  AddressRange range;
  time::Stamp stamp;  // of `from`
};

// Idle chunks that leave their old address, which becomes a zombie with their stamp.
struct Move {
  Part part;
  Vector<vm::Mapping> chunks;  // by address
};

// The allocation is `kept` and `mapped` side by side. `mapped` is filled from moves and creations,
// in this order from the side of what is kept; the last piece may be more than the request needs,
// and what is too much stays free. A plan without anything to map is a hit: it costs no driver
// call.
struct Plan {
  Bytes request = 0;  // 0: nobody asked, all of it is free
  Vector<Part>
      kept;  // neighbours, by address; what the caller's use of them waits for is in `waits`
  region::Region* hole = nullptr;
  AddressRange mapped;  // part of the hole; empty: a hit
  DevicePtr allocation{};
  Vector<time::StampPart> waits;
  Vector<Move> moves;
  Vector<Bytes> creates;

  bool is_hit() const { return mapped.empty(); }
  AddressRange range() const { return {allocation, request}; }
  bool is_mapped_in_front() const {
    return !kept.empty() && mapped.begin < kept.front().range.begin;
  }
  Bytes kept_bytes() const;
  Bytes moved_bytes() const;
  Bytes growth() const;          // bytes of new chunks
  std::uint64_t pieces() const;  // chunks that will be mapped
  bool is_complete() const;      // nothing of it is pending
  // Microseconds of driver calls, in a busy process. docs/design/chunk-policy.md has the figures.
  std::uint64_t driver_us() const;
};

// Why there is no plan.
struct NoPlan {
  enum class Reason { memory, address_space } reason = Reason::memory;
  Bytes missing = 0;
};

using Decision = std::variant<Plan, NoPlan>;

// "11 = keep 3 move 4 of [-10] create 8 after 1 waits", in units of `unit`: 4 of the 15 stay free.
std::string to_string(const Plan& plan, Bytes unit);

}  // namespace vpmm::pool
