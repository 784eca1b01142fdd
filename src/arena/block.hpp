// SPDX-License-Identifier: Apache-2.0
// arena: stretches of memory and the blocks that divide them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "time/stamp.hpp"

namespace vpmm::arena {

// Stream of an arena's user. A block freed with a key serves the same key at once.
enum class StreamKey : std::uint64_t {};
constexpr StreamKey kEverybody{};  // serves all streams

// Unit of size and alignment of blocks.
constexpr Bytes kGrain = 512;

// Memory that an arena gets and gives back as a whole.
struct Stretch {
  AddressRange range;
  std::uint64_t live = 0;     // blocks in it
  bool is_suspended = false;  // Note [Suspended arenas]
};

// User of a block.
struct BlockUse {
  Bytes requested = 0;
  StreamKey key{};
  std::optional<time::TimelineId> timeline;  // of the stream; nullopt: unknown
};

// Blocks tile their stretch without gap or overlap.
struct ArenaBlock {
  AddressRange range;
  Stretch* stretch = nullptr;
  // Live: the user. Free: the stream that the block serves first.
  StreamKey key{};
  bool is_live = false;
  // --- live ---
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;
  Vector<time::TimelineId> other_uses;  // by record_use()
  // --- free ---
  bool is_waiting = false;  // serves no stream before its stamp is complete
  time::Stamp stamp;        // complete: work of all streams on it is over
};

}  // namespace vpmm::arena
