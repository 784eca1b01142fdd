// SPDX-License-Identifier: Apache-2.0
// observe: a recording as blocks of events: numbers for recurring values, in a file that may be
// kept short.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "observe/block_file.hpp"
#include "observe/definitions.hpp"
#include "observe/json_text.hpp"
#include "observe/live_table.hpp"
#include "observe/recording_sink.hpp"
#include "observe/window.hpp"

namespace vpmm::observe {
namespace {

class BlockSink final : public RecordingSink {
 public:
  BlockSink(std::unique_ptr<BlockFile> file, std::uint64_t start_ns,
            const RecordingOptions& options, StackTable& stacks)
      : start_ns_(start_ns),
        device_(options.header.device),
        window_(std::move(file), options),
        definitions_(options.header.tag_name, stacks),
        live_(options.sample) {
    events_.reserve(kEventsPerBlock);
  }
  Result<void> write_header() {
    if (window_.write_header()) return {};
    return Error{ErrorCode::bad_file,
                 fmt::format("{}: cannot be created: {}", window_.path(), window_.error())};
  }

  void begin(const std::vector<LiveAllocation>& live, std::uint64_t now_ns) override;
  void write(const QueuedEvent& event) override;
  std::uint64_t flush() noexcept override;
  void close(std::uint64_t lost, bool is_exit) noexcept override;
  const std::string& error() const override { return window_.error(); }

 private:
  std::uint64_t time_of(std::uint64_t now_ns) {
    last_ns_ = std::max(last_ns_, now_ns - std::min(now_ns, start_ns_));
    return last_ns_;
  }
  RecordedEvent numbered(const QueuedEvent& event);
  bool write_events() noexcept;
  void note_mapped(const QueuedEvent& event);
  void add(const RecordedEvent& event);

  const std::uint64_t start_ns_;
  const std::uint32_t device_;
  std::uint64_t last_ns_ = 0;
  Window window_;
  Definitions definitions_;
  LiveTable live_;
  std::vector<RecordedEvent> events_;  // not in the file yet; at most one block
  std::uint64_t left_out_ = 0;
  bool is_over_ = false;  // no more can be written
  Bytes mapped_ = 0;
  Bytes peak_mapped_ = 0;
};

RecordedEvent BlockSink::numbered(const QueuedEvent& event) {
  RecordedEvent out;
  out.time_ns = time_of(event.time_ns);
  out.address = to_integer(event.address);
  out.bytes = event.bytes;
  out.value = event.text ? definitions_.string(*event.text) : event.value;
  out.stream =
      event.stream ? definitions_.stream(*event.stream, event.stream_handle) : kNoRecordedStream;
  out.thread = definitions_.thread(event.thread);
  out.tag = definitions_.tag(event.tag);
  out.stack = definitions_.stack(event.stack);
  out.arena = event.arena;
  out.kind = static_cast<std::uint16_t>(event.kind);
  out.flags = event.library == 0 ? event.flags : definitions_.library(event.library);
  out.device = device_;
  return out;
}

// On an exception the event is left out; each step that may throw comes before its add().
void BlockSink::write(const QueuedEvent& event) {
  if (event.kind == RecordedKind::free) {
    const std::optional<RecordedEvent> allocation = live_.find(to_integer(event.address));
    if (!allocation) return;  // the allocation is not in the file
    RecordedEvent freed = numbered(event);
    freed.bytes = allocation->bytes;
    freed.tag = allocation->tag;
    freed.arena = allocation->arena;
    live_.erase(freed.address);
    return add(freed);
  }
  if (event.kind != RecordedKind::allocate) {
    const RecordedEvent other = numbered(event);
    note_mapped(event);
    return add(other);
  }
  if (const std::optional<RecordedEvent> before = live_.find(to_integer(event.address))) {
    RecordedEvent freed = *before;  // its own free was left out
    freed.kind = static_cast<std::uint16_t>(RecordedKind::free);
    freed.time_ns = time_of(event.time_ns);
    freed.value = 0;
    freed.stack = 0;
    freed.flags = 0;
    live_.erase(freed.address);
    add(freed);
  }
  if (!live_.is_chosen(to_integer(event.address))) return;
  const RecordedEvent allocated = numbered(event);
  live_.insert(allocated);
  add(allocated);
}

// A sample is the pool's own figure; maps and unmaps adjust it until the next.
void BlockSink::note_mapped(const QueuedEvent& event) {
  if (event.kind == RecordedKind::sample) mapped_ = to_integer(event.address);
  if (event.kind == RecordedKind::map && event.value == 1) mapped_ += event.bytes;
  if (event.kind == RecordedKind::unmap && event.value == 1)
    mapped_ -= std::min(mapped_, event.bytes);
  peak_mapped_ = std::max(peak_mapped_, mapped_);
}

void BlockSink::add(const RecordedEvent& event) {
  events_.push_back(event);  // in reserved memory
  if (events_.size() == kEventsPerBlock || definitions_.is_full()) left_out_ = flush();
}

void BlockSink::begin(const std::vector<LiveAllocation>& live, std::uint64_t now_ns) {
  for (const LiveAllocation& each : live) {
    QueuedEvent event;
    event.kind = RecordedKind::live;
    event.address = each.address;
    event.bytes = each.requested;
    event.value = each.taken;
    event.stream = each.stream;
    event.stream_handle = each.stream_handle;
    event.time_ns = now_ns;
    event.arena = each.arena;
    event.tag = each.tag;
    event.library = each.library;
    if (!live_.is_chosen(to_integer(each.address))) continue;
    const RecordedEvent lives = numbered(event);
    live_.insert(lives);
    add(lives);
  }
}

// Keeps events for the next flush if host memory is short, as long as there is room: a file that
// lacks events in between could not be read.
std::uint64_t BlockSink::flush() noexcept {
  if (!events_.empty() && write_events()) events_.clear();
  is_over_ = is_over_ || window_.is_broken() || events_.size() == kEventsPerBlock;
  if (is_over_) {
    left_out_ += events_.size();
    events_.clear();
  }
  return std::exchange(left_out_, 0);
}

bool BlockSink::write_events() noexcept try {
  if (is_over_ || !definitions_.write_to(window_)) return false;
  const auto* const bytes =
      reinterpret_cast<const char*>(events_.data());  // NOLINT: of a plain struct
  if (!window_.write(BlockKind::events, {bytes, events_.size() * sizeof(RecordedEvent)}))
    return false;
  window_.keep_short(live_, last_ns_);
  return true;
} catch (const std::exception&) {  // no host memory
  return false;
}

void BlockSink::close(std::uint64_t lost, bool is_exit) noexcept try {
  lost += flush() + events_.size();
  JsonObject end;
  end.add("lost", std::to_string(lost));
  end.add("ended", json_quoted(is_exit ? "exit" : "stopped"));
  end.add("peak_live_bytes", std::to_string(live_.peak_bytes()));
  end.add("peak_mapped_bytes", std::to_string(peak_mapped_));
  window_.write(BlockKind::end, end.text());
  window_.close();
} catch (const std::exception&) {
  window_.keep_error("no host memory for its end");
  window_.close();
}

}  // namespace

Result<std::unique_ptr<RecordingSink>> make_block_sink(const std::string& path,
                                                       std::uint64_t start_ns,
                                                       const RecordingOptions& options,
                                                       StackTable& stacks) {
  VPMM_TRY_ASSIGN(auto file, BlockFile::create(path));
  if ((options.limit != 0 || options.window_ns != 0) && !file->is_regular())
    return Error{ErrorCode::bad_file,
                 fmt::format("{}: a recording with a limit needs a regular file", path)};
  auto sink = std::make_unique<BlockSink>(std::move(file), start_ns, options, stacks);
  VPMM_TRY(sink->write_header());
  return std::unique_ptr<RecordingSink>(std::move(sink));
}

}  // namespace vpmm::observe
