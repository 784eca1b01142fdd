// pool: who asks for memory, and for how much.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "driver/types.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

// Whether the caller's stream may be given work (events, waits) right now.
enum class Standing {
  ordinary,
  capturing,  // its stream is being captured: only complete memory, nothing queued
  blocked,    // the legacy stream while a blocking stream captures, or an invalidated capture: likewise
};

// Who asks.
struct Caller {
  std::optional<driver::StreamHandle> stream;  // none: any-stream
  time::Timeline* timeline = nullptr;          // of `stream`; null: any-stream
  Standing standing = Standing::ordinary;
  std::uint64_t capture = 0;  // the capture `stream` is in; 0: none
  // The timeline whose pending memory the caller may use without waiting.
  std::optional<time::TimelineId> own() const {
    if (timeline == nullptr || standing != Standing::ordinary) return std::nullopt;
    return timeline->id;
  }
  bool may_queue() const { return stream.has_value() && standing == Standing::ordinary; }
};

struct PageRequest {
  Bytes requested = 0;        // as the user said
  Bytes size = 0;             // at least a page, rounded to whole grains
  Bytes alignment = 0;        // at least Pool::grain_alignment()
  bool goes_low = false;      // Note [Shared pages go low]
  bool in_one_chunk = false;  // one physical chunk of just that size, which nothing else uses
};

}  // namespace vpmm::pool
