// SPDX-License-Identifier: Apache-2.0
// report: the report of a request that failed for want of memory, as text for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "driver/driver.hpp"
#include "settings/config.hpp"

namespace vpmm::report {

// A holder of memory, with its name for people: "stream 9", "weights".
struct Holding {
  std::string name;
  Bytes bytes = 0;
  std::uint64_t allocations = 0;
};

struct ArenaHolding {
  std::uint64_t id = 0;
  std::uint32_t tag = 0;
  bool is_pinned = false;
  bool is_released = false;
  Bytes held = 0;
  Bytes live = 0;
};

// The request as it was made.
struct FailedRequest {
  Bytes requested = 0;
  Bytes taken = 0;      // bytes of the pool that the request needs
  Bytes alignment = 0;  // 0: no more than all memory has
  std::string stream;
  std::string tag;  // empty: none
  std::uint64_t arena = 0;
  bool is_one_chunk = false;
  std::string reason;  // a clause: "2 MiB are missing"
};

// The pool's memory.
struct MemoryFigures {
  Holding live;          // requested bytes
  Bytes live_taken = 0;  // same in whole pages and blocks
  Bytes free = 0;        // mapped, unallocated
  Bytes pending = 0;     // part of free and small_free
  Bytes trapped = 0;     // part of free, in chunks used in part: cannot move
  Bytes movable = 0;     // in wholly idle chunks
  Bytes largest_free = 0;
  Bytes small_free = 0;  // in pages that small requests share
  Bytes leased = 0;
  Bytes parked = 0;     // kept for captured graphs
  Bytes suspended = 0;  // addresses without memory, in no other figure
  Bytes quarantined = 0;
  Bytes mapped = 0;
  std::uint64_t mappings = 0;
};

// Limits that the request may have met.
struct LimitsInForce {
  std::uint64_t max_mappings = 0;
  std::optional<Bytes> capacity;
  bool is_capacity_of_settings = true;  // false: a later call set it
  settings::Prefer prefer = settings::Prefer::balanced;
  bool is_capture_known = false;
  std::optional<driver::MemInfo> gpu;  // nullopt: unknown
};

// Largest first.
struct Holders {
  std::vector<Holding> by_tag;      // empty: no tags
  std::vector<Holding> by_library;  // empty: no libraries
  std::vector<Holding> by_stream;
  std::vector<Holding> pending_on;
  std::vector<ArenaHolding> arenas;
};

// Contents of the report.
struct Shortage {
  FailedRequest asked;
  MemoryFigures memory;
  LimitsInForce limits;
  Holders holders;
  std::string recording;  // file of a running recording; empty: none
};

// Several lines, without a line break at the end. The first makes sense alone; the last are advice.
std::string shortage_report(const Shortage& shortage);
// Lines with the holders of memory of a tag at its limit, and advice, behind a message.
std::string holders_report(const Shortage& shortage);
// Sentences, the most promising first.
std::vector<std::string> advice(const Shortage& shortage);

std::string_view first_line(std::string_view text);

}  // namespace vpmm::report
