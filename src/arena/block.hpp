// arena: a stretch of memory that an arena has, and the blocks that it is divided into.
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "time/stamp.hpp"

namespace vpmm::arena {

// A stream, as far as arenas are concerned: what was freed there serves the same key again at once.
enum class StreamKey : std::uint64_t {};
constexpr StreamKey kEverybody{};  // no stream's: it serves all

// What blocks begin at, and are whole multiples of.
constexpr Bytes kGrain = 512;

// Memory that the arena was given as a whole, and gives back as a whole.
struct Stretch {
  AddressRange range;
  std::uint64_t live = 0;  // blocks in it
};

// Who has a block.
struct BlockUse {
  Bytes requested = 0;
  StreamKey key{};
  std::optional<time::TimelineId> timeline;  // of the stream; none: it is not known
};

// Blocks tile their stretch without gap or overlap.
struct ArenaBlock {
  AddressRange range;
  Stretch* stretch = nullptr;
  // Live: whose it is. Free: whom it serves before others.
  StreamKey key{};
  bool is_live = false;
  // --- live ---
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;
  Vector<time::TimelineId> other_uses;  // streams named with record_use
  // --- free ---
  bool is_waiting =
      false;          // it serves nobody before its stamp is complete, not even its own stream
  time::Stamp stamp;  // what must have finished before others than its own stream may have it
};

}  // namespace vpmm::arena
