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

// A holder of memory, by its name for people: "stream 9", "weights".
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

// All that the report tells.
struct Shortage {
  // --- the request ---
  Bytes requested = 0;
  Bytes taken = 0;  // bytes of the pool that the request needs
  std::string stream;
  std::string tag;  // empty: none
  std::uint64_t arena = 0;
  bool is_one_chunk = false;
  std::string reason;  // a clause: "2 MiB are missing"
  // --- the pool ---
  Holding live;          // as asked for
  Bytes live_taken = 0;  // the same in whole pages and blocks
  Bytes free = 0;        // mapped and nobody's
  Bytes pending = 0;     // part of that, and of what is free in small pages
  Bytes trapped = 0;     // part of that, in chunks that are used in part: it cannot move
  Bytes movable = 0;     // in chunks that are wholly idle
  Bytes largest_free = 0;
  Bytes small_free = 0;  // in pages that small requests share
  Bytes leased = 0;
  Bytes parked = 0;  // kept for captured graphs
  Bytes quarantined = 0;
  Bytes mapped = 0;
  std::uint64_t mappings = 0;
  std::uint64_t max_mappings = 0;
  std::optional<Bytes> capacity;
  settings::Prefer prefer = settings::Prefer::balanced;
  bool is_capture_known = false;
  std::string recording;  // the file that is being written; empty: none
  // --- the GPU ---
  std::optional<driver::MemInfo> gpu;  // none: the driver did not say
  // --- holders of memory, largest first ---
  std::vector<Holding> by_tag;  // empty: nothing is tagged
  std::vector<Holding> by_stream;
  std::vector<Holding> pending_on;
  std::vector<ArenaHolding> arenas;
};

// Several lines. The first makes sense alone; the last ones say what to try. No line break at the
// end.
std::string shortage_report(const Shortage& shortage);
// Advice, a sentence each, the most promising first.
std::vector<std::string> advice(const Shortage& shortage);

std::string_view first_line(std::string_view text);

}  // namespace vpmm::report
