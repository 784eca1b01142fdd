// observe: writing what a running program does to a file.
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

// What a pool keeps for its recordings, one after the other: whoever records without the pool's
// lock may still be about to put an event in when a recording ends. So it is not destroyed before
// the pool.
struct RecordingChannel {
  EventQueue queue;
  StackTable stacks;
  std::atomic<bool> is_in_use{false};  // by a recording, whose thread takes out
};

// Whether a recording of this name is lines.
bool is_csv(const std::string& path);

// A recording. Thread-safe. The file is readable at any time: a thread writes what is in the queue
// as soon as 1024 events wait, or a second later. In a forked child it may be destroyed, which does
// nothing, and nothing else.
class TraceWriter {
 public:
  // Creates or replaces the file: lines for names that end in .csv or .csv.gz, else blocks.
  // `now_ns` is the time that the file calls 0. The queue is open from then on; nothing is written
  // before begin(). Requires: the channel is not in use. ErrorCode::file_in_use: another recording
  // is being written to the file; bad_file: it cannot be created.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path, std::uint64_t now_ns,
                                                     std::shared_ptr<RecordingChannel> channel,
                                                     const RecordingOptions& options = {});
  ~TraceWriter();  // closes the file, and logs what was not reported
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  const std::string& path() const noexcept;
  // What lives already; it stands in front of all events. On failure nothing is recorded.
  Result<void> begin(std::vector<LiveAllocation> live, std::uint64_t now_ns);
  // Until what was put in before is in the file, or `patience` is over: for what must not be lost
  // if the program dies.
  void wait_until_written(std::chrono::milliseconds patience) noexcept;
  // Finishes the file; what is recorded afterwards is dropped. The first error of the whole
  // recording is reported, how many events it lacks, or that the file was not finished within
  // `patience`, because it takes no bytes.
  Result<void> close(std::chrono::milliseconds patience = kPatience);
  // Begins to, and does not wait.
  enum class Reason { stopped, exit };
  void begin_to_close(Reason reason = Reason::stopped) noexcept;

 private:
  static constexpr std::chrono::milliseconds kPatience{10'000};
  struct Shared;

  explicit TraceWriter(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared>
      shared_;  // with the thread, which a file that hangs keeps beyond our end
  std::atomic<bool> is_reported_{false};
  bool has_begun_ = false;
};

}  // namespace vpmm::observe
