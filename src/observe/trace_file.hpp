// observe: allocation traces as files, `op,id,bytes,stream,time_us`, gzip or plain: read strictly, written while
// running.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/address.hpp"
#include "base/mutex.hpp"
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
// again. The file is readable at any time: what was written goes to it at least every 1024 events, and with the first
// event a second or more after that. A forked child writes nothing, whatever it calls.
class TraceWriter {
 public:
  // Which stream a call named, in the caller's terms: two calls with one key get one stream number. None: no stream
  // was named; an allocation then gets a number kept for that, a deallocation the number of its allocation.
  using StreamKey = std::optional<std::uint64_t>;

  // Creates or replaces the file, always gzip. `now_us` is the time that the trace calls 0.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path, std::uint64_t now_us);
  ~TraceWriter();  // closes the file; use close() to learn whether that worked
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Null addresses and deallocations of what was allocated before the recording began are left out.
  // Write errors are kept and reported by close(). Times that run backwards are raised to the last one written.
  void record_allocate(DevicePtr ptr, Bytes bytes, StreamKey stream, std::uint64_t now_us) VPMM_EXCLUDES(mutex_);
  void record_deallocate(DevicePtr ptr, StreamKey stream, std::uint64_t now_us) VPMM_EXCLUDES(mutex_);
  // Flushes and closes; what is recorded afterwards is dropped. The first error of the whole recording is reported.
  Result<void> close() VPMM_EXCLUDES(mutex_);
  // The same while the process ends, when another thread may hold the recording for ever: an error after `patience`.
  Result<void> close_within(std::chrono::milliseconds patience) VPMM_EXCLUDES(mutex_);

 private:
  class GzipSink;
  struct Live {
    std::uint64_t id = 0;
    std::uint64_t stream = 0;
  };

  TraceWriter(std::unique_ptr<GzipSink> sink, std::string path, std::uint64_t start_us);
  std::uint64_t stream_number(const StreamKey& key) VPMM_REQUIRES(mutex_);
  std::uint64_t trace_time_us(std::uint64_t now_us) VPMM_REQUIRES(mutex_);
  void write(std::string_view line) VPMM_REQUIRES(mutex_);

  Mutex mutex_;
  const std::unique_ptr<GzipSink> sink_ VPMM_GUARDED_BY(mutex_);
  const std::string path_;
  const std::uint64_t start_us_;
  std::uint64_t last_us_ VPMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t flushed_us_ VPMM_GUARDED_BY(mutex_) = 0;  // last_us_ of the last flush
  std::size_t unflushed_ VPMM_GUARDED_BY(mutex_) = 0;     // events since
  std::uint64_t next_id_ VPMM_GUARDED_BY(mutex_) = 0;
  std::unordered_map<DevicePtr, Live> live_ VPMM_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::uint64_t> streams_ VPMM_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> unnamed_stream_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::observe
