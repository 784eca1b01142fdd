// observe: writing a trace file while a program runs.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "observe/trace_file.hpp"

namespace vpmm::observe {

// A gzip file that remembers its first error. Not thread-safe.
class TraceWriter::GzipSink {
 public:
  GzipSink(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  ~GzipSink() { static_cast<void>(close()); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void write(std::string_view line) {
    if (file_ == nullptr) return;
    if (gzwrite(file_, line.data(), static_cast<unsigned>(line.size())) <= 0) keep_error(gzerror_text());
  }

  Result<void> close() {
    if (file_ != nullptr) {
      if (gzclose(std::exchange(file_, nullptr)) != Z_OK) keep_error(std::strerror(errno));
    }
    if (!error_.empty()) return Error{ErrorCode::bad_file, fmt::format("{}: cannot be written: {}", path_, error_)};
    return {};
  }

 private:
  std::string gzerror_text() const {
    int code = Z_OK;
    const std::string message = gzerror(file_, &code);
    return code == Z_ERRNO ? std::strerror(errno) : message;
  }
  void keep_error(const std::string& text) {
    if (error_.empty()) error_ = text;
  }

  const std::string path_;
  gzFile file_;  // null: closed
  std::string error_;
};

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path, std::uint64_t now_us) {
  // Level 1: recording must not slow the program down, and the repetitive text still shrinks to a quarter.
  gzFile file = gzopen(path.c_str(), "wb1");
  if (file == nullptr) {
    return Error{ErrorCode::bad_file, fmt::format("{}: cannot be created: {}", path, std::strerror(errno))};
  }
  gzbuffer(file, 256 * 1024);
  auto sink = std::make_unique<GzipSink>(path, file);
  sink->write("op,id,bytes,stream,time_us\n");
  return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(sink), now_us));
}

TraceWriter::TraceWriter(std::unique_ptr<GzipSink> sink, std::uint64_t start_us)
    : sink_(std::move(sink)), start_us_(start_us) {}

TraceWriter::~TraceWriter() = default;

void TraceWriter::record_allocate(DevicePtr ptr, Bytes bytes, StreamKey stream, std::uint64_t now_us) {
  if (is_null(ptr)) return;
  MutexLock lock(mutex_);
  const Live live{next_id_++, stream_number(stream)};
  live_[ptr] = live;
  sink_->write(fmt::format("a,{},{},{},{}\n", live.id, bytes, live.stream, trace_time_us(now_us)));
}

void TraceWriter::record_deallocate(DevicePtr ptr, StreamKey stream, std::uint64_t now_us) {
  MutexLock lock(mutex_);
  const auto entry = live_.find(ptr);
  if (entry == live_.end()) return;
  const Live live = entry->second;
  live_.erase(entry);
  const std::uint64_t number = stream ? stream_number(stream) : live.stream;
  sink_->write(fmt::format("f,{},0,{},{}\n", live.id, number, trace_time_us(now_us)));
}

Result<void> TraceWriter::close() {
  MutexLock lock(mutex_);
  return sink_->close();
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
