// SPDX-License-Identifier: Apache-2.0
// pool: caller and size of a request.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "driver/types.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

constexpr Bytes kAddressSpace = Bytes{1} << 47;  // a larger request is out of memory

// The stream that orders a call. None: any-stream (the user names no stream).
using Stream = std::optional<driver::StreamHandle>;

// An arena of the program: memory that is kept together. The number is unique in the process. 0:
// no arena.
enum class ArenaId : std::uint64_t {};

// A request as a user makes it.
struct Request {
  Bytes bytes = 0;
  // A power of two. 0: the default (256 below a page, a page from there up; 512 in an arena).
  Bytes alignment = 0;
  Stream stream;
  ArenaId arena{};
  std::uint32_t tag = 0;  // for events, layouts and reports; 0: the one that is entered, or none
  std::uint32_t library = 0;      // the tag if none is entered; 0: none
  bool one_chunk = false;         // whole pages, backed by one physical chunk of their own
  std::uint32_t stack = 0;        // of the call, for a recording; 0: not known
  bool is_guarded = false;        // VPMM_GUARD meant this one
  std::uint32_t guard_stack = 0;  // of the call, if so; 0: not known

  // Tells if the cache of the stream may serve the request.
  bool is_plain() const { return tag == 0 && library == 0 && !one_chunk && arena == ArenaId{}; }
};

// State of the caller's stream: may it be given work (events, waits) right now?
enum class Standing {
  ordinary,
  capturing,  // stream in capture: only complete memory, no queued work
  blocked,    // legacy stream while a blocking stream captures, or an invalidated capture: likewise
};

struct Caller {
  std::optional<driver::StreamHandle> stream;  // nullopt: any-stream
  time::Timeline* timeline = nullptr;          // of `stream`; null: any-stream
  Standing standing = Standing::ordinary;
  std::uint64_t capture = 0;      // capture that `stream` is in; 0: none
  std::uint32_t guard_stack = 0;  // of the free of a guarded allocation; 0: not known
  // Timeline with pending memory that the caller may use without a wait.
  std::optional<time::TimelineId> own() const {
    if (timeline == nullptr || standing != Standing::ordinary) return std::nullopt;
    return timeline->id;
  }
  bool may_queue() const { return stream.has_value() && standing == Standing::ordinary; }
};

// Note [Own chunks]
// Memory that others than its user may reach, or that must go back whole, shares no chunk with
// another allocation: sharing it, or giving it back, then affects no other user. A hit takes wholly
// idle chunks side by side; their sum may exceed the request by an eighth, and belongs to the
// allocation. A plan skips idle chunks larger than the missing bytes, and cuts the last new chunk
// to size. Freed, it is ordinary memory.
//
// An exact request has as few chunks as if all were new, however often its memory goes away and
// comes back: idle chunks of other sizes do not serve it.
//
// Idle parts of partly used chunks do not serve such a request. Wholly idle chunks that fit nowhere
// make room for new ones: beyond early growth at once (Pool::give_way), and, where memory is short,
// as many as needed (Pool::make_room).
enum class Chunks {
  shared,  // cut anywhere
  own,     // whole chunks
  one,     // one chunk of exactly that size
  exact,   // whole chunks of exactly that size: of the largest size, and one for the rest
};

// Most bytes of whole chunks beyond a request: an eighth. Halved: fewer idle chunks serve again;
// doubled: more is lost while the allocation lives.
constexpr Bytes kExcessShare = 8;

struct PageRequest {
  Bytes requested = 0;    // as the user said
  Bytes size = 0;         // at least a page; in whole grains, or whole pages for own chunks
  Bytes alignment = 0;    // at least Tuning::grain_alignment()
  bool goes_low = false;  // Note [Shared pages go low]
  Chunks chunks = Chunks::shared;
};

}  // namespace vpmm::pool
