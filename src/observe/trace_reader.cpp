// SPDX-License-Identifier: Apache-2.0
// observe: reads a trace line by line, and refuses any deviation from the format.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "observe/gzip_input.hpp"
#include "observe/recorded_event.hpp"
#include "observe/recording_reader.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::observe {
namespace {

constexpr std::string_view kHeader = "op,id,bytes,stream,time_us";
constexpr std::size_t kColumns = 5;
constexpr std::size_t kLongestLine = 256;  // five numbers and their commas need 90
constexpr std::size_t kReadBytes = std::size_t{64} * 1024;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct LinePosition {
  std::string path;
  std::uint64_t line = 0;

  Error error(std::string_view reason) const {
    return Error{ErrorCode::bad_file, fmt::format("{}:{}: {}", path, line, reason)};
  }
};

// Reads lines without their line feed.
class LineReader {
 public:
  LineReader(const std::string& path, std::unique_ptr<GzipInput> input)
      : position_{path}, input_(std::move(input)), buffer_(kReadBytes) {}

  // nullopt: end of the file. Leaves out a last line without a line feed: its writer may have been
  // killed inside it.
  Result<std::optional<std::string_view>> next() {
    ++position_.line;
    std::size_t length = unread().find('\n');
    while (length == std::string_view::npos && unread().size() <= kLongestLine) {
      VPMM_TRY_ASSIGN(const bool is_end, read_on());
      if (is_end) {
        has_partial_line_ = !unread().empty();
        return std::optional<std::string_view>();
      }
      length = unread().find('\n');
    }
    const std::string_view line = unread().substr(0, length);
    if (line.size() > kLongestLine || line.find('\0') != std::string_view::npos)
      return position_.error(
          "no line of a trace: too long, or it holds a zero byte; `vpmm convert` reads the files "
          "of other programs");
    if (!line.empty() && line.back() == '\r')
      return position_.error(
          "the line ends with a carriage return (CR LF): lines of a trace end with LF alone");
    begin_ = std::min(begin_ + length + 1, end_);
    return std::optional(line);
  }
  const LinePosition& position() const { return position_; }
  bool is_cut() const { return has_partial_line_ || input_->is_cut(); }

 private:
  std::string_view unread() const { return {buffer_.data() + begin_, end_ - begin_}; }

  // Returns true if no byte is left.
  Result<bool> read_on() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    auto count = input_->read(buffer_.data() + end_, buffer_.size() - end_);
    if (!count) return position_.error(count.error().message);
    end_ += count.value();
    return count.value() == 0;
  }

  LinePosition position_;
  std::unique_ptr<GzipInput> input_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of the unread part
  std::size_t end_ = 0;
  bool has_partial_line_ = false;
};

using Columns = std::array<std::string_view, kColumns>;

Result<Columns> split(std::string_view line, const LinePosition& position) {
  Columns columns;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin <= line.size(); ++count) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    if (count < kColumns) columns[count] = line.substr(begin, end - begin);
    begin = end + 1;
  }
  if (count == kColumns) return columns;
  return position.error(
      fmt::format("expected {} columns ({}), found {}", kColumns, kHeader, count));
}

Result<std::uint64_t> number(std::string_view text, std::string_view column,
                             const LinePosition& position) {
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

// Events so far, and the state that later lines are checked against.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::string name) { trace_.name = std::move(name); }

  Result<void> add(std::string_view line, const LinePosition& position) {
    VPMM_TRY_ASSIGN(const Columns columns, split(line, position));
    VPMM_TRY_ASSIGN(const std::uint64_t id, number(columns[1], "id", position));
    VPMM_TRY_ASSIGN(const Bytes bytes, number(columns[2], "bytes", position));
    VPMM_TRY_ASSIGN(const std::uint64_t stream, number(columns[3], "stream", position));
    VPMM_TRY_ASSIGN(const std::uint64_t time_us, number(columns[4], "time_us", position));
    if (time_us < last_us_) {
      return position.error(
          fmt::format("time_us {} is before the {} of an earlier line", time_us, last_us_));
    }
    last_us_ = time_us;
    if (columns[0] == "a") return allocate(id, bytes, stream_index(stream), position);
    if (columns[0] == "f") return deallocate(id, bytes, stream_index(stream), position);
    return position.error(fmt::format("op `{}` is neither `a` nor `f`", columns[0]));
  }

  Trace take() {
    trace_.allocations = allocations_.size();
    trace_.streams = streams_.size();
    return std::move(trace_);
  }

 private:
  struct TracedAllocation {
    std::size_t index = 0;
    Bytes bytes = 0;
    std::optional<std::uint64_t> freed_in_line;
  };

  std::size_t stream_index(std::uint64_t number) {
    return streams_.try_emplace(number, streams_.size()).first->second;
  }

  Result<void> allocate(std::uint64_t id, Bytes bytes, std::size_t stream,
                        const LinePosition& position) {
    const auto [entry, is_new] =
        allocations_.try_emplace(id, TracedAllocation{allocations_.size(), bytes, std::nullopt});
    if (!is_new)
      return position.error(fmt::format("id {} was allocated before: ids are never reused", id));
    trace_.events.push_back(
        {TraceEvent::TraceKind::allocate, entry->second.index, bytes, stream, last_us_, false});
    return {};
  }

  Result<void> deallocate(std::uint64_t id, Bytes bytes, std::size_t stream,
                          const LinePosition& position) {
    const auto entry = allocations_.find(id);
    if (entry == allocations_.end())
      return position.error(fmt::format("id {} is freed but was never allocated", id));
    TracedAllocation& allocation = entry->second;
    if (allocation.freed_in_line) {
      return position.error(
          fmt::format("id {} was freed before, in line {}", id, *allocation.freed_in_line));
    }
    if (bytes != 0 && bytes != allocation.bytes) {
      return position.error(fmt::format("bytes {} of a free must be 0, or the {} of its allocation",
                                        bytes, allocation.bytes));
    }
    allocation.freed_in_line = position.line;
    trace_.events.push_back({TraceEvent::TraceKind::deallocate, allocation.index, allocation.bytes,
                             stream, last_us_, false});
    return {};
  }

  Trace trace_;
  std::uint64_t last_us_ = 0;
  std::unordered_map<std::uint64_t, TracedAllocation> allocations_;
  std::unordered_map<std::uint64_t, std::size_t> streams_;
};

Result<void> check_header(const std::optional<std::string_view>& header, const LineReader& lines) {
  if (header == kHeader) return {};
  const LinePosition& position = lines.position();
  if (!header && lines.is_cut())
    return position.error("the file is cut short inside its first line");
  if (!header) return position.error("the file is empty");
  if (header->starts_with(kByteOrderMark))
    return position.error(
        fmt::format("the file begins with a byte order mark (EF BB BF), not with `{}`", kHeader));
  return position.error(fmt::format(
      "this is no recording, binary or CSV with the first line `{}`; `vpmm convert` makes "
      "one from a snapshot of PyTorch, a log of RMM or a database of Nsight Systems",
      kHeader));
}

Result<Trace> read_lines(const std::string& path, const std::string& name,
                         std::unique_ptr<GzipInput> input) {
  LineReader lines(path, std::move(input));
  TraceBuilder builder(name);
  VPMM_TRY_ASSIGN(const std::optional<std::string_view> header, lines.next());
  VPMM_TRY(check_header(header, lines));
  while (true) {
    VPMM_TRY_ASSIGN(const std::optional<std::string_view> line, lines.next());
    if (!line) break;
    VPMM_TRY(builder.add(*line, lines.position()));
  }
  Trace trace = builder.take();
  if (lines.is_cut()) {
    trace.warning = fmt::format(
        "{}: the file is cut short, or its last line has no line end: {} whole lines were read",
        path, trace.events.size() + 1);
  }
  return trace;
}

}  // namespace

Result<Trace> read_trace(const std::string& path) {
  const std::string file = path == "-" ? "standard input" : path;
  const std::string name = file.substr(file.find_last_of('/') + 1);
  auto input = path == "-" ? GzipInput::standard_input() : GzipInput::open(file);
  if (!input) return Error{ErrorCode::bad_file, fmt::format("{}: {}", file, input.error().message)};
  if (!input.value()->begins_with(kRecordingMagic.substr(0, kRecordingMagic.size() - 1)))
    return read_lines(file, name, std::move(input).value());
  return read_recorded_trace(file, name, std::move(input).value());
}

}  // namespace vpmm::observe
