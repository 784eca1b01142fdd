// SPDX-License-Identifier: Apache-2.0
// pool: a plan for one request, with its price, decided before any driver call.
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

// Range in one free region.
struct Part {
  region::Region* from = nullptr;
  AddressRange range;
  time::Stamp stamp;
};

// Idle chunks that leave their old address, which becomes a zombie with their stamp.
struct Move {
  Part part;
  Vector<vm::Mapping> chunks;  // by address
};

// Allocation = `kept` and `mapped` side by side, without the excess. Moves, then creations fill
// `mapped`, starting beside the kept part; the excess of the last piece stays free. Hit: `mapped`
// is empty; no driver call.
struct Plan {
  Bytes request = 0;  // 0: without a request, all of it becomes free
  Vector<Part> kept;  // neighbours, by address; their use requires `waits`
  region::Region* hole = nullptr;
  AddressRange mapped;
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
  std::uint64_t pieces() const;  // number of chunks to map
  bool is_complete() const;      // every part is complete
  // Microseconds of driver calls in a busy process. docs/design/chunk-policy.md has the figures.
  std::uint64_t driver_us() const;
};

struct NoPlan {
  enum class Reason { memory, address_space } reason = Reason::memory;
  Bytes missing = 0;
};

using Decision = std::variant<Plan, NoPlan>;

// Formats "11 = keep 3 move 4 of [-10] create 8 after 1 waits", in units of `unit`: 4 of the 15
// stay free.
std::string to_string(const Plan& plan, Bytes unit);

}  // namespace vpmm::pool
