// SPDX-License-Identifier: Apache-2.0
// context: figures, pictures, listeners and recordings of a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/host_memory.hpp"
#include "context/drawing.hpp"
#include "context/entrance.hpp"
#include "context/parts.hpp"
#include "context/totals.hpp"
#include "report/events.hpp"

namespace vpmm::context {

// Output at the end of a pool.
enum class AtEnd { nothing, summary };

// Figures of a pool for other processes. Texts are the driver's and the program's.
struct FiguresToTell {
  std::string device_name;  // empty: the driver does not say
  Bytes device_bytes = 0;   // 0: likewise
  std::optional<Bytes> capacity;
  observe::Statistics statistics;
  // Requested bytes of live memory.
  report::Tags::Sums by_tag;
  report::Tags::Sums by_library;
};

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
  // nullopt: another call has the pool's lock. Asks the driver for the device's name and memory.
  std::optional<FiguresToTell> try_figures() const;
  void reset_peaks();
  // Prints a summary of a used pool, if VPMM_STATS asks for one and the lock is free.
  void summarize() const noexcept;
  observe::PoolSnapshot snapshot() const;
  // State of one moment, except for warm calls meanwhile.
  report::Layout layout() const;
  // The first broken invariant as text; empty if all hold.
  // Sentences about guarded allocations in or near `address`. unsupported: VPMM_GUARD is off.
  Result<std::string> explain(DevicePtr address) const;
  std::string validate() const;

  // Calls back for events of these kinds, in their order. Returns the listener's number. A listener
  // for allocations or frees makes every call take the pool's lock.
  std::uint64_t add_event_callback(report::EventKinds kinds, report::EventCallback callback);
  // Ends all calls of the callback. An event callback must not call it.
  Result<void> remove_event_callback(std::uint64_t id);

  // Writes events to a file that `vpmm replay` reads (docs/reference/recording.md).
  Result<void> start_recording(const std::string& path,
                               const settings::RecordOptions& options = {});
  Result<void> stop_recording();
  // Writes a text of the program into a running recording, in the order of calls.
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
  Mutex starting_recordings_;  // taken before the pool's lock: opening a file may take long
};

}  // namespace vpmm::context
