// observe: writing a trace file while a program runs.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "observe/trace_file.hpp"

namespace vpmm::observe {
namespace {

// More than zlib is given between two flushes, so that nothing but a flush reaches the file.
constexpr unsigned kBufferBytes = 256 * 1024;
constexpr std::size_t kEventsPerFlush = 1024;
constexpr std::uint64_t kLongestUnflushedUs = 1'000'000;

}  // namespace

// A gzip file that remembers its first error. Not thread-safe.
class TraceWriter::GzipSink {
 public:
  GzipSink(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  // Who wants to know calls close() first.
  ~GzipSink() { static_cast<void>(close()); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void write(std::string_view line) {
    if (file_ == nullptr) return;
    if (gzwrite(file_, line.data(), static_cast<unsigned>(line.size())) <= 0) keep_error(gzerror_text());
  }

  // After it, a file that ends here inflates to all that was written.
  void flush() {
    if (file_ == nullptr || is_forked()) return;
    if (gzflush(file_, Z_SYNC_FLUSH) != Z_OK) keep_error(gzerror_text());
  }

  Result<void> close() {
    const gzFile file = std::exchange(file_, nullptr);
    // In a child the file is the parent's. To forget ours writes nothing.
    if (file != nullptr && !is_forked() && gzclose(file) != Z_OK) keep_error(std::strerror(errno));
    if (!error_.empty()) return Error{ErrorCode::bad_file, fmt::format("{}: cannot be written: {}", path_, error_)};
    return {};
  }

 private:
  bool is_forked() const { return getpid() != owner_; }
  std::string gzerror_text() const {
    int code = Z_OK;
    const std::string message = gzerror(file_, &code);
    return code == Z_ERRNO ? std::strerror(errno) : message;
  }
  void keep_error(const std::string& text) {
    if (error_.empty()) error_ = text;
  }

  const std::string path_;
  const pid_t owner_ = getpid();
  gzFile file_;  // null: closed
  std::string error_;
};

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path, std::uint64_t now_us) {
  // Level 1: recording must not slow the program down, and the repetitive text still shrinks to a quarter.
  gzFile file = gzopen(path.c_str(), "wb1");
  if (file == nullptr) {
    return Error{ErrorCode::bad_file, fmt::format("{}: cannot be created: {}", path, std::strerror(errno))};
  }
  gzbuffer(file, kBufferBytes);  // fails only after the first write; with smaller buffers the file is the same
  auto sink = std::make_unique<GzipSink>(path, file);
  sink->write("op,id,bytes,stream,time_us\n");
  sink->flush();
  return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(sink), path, now_us));
}

TraceWriter::TraceWriter(std::unique_ptr<GzipSink> sink, std::string path, std::uint64_t start_us)
    : sink_(std::move(sink)), path_(std::move(path)), start_us_(start_us) {}

TraceWriter::~TraceWriter() = default;

void TraceWriter::record_allocate(DevicePtr ptr, Bytes bytes, StreamKey stream, std::uint64_t now_us) {
  if (is_null(ptr)) return;
  MutexLock lock(mutex_);
  const Live live{next_id_++, stream_number(stream)};
  live_[ptr] = live;
  write(fmt::format("a,{},{},{},{}\n", live.id, bytes, live.stream, trace_time_us(now_us)));
}

void TraceWriter::record_deallocate(DevicePtr ptr, StreamKey stream, std::uint64_t now_us) {
  MutexLock lock(mutex_);
  const auto entry = live_.find(ptr);
  if (entry == live_.end()) return;
  const Live live = entry->second;
  live_.erase(entry);
  const std::uint64_t number = stream ? stream_number(stream) : live.stream;
  write(fmt::format("f,{},0,{},{}\n", live.id, number, trace_time_us(now_us)));
}

Result<void> TraceWriter::close() {
  MutexLock lock(mutex_);
  return sink_->close();
}

Result<void> TraceWriter::close_within(std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (!mutex_.try_lock()) {
    if (std::chrono::steady_clock::now() >= give_up)
      return Error{ErrorCode::bad_file, fmt::format("{}: not finished, another thread is writing to it", path_)};
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  Result<void> closed = sink_->close();
  mutex_.unlock();
  return closed;
}

void TraceWriter::write(std::string_view line) {
  sink_->write(line);
  if (++unflushed_ < kEventsPerFlush && last_us_ - flushed_us_ < kLongestUnflushedUs) return;
  sink_->flush();
  unflushed_ = 0;
  flushed_us_ = last_us_;
}

std::uint64_t TraceWriter::stream_number(const StreamKey& key) {
  const std::uint64_t next = streams_.size() + (unnamed_stream_ ? 1 : 0);
  if (key) return streams_.try_emplace(*key, next).first->second;
  if (!unnamed_stream_) unnamed_stream_ = next;
  return *unnamed_stream_;
}

std::uint64_t TraceWriter::trace_time_us(std::uint64_t now_us) {
  last_us_ = std::max(last_us_, now_us - std::min(now_us, start_us_));
  return last_us_;
}

}  // namespace vpmm::observe
