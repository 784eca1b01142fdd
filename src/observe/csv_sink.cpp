// SPDX-License-Identifier: Apache-2.0
// observe: a recording as lines, plain or gzip, `op,id,bytes,stream,time_us`: allocations and frees
// alone.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "observe/own_file.hpp"
#include "observe/recording_sink.hpp"

namespace vpmm::observe {
namespace {

// More bytes than zlib gets between two flushes, so that only a flush writes to the file.
constexpr unsigned kBufferBytes = 256 * 1024;

// File of zlib's, compressed or plain, that keeps its first error.
class GzipFile {
 public:
  // `file` writes to the descriptor of `own`, and is closed with it.
  GzipFile(std::unique_ptr<OwnFile> own, gzFile file) : own_(std::move(own)), file_(file) {}
  ~GzipFile() { close(); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  const std::string& error() const { return error_; }  // empty: no error

  void write(std::string_view line) {
    if (gzwrite(file_, line.data(), static_cast<unsigned>(line.size())) <= 0)
      keep_error(gzerror_text());
  }

  // Makes the file complete up to here.
  void flush() {
    if (gzflush(file_, Z_SYNC_FLUSH) != Z_OK) keep_error(gzerror_text());
  }

  // Does nothing in a forked child: the descriptor's number may be reused.
  void close() {
    if (own_->descriptor() < 0) return;
    if (gzflush(file_, Z_FINISH) != Z_OK) keep_error(gzerror_text());
    own_->release();
    if (gzclose(file_) != Z_OK) keep_error(std::strerror(errno));
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

  const std::unique_ptr<OwnFile> own_;
  const gzFile file_;
  std::string error_;
};

// Failed requests and other kinds have no line in this format.
class CsvSink final : public RecordingSink {
 public:
  CsvSink(std::unique_ptr<OwnFile> own, gzFile file, std::uint64_t start_ns)
      : file_(std::move(own), file), start_us_(start_ns / 1000) {
    file_.write("op,id,bytes,stream,time_us\n");
    file_.flush();
  }

  void begin(const std::vector<LiveAllocation>& /*live*/, std::uint64_t /*now_ns*/) override {}
  void write(const QueuedEvent& event) override;
  std::uint64_t flush() noexcept override {
    if (has_unflushed_) file_.flush();
    has_unflushed_ = false;
    return 0;
  }
  void close(std::uint64_t /*lost*/, bool /*is_exit*/) noexcept override { file_.close(); }
  const std::string& error() const override { return file_.error(); }

 private:
  struct LiveRow {
    std::uint64_t id = 0;
    std::uint64_t stream = 0;
  };

  std::uint64_t stream_number(const std::optional<std::uint64_t>& key) {
    const std::uint64_t next = streams_.size() + (unnamed_stream_ ? 1 : 0);
    if (key) return streams_.try_emplace(*key, next).first->second;
    if (!unnamed_stream_) unnamed_stream_ = next;
    return *unnamed_stream_;
  }
  std::uint64_t trace_time_us(std::uint64_t now_ns) {
    last_us_ = std::max(last_us_, now_ns / 1000 - std::min(now_ns / 1000, start_us_));
    return last_us_;
  }

  GzipFile file_;
  const std::uint64_t start_us_;
  bool has_unflushed_ = false;
  std::uint64_t last_us_ = 0;
  std::uint64_t next_id_ = 0;
  std::unordered_map<DevicePtr, LiveRow> live_;
  std::unordered_map<std::uint64_t, std::uint64_t> streams_;
  std::optional<std::uint64_t> unnamed_stream_;
};

// On an exception the event is left out.
void CsvSink::write(const QueuedEvent& event) {
  if (event.kind != RecordedKind::allocate && event.kind != RecordedKind::free) return;
  char text[128];  // five numbers of 20 digits at most
  const std::uint64_t time_us = trace_time_us(event.time_ns);
  has_unflushed_ = true;
  const auto found = live_.find(event.address);
  if (found != live_.end()) {  // an allocation finds an entry only if the free before was left out
    const LiveRow live = found->second;
    const bool names_stream = event.kind == RecordedKind::free && event.stream;
    const std::uint64_t stream = names_stream ? stream_number(event.stream) : live.stream;
    live_.erase(found);
    const auto end =
        fmt::format_to_n(text, sizeof(text), "f,{},0,{},{}\n", live.id, stream, time_us);
    file_.write({text, end.size});
  }
  if (event.kind == RecordedKind::free) return;
  const LiveRow live{next_id_, stream_number(event.stream)};
  live_.emplace(event.address, live);
  ++next_id_;
  const auto end = fmt::format_to_n(text, sizeof(text), "a,{},{},{},{}\n", live.id, event.bytes,
                                    live.stream, time_us);
  file_.write({text, end.size});
}

}  // namespace

Result<std::unique_ptr<RecordingSink>> make_csv_sink(const std::string& path,
                                                     std::uint64_t start_ns) {
  // Level 1: recording must not slow the program down, and the repetitive text still shrinks to a
  // quarter. T: plain.
  VPMM_TRY_ASSIGN(auto own, OwnFile::create(path, OwnFile::Access::write));
  gzFile file = gzdopen(own->descriptor(), path.ends_with(".gz") ? "wb1" : "wbT");
  if (file == nullptr)
    return Error{ErrorCode::host_out_of_memory,
                 fmt::format("{}: no memory to compress a recording", path)};
  gzbuffer(file,
           kBufferBytes);  // fails only after the first write; smaller buffers give the same file
  return std::unique_ptr<RecordingSink>(std::make_unique<CsvSink>(std::move(own), file, start_ns));
}

}  // namespace vpmm::observe
