// SPDX-License-Identifier: Apache-2.0
// observe: writes the events of a running program to a file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/result.hpp"
#include "observe/event_queue.hpp"
#include "observe/recording_sink.hpp"
#include "observe/stack_table.hpp"

namespace vpmm::observe {

// Channel of a pool for all its recordings. Lives as long as the pool: a thread without the pool's
// lock may still put an event in when a recording ends.
struct RecordingChannel {
  EventQueue queue;
  StackTable stacks;
  std::atomic<bool> is_in_use{false};  // by a recording, with a thread that takes out
};

// Tells if a recording of this name is lines.
bool is_csv(const std::string& path);

// A recording. Thread-safe. The file is readable at any time: a thread writes the queue as soon as
// 1024 events wait, or a second later. In a forked child only the destructor may be called; it has
// no effect.
class TraceWriter {
 public:
  // Creates or replaces the file: lines for names that end in .csv or .csv.gz, else blocks.
  // `now_ns`: time 0 of the file. Opens the queue; writes no event before begin(). Requires: the
  // channel is not in use. ErrorCode::file_in_use: another recording writes the file; bad_file: not
  // created.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path, std::uint64_t now_ns,
                                                     std::shared_ptr<RecordingChannel> channel,
                                                     const RecordingOptions& options = {});
  ~TraceWriter();  // closes the file, and logs an unreported error
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  const std::string& path() const noexcept;
  // Starts the thread; `live` stands in front of all events. After a failure nothing is recorded.
  Result<void> begin(std::vector<LiveAllocation> live, std::uint64_t now_ns);
  // Waits until all earlier events are in the file, or `patience` is over: for events that must
  // survive the program's death.
  void wait_until_written(std::chrono::milliseconds patience) noexcept;
  // Finishes the file; drops later events. Reports the first error of the recording, the number of
  // missing events, or that the file was not finished within `patience`, because it takes no bytes.
  Result<void> close(std::chrono::milliseconds patience = kPatience);
  // Begins to close without a wait.
  enum class CloseReason { stopped, exit };
  void begin_to_close(CloseReason reason = CloseReason::stopped) noexcept;

 private:
  static constexpr std::chrono::milliseconds kPatience{10'000};
  struct Shared;

  explicit TraceWriter(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared>
      shared_;  // shared with the thread, which a hanging file keeps beyond our end
  std::atomic<bool> is_reported_{false};
  bool has_begun_ = false;
};

}  // namespace vpmm::observe
