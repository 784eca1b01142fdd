// observe: writing a trace file while a program runs.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/mutex.hpp"
#include "base/quiet_thread.hpp"
#include "observe/log.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::observe {
namespace {

// More than zlib is given between two flushes, so that nothing but a flush reaches the file.
constexpr unsigned kBufferBytes = 256 * 1024;
constexpr std::size_t kCallsPerFlush = 1024;
constexpr std::chrono::seconds kLongestUnflushed{1};
// Of 48 bytes, twice: 6 MiB, what the fastest calls record in some 50 ms. With fewer, calls wait for a disk that pauses
// for less; more is memory that a program under test misses.
constexpr std::size_t kCallsKept = std::size_t{1} << 16;
constexpr std::chrono::seconds kLongestWait{1};  // of a call, for the file

struct RecordedCall {
  TraceEvent::Kind kind{};
  DevicePtr ptr{};
  Bytes bytes = 0;
  TraceWriter::StreamKey stream;
  std::uint64_t now_us = 0;
};

// A gzip file that remembers its first error. Not thread-safe.
class GzipSink {
 public:
  GzipSink(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  ~GzipSink() { close(); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }  // empty: none

  void write(std::string_view line) {
    if (gzwrite(file_, line.data(), static_cast<unsigned>(line.size())) <= 0) keep_error(gzerror_text());
  }

  // After it, a file that ends here inflates to all that was written.
  void flush() {
    if (gzflush(file_, Z_SYNC_FLUSH) != Z_OK) keep_error(gzerror_text());
  }

  void close() {
    const gzFile file = std::exchange(file_, nullptr);
    if (file != nullptr && gzclose(file) != Z_OK) keep_error(std::strerror(errno));
  }

 private:
  const char* gzerror_text() const {
    int code = Z_OK;
    const char* const message = gzerror(file_, &code);
    return code == Z_ERRNO ? std::strerror(errno) : message;
  }
  void keep_error(const char* text) noexcept {
    if (!error_.empty()) return;
    try {
      error_ = text;
    } catch (const std::exception&) {
      error_ = "unknown";  // short enough to need no memory
    }
  }

  const std::string path_;
  gzFile file_;  // null: closed
  std::string error_;
};

// The lines of the calls, in their order. Not thread-safe.
class TraceLines {
 public:
  explicit TraceLines(std::uint64_t start_us) : start_us_(start_us) {}

  // std::bad_alloc: the call is left out, and the lines go on as if it had not been.
  void write(const RecordedCall& call, GzipSink& sink) {
    char text[128];  // five numbers of 20 digits at most
    const std::uint64_t time_us = trace_time_us(call.now_us);
    const auto found = live_.find(call.ptr);
    if (found != live_.end()) {  // an allocation finds it only where the deallocation before was left out
      const Live live = found->second;
      const bool names_stream = call.kind == TraceEvent::Kind::deallocate && call.stream;
      const std::uint64_t stream = names_stream ? stream_number(call.stream) : live.stream;
      live_.erase(found);
      const auto end = fmt::format_to_n(text, sizeof(text), "f,{},0,{},{}\n", live.id, stream, time_us);
      sink.write({text, end.size});
    }
    if (call.kind == TraceEvent::Kind::deallocate) return;
    const Live live{next_id_, stream_number(call.stream)};
    live_.emplace(call.ptr, live);
    ++next_id_;
    const auto end = fmt::format_to_n(text, sizeof(text), "a,{},{},{},{}\n", live.id, call.bytes, live.stream, time_us);
    sink.write({text, end.size});
  }

 private:
  struct Live {
    std::uint64_t id = 0;
    std::uint64_t stream = 0;
  };

  std::uint64_t stream_number(const TraceWriter::StreamKey& key) {
    const std::uint64_t next = streams_.size() + (unnamed_stream_ ? 1 : 0);
    if (key) return streams_.try_emplace(*key, next).first->second;
    if (!unnamed_stream_) unnamed_stream_ = next;
    return *unnamed_stream_;
  }
  std::uint64_t trace_time_us(std::uint64_t now_us) {
    last_us_ = std::max(last_us_, now_us - std::min(now_us, start_us_));
    return last_us_;
  }

  const std::uint64_t start_us_;
  std::uint64_t last_us_ = 0;
  std::uint64_t next_id_ = 0;
  std::unordered_map<DevicePtr, Live> live_;
  std::unordered_map<std::uint64_t, std::uint64_t> streams_;
  std::optional<std::uint64_t> unnamed_stream_;
};

}  // namespace

struct TraceWriter::Shared {
  Shared(std::string path, gzFile file, std::uint64_t start_us) : sink(std::move(path), file), lines(start_us) {
    waiting.reserve(kCallsKept);
    taken.reserve(kCallsKept);
  }
  bool is_forked() const { return getpid() != owner; }
  void note(const RecordedCall& call) noexcept VPMM_EXCLUDES(mutex);
  void write_until_closed() noexcept VPMM_EXCLUDES(mutex);
  bool take() VPMM_EXCLUDES(mutex);
  void write_taken() noexcept;
  Result<void> result() const;

  const pid_t owner = getpid();
  Mutex mutex;  // never held while the file is written
  std::condition_variable_any wake;
  std::condition_variable_any progress;
  std::vector<RecordedCall> waiting VPMM_GUARDED_BY(mutex);
  bool is_closing VPMM_GUARDED_BY(mutex) = false;
  bool is_finished VPMM_GUARDED_BY(mutex) = false;
  bool is_behind VPMM_GUARDED_BY(mutex) = false;  // a call has waited in vain since the thread last took what waits
  std::atomic<std::uint64_t> lost{0};             // calls that are not in the file
  // --- the thread's, and anybody's once it has finished ---
  std::vector<RecordedCall> taken;
  GzipSink sink;
  TraceLines lines;
};

// --- the calls ------------------------------------------------------------------------------------------------------

void TraceWriter::Shared::note(const RecordedCall& call) noexcept {
  MutexLock lock(mutex);
  if (is_closing) return;
  if (waiting.size() == kCallsKept && !is_behind)
    is_behind = !progress.wait_for(lock, kLongestWait,
                                   [this]() VPMM_REQUIRES(mutex) { return waiting.size() < kCallsKept || is_behind; });
  if (waiting.size() == kCallsKept) {
    lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  waiting.push_back(call);  // in memory that is reserved
  if (waiting.size() == kCallsPerFlush) wake.notify_one();
}

void TraceWriter::record_allocate(DevicePtr ptr, Bytes bytes, StreamKey stream, std::uint64_t now_us) noexcept {
  if (!is_null(ptr)) shared_->note({TraceEvent::Kind::allocate, ptr, bytes, stream, now_us});
}

void TraceWriter::record_deallocate(DevicePtr ptr, StreamKey stream, std::uint64_t now_us) noexcept {
  shared_->note({TraceEvent::Kind::deallocate, ptr, 0, stream, now_us});
}

// --- the thread -----------------------------------------------------------------------------------------------------

// False: nothing comes any more.
bool TraceWriter::Shared::take() {
  MutexLock lock(mutex);
  wake.wait_for(lock, kLongestUnflushed,
                [this]() VPMM_REQUIRES(mutex) { return waiting.size() >= kCallsPerFlush || is_closing; });
  taken.swap(waiting);
  is_behind = false;
  progress.notify_all();
  return !is_closing || !taken.empty();
}

void TraceWriter::Shared::write_taken() noexcept {
  for (const RecordedCall& call : taken) {
    try {
      lines.write(call, sink);
    } catch (const std::exception&) {  // no memory for it
      lost.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (!taken.empty()) sink.flush();
  taken.clear();
}

void TraceWriter::Shared::write_until_closed() noexcept {
  while (take()) write_taken();
  sink.close();
  const MutexLock lock(mutex);
  is_finished = true;
  progress.notify_all();
}

// --- beginning and end ----------------------------------------------------------------------------------------------

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path, std::uint64_t now_us) {
  // Level 1: recording must not slow the program down, and the repetitive text still shrinks to a quarter.
  gzFile file = gzopen(path.c_str(), "wb1");
  if (file == nullptr) {
    return Error{ErrorCode::bad_file, fmt::format("{}: cannot be created: {}", path, std::strerror(errno))};
  }
  gzbuffer(file, kBufferBytes);  // fails only after the first write; with smaller buffers the file is the same
  auto shared = std::make_shared<Shared>(path, file, now_us);
  shared->sink.write("op,id,bytes,stream,time_us\n");
  shared->sink.flush();
  if (const Result<void> started = start_quiet_thread("vpmm-record", [shared] { shared->write_until_closed(); });
      !started)
    return started.error();
  return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(shared)));
}

TraceWriter::TraceWriter(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

TraceWriter::~TraceWriter() {
  if (is_reported_ || shared_->is_forked()) return;
  try {
    if (const Result<void> closed = close(); !closed) log(LogLevel::error, "{}", closed.error().message);
  } catch (const std::exception&) {  // no memory for a message
  }
}

void TraceWriter::begin_to_close() noexcept {
  const MutexLock lock(shared_->mutex);
  shared_->is_closing = true;
  shared_->wake.notify_one();
}

Result<void> TraceWriter::close(std::chrono::milliseconds patience) {
  begin_to_close();
  MutexLock lock(shared_->mutex);
  const bool is_finished = shared_->progress.wait_for(
      lock, patience, [this]() VPMM_REQUIRES(shared_->mutex) { return shared_->is_finished; });
  is_reported_ = true;
  if (is_finished) return shared_->result();
  return Error{ErrorCode::bad_file, fmt::format("{}: not finished, for it takes no bytes", shared_->sink.path())};
}

Result<void> TraceWriter::Shared::result() const {
  std::string what = sink.error();
  if (!what.empty()) what = "cannot be written: " + what;
  if (const std::uint64_t calls = lost.load(); calls != 0)
    what += fmt::format("{}{} calls are not in it", what.empty() ? "" : "; ", calls);
  if (what.empty()) return {};
  return Error{ErrorCode::bad_file, fmt::format("{}: {}", sink.path(), what)};
}

}  // namespace vpmm::observe
