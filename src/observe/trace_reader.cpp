// observe: reading a trace file line by line, refusing everything that is not exactly a trace.
#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include "observe/trace_file.hpp"

namespace vpmm::observe {
namespace {

constexpr std::string_view kHeader = "op,id,bytes,stream,time_us";
constexpr std::size_t kColumns = 5;
constexpr std::size_t kLongestLine = 256;  // five numbers and their commas need 90

struct GzipCloser {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, GzipCloser>;

// Where we are in the file; makes errors.
struct Position {
  std::string path;
  std::uint64_t line = 0;

  Error error(std::string_view reason) const {
    return Error{ErrorCode::bad_file, fmt::format("{}:{}: {}", path, line, reason)};
  }
};

// Reads lines without their line feed. zlib passes a file that is not gzip through unchanged.
class LineReader {
 public:
  LineReader(const std::string& path, GzipFile file) : position_{path}, file_(std::move(file)) {}

  // None: the end of the file.
  Result<std::optional<std::string_view>> next() {
    ++position_.line;
    if (gzgets(file_.get(), buffer_.data(), static_cast<int>(buffer_.size())) == nullptr) return at_end();
    std::string_view line(buffer_.data());
    if (!line.empty() && line.back() == '\n') return std::optional(line.substr(0, line.size() - 1));
    // A zero byte ends the string early; what follows must not be skipped in silence.
    if (!gzeof(file_.get())) return position_.error("no line of a trace: too long, or it holds a zero byte");
    VPMM_TRY(at_end());  // a damaged file may end inside a line too
    return std::optional(line);
  }
  const Position& position() const { return position_; }

 private:
  Result<std::optional<std::string_view>> at_end() const {
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return std::optional<std::string_view>();
    if (code == Z_ERRNO) return position_.error(fmt::format("cannot read on: {}", std::strerror(errno)));
    return position_.error(fmt::format("the compressed data is damaged or cut short ({})", message));
  }

  Position position_;
  GzipFile file_;
  std::array<char, kLongestLine> buffer_{};
};

using Columns = std::array<std::string_view, kColumns>;

Result<Columns> split(std::string_view line, const Position& position) {
  Columns columns;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin <= line.size(); ++count) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    if (count < kColumns) columns[count] = line.substr(begin, end - begin);
    begin = end + 1;
  }
  if (count == kColumns) return columns;
  return position.error(fmt::format("expected {} columns ({}), found {}", kColumns, kHeader, count));
}

Result<std::uint64_t> number(std::string_view text, std::string_view column, const Position& position) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return position.error(fmt::format("{} `{}` does not fit in 64 bits", column, text));
  }
  if (error != std::errc() || stop != end) {
    return position.error(fmt::format("{} `{}` is not a number from 0 up", column, text));
  }
  return value;
}

// The events so far, and what later lines are checked against.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::string name) { trace_.name = std::move(name); }

  Result<void> add(std::string_view line, const Position& position) {
    VPMM_TRY_ASSIGN(const Columns columns, split(line, position));
    VPMM_TRY_ASSIGN(const std::uint64_t id, number(columns[1], "id", position));
    VPMM_TRY_ASSIGN(const Bytes bytes, number(columns[2], "bytes", position));
    VPMM_TRY_ASSIGN(const std::uint64_t stream, number(columns[3], "stream", position));
    VPMM_TRY_ASSIGN(const std::uint64_t time_us, number(columns[4], "time_us", position));
    if (time_us < last_us_) {
      return position.error(fmt::format("time_us {} is before the {} of an earlier line", time_us, last_us_));
    }
    last_us_ = time_us;
    if (columns[0] == "a") return allocate(id, bytes, stream_index(stream), position);
    if (columns[0] == "f") return deallocate(id, stream_index(stream), position);
    return position.error(fmt::format("op `{}` is neither `a` nor `f`", columns[0]));
  }

  Trace take() {
    trace_.allocations = allocations_.size();
    trace_.streams = streams_.size();
    return std::move(trace_);
  }

 private:
  struct Allocation {
    std::size_t index = 0;
    Bytes bytes = 0;
    std::optional<std::uint64_t> freed_in_line;
  };

  std::size_t stream_index(std::uint64_t number) { return streams_.try_emplace(number, streams_.size()).first->second; }

  Result<void> allocate(std::uint64_t id, Bytes bytes, std::size_t stream, const Position& position) {
    const auto [entry, is_new] = allocations_.try_emplace(id, Allocation{allocations_.size(), bytes, std::nullopt});
    if (!is_new) return position.error(fmt::format("id {} was allocated before: ids are never reused", id));
    trace_.events.push_back({TraceEvent::Kind::allocate, entry->second.index, bytes, stream, last_us_});
    return {};
  }

  Result<void> deallocate(std::uint64_t id, std::size_t stream, const Position& position) {
    const auto entry = allocations_.find(id);
    if (entry == allocations_.end()) return position.error(fmt::format("id {} is freed but was never allocated", id));
    Allocation& allocation = entry->second;
    if (allocation.freed_in_line) {
      return position.error(fmt::format("id {} was freed before, in line {}", id, *allocation.freed_in_line));
    }
    allocation.freed_in_line = position.line;
    trace_.events.push_back({TraceEvent::Kind::deallocate, allocation.index, allocation.bytes, stream, last_us_});
    return {};
  }

  Trace trace_;
  std::uint64_t last_us_ = 0;
  std::unordered_map<std::uint64_t, Allocation> allocations_;
  std::unordered_map<std::uint64_t, std::size_t> streams_;
};

}  // namespace

Result<Trace> read_trace(const std::string& path) {
  GzipFile file(gzopen(path.c_str(), "rb"));
  if (!file) return Error{ErrorCode::bad_file, fmt::format("{}: cannot be opened: {}", path, std::strerror(errno))};
  gzbuffer(file.get(), 256 * 1024);
  LineReader lines(path, std::move(file));
  TraceBuilder builder(path.substr(path.find_last_of('/') + 1));

  VPMM_TRY_ASSIGN(const std::optional<std::string_view> header, lines.next());
  if (header != kHeader) return lines.position().error(fmt::format("the first line must be `{}`", kHeader));
  while (true) {
    VPMM_TRY_ASSIGN(const std::optional<std::string_view> line, lines.next());
    if (!line) return builder.take();
    VPMM_TRY(builder.add(*line, lines.position()));
  }
}

}  // namespace vpmm::observe
