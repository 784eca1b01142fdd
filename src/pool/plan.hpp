// pool: a plan says what will satisfy one request, and at what price; it is decided before any driver call is made.
#pragma once

#include <cstdint>
#include <optional>
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

// An idle chunk that is larger than what is still wanted. It is given back to the driver, and made anew as two groups:
// one for the request, among the plan's creations, and one that stays free at the old address.
struct Split {
  Part part;  // the chunk
  vm::Mapping chunk;
  AddressRange left;  // what stays free: the front of the chunk, or its back
  Vector<Bytes> left_chunks;
};

// What a plan costs. docs/design/chunk-policy.md has the figures.
struct Price {
  std::uint64_t driver_us = 0;  // of the calls, in a busy process
  Bytes slack = 0;              // that the allocation will have beyond the request
  Bytes growth = 0;             // new memory
  std::uint64_t growth_us = 0;  // of `driver_us`, to create that
  bool has_waits = false;       // the caller's stream waits for others
};

// The allocation is `kept` and `mapped` side by side; `mapped` is filled from moves and creations, large chunks first.
// A plan without anything to map is a hit: it costs no driver call.
struct Plan {
  Bytes request = 0;  // 0: nobody asked, all of it is free
  Bytes slack = 0;    // the allocation is so much larger than the request
  Vector<Part> kept;  // neighbours, by address; what the caller's use of them waits for is in `waits`
  region::Region* hole = nullptr;
  AddressRange mapped;  // part of the hole; empty: a hit
  DevicePtr allocation{};
  Vector<time::StampPart> waits;
  Vector<Move> moves;
  std::optional<Split> split;
  Vector<Bytes> creates;
  Bytes blocked = 0;  // of the growth, what idle chunks would give that are too large and cannot be split yet

  bool is_hit() const { return mapped.empty(); }
  Bytes kept_bytes() const;
  Bytes moved_bytes() const;
  Bytes created_bytes() const;
  Bytes growth() const;          // created, less what a split gives
  std::uint64_t pieces() const;  // chunks that will be mapped
  bool is_complete() const;      // nothing of it is pending
  Price price() const;
};

// Why there is no plan.
struct NoPlan {
  enum class Reason { memory, address_space } reason = Reason::memory;
  Bytes missing = 0;
};

using Decision = std::variant<Plan, NoPlan>;

// "11 = keep 3 move 4 of [-10] split 8 create 2 create 1 slack 1 after 1 waits", in units of `unit`.
std::string to_string(const Plan& plan, Bytes unit);

}  // namespace vpmm::pool
