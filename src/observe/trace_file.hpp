// observe: allocation traces as files, `op,id,bytes,stream,time_us`, gzip or plain: read strictly, written while
// running.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/result.hpp"

namespace vpmm::observe {

struct TraceEvent {
  enum class Kind { allocate, deallocate };
  Kind kind = Kind::allocate;
  std::size_t allocation = 0;  // the file's ids, renumbered from 0 in order of appearance
  Bytes bytes = 0;             // of the allocation, in both kinds
  std::size_t stream = 0;      // the file's stream numbers, renumbered from 0 in order of appearance
  std::uint64_t time_us = 0;   // as in the file; never decreases
};

struct Trace {
  std::string name;  // the file's name without its folder
  std::vector<TraceEvent> events;
  std::size_t allocations = 0;
  std::size_t streams = 0;
  std::string warning;  // empty, or that the file was cut and the trace is what came before
};

// Anything unexpected is ErrorCode::bad_file, "FILE:LINE: reason", but for one thing: a compressed file that just ends,
// because the recording program died, is read up to its last whole line.
Result<Trace> read_trace(const std::string& path);

// Writes the trace of a running program. Thread-safe. Of two calls on one address the first must return before the
// second is made, so: record_allocate after the memory was handed out, record_deallocate before anyone can get it
// again. The file is readable at any time. In a forked child it may be destroyed, which does nothing, and nothing else.
//
// Note [A recording never stops what it records]
// Calls are noted down in a buffer; a thread of the recording writes it to the file as soon as 1024 wait, or a second
// later. When the file takes less than is recorded, a call waits for the thread, once for a second at most; while the
// buffer stays full after that, calls are left out and counted. So are calls for which the thread finds no memory.
class TraceWriter {
 public:
  // Which stream a call named, in the caller's terms: two calls with one key get one stream number. None: no stream
  // was named; an allocation then gets a number kept for that, a deallocation the number of its allocation.
  using StreamKey = std::optional<std::uint64_t>;

  // Creates or replaces the file, always gzip. `now_us` is the time that the trace calls 0.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path, std::uint64_t now_us);
  ~TraceWriter();  // closes the file, and logs what was not reported
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Null addresses and deallocations of what was allocated before the recording began are left out.
  // Errors are kept and reported by close(). Times that run backwards are raised to the last one written.
  void record_allocate(DevicePtr ptr, Bytes bytes, StreamKey stream, std::uint64_t now_us) noexcept;
  void record_deallocate(DevicePtr ptr, StreamKey stream, std::uint64_t now_us) noexcept;
  // Finishes the file; what is recorded afterwards is dropped. The first error of the whole recording is reported, how
  // many calls it lacks, or that the file was not finished within `patience`, because it takes no bytes.
  Result<void> close(std::chrono::milliseconds patience = kPatience);
  // Begins to, and does not wait.
  void begin_to_close() noexcept;

 private:
  static constexpr std::chrono::milliseconds kPatience{10'000};
  struct Shared;

  explicit TraceWriter(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared> shared_;  // with the thread, which a file that hangs keeps beyond our end
  std::atomic<bool> is_reported_{false};
};

}  // namespace vpmm::observe
