// context: figures, pictures, listeners and recordings of a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "context/drawing.hpp"
#include "context/entrance.hpp"
#include "context/parts.hpp"
#include "context/totals.hpp"
#include "report/events.hpp"

namespace vpmm::context {

// What a pool prints when it ends.
enum class AtEnd { nothing, summary };

class Reports {
 public:
  Reports(Parts& parts, Entrance& entrance, Totals& totals, const Drawing& drawing, AtEnd at_end)
      : parts_(parts),
        device_(parts.device),
        entrance_(entrance),
        totals_(totals),
        drawing_(drawing),
        has_summary_(at_end == AtEnd::summary) {}

  observe::Statistics statistics() const;
  void reset_peaks();
  // Prints a summary of a pool that was used, if VPMM_STATS asks for one and the lock is free.
  void summarize() const noexcept;
  observe::PoolSnapshot snapshot() const;
  // At one moment, except that warm calls go on meanwhile.
  report::Layout layout() const;
  // The first broken invariant of any structure inside; empty: all hold.
  std::string validate() const;

  // Tells of events of these kinds from now on, in their order. Returns the listener's number.
  // While allocations or frees are asked for, every call takes the pool's lock.
  std::uint64_t add_event_callback(report::EventKinds kinds, report::EventCallback callback);
  // After it returns the callback is not called any more. An event callback must not call it.
  Result<void> remove_event_callback(std::uint64_t id);

  // Writes events to a file that `vpmm replay` reads (docs/reference/recording.md).
  Result<void> start_recording(const std::string& path,
                               const settings::RecordOptions& options = {});
  Result<void> stop_recording();
  // Writes a text of the program between the calls before and after it, if a recording runs.
  void mark(const std::string& text);

 private:
  observe::RecordingHeader header() const;
  Result<void> begin_recording(const std::shared_ptr<observe::TraceWriter>& writer,
                               std::uint64_t now_ns);

  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
  Totals& totals_;
  const Drawing& drawing_;
  const bool has_summary_;
  Mutex starting_recordings_;  // before the pool's lock: a file may take long to open
};

}  // namespace vpmm::context
