// pool: caller and size of a request.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "driver/types.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

// Right of the caller's stream to be given work (events, waits) now.
enum class Standing {
  ordinary,
  capturing,  // stream in capture: only complete memory, no queued work
  blocked,    // legacy stream while a blocking stream captures, or an invalidated capture: likewise
};

struct Caller {
  std::optional<driver::StreamHandle> stream;  // nullopt: any-stream
  time::Timeline* timeline = nullptr;          // of `stream`; null: any-stream
  Standing standing = Standing::ordinary;
  std::uint64_t capture = 0;  // capture that `stream` is in; 0: none
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
// Idle parts of partly used chunks do not serve such a request. Wholly idle chunks that fit nowhere
// make room for new ones: beyond early growth at once (Pool::give_way), and, where memory is short,
// as many as needed (Pool::make_room).
enum class Chunks {
  shared,  // cut anywhere
  own,     // whole chunks
  one,     // one chunk of exactly that size
};

struct PageRequest {
  Bytes requested = 0;    // as the user said
  Bytes size = 0;         // at least a page; in whole grains, or whole pages for own chunks
  Bytes alignment = 0;    // at least Pool::grain_alignment()
  bool goes_low = false;  // Note [Shared pages go low]
  Chunks chunks = Chunks::shared;
};

}  // namespace vpmm::pool
