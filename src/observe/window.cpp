// SPDX-License-Identifier: Apache-2.0
// observe: cuts off the older part of a recording.
#include "observe/window.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "observe/json_text.hpp"

namespace vpmm::observe {
namespace {

std::vector<std::string> command_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> command;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    command.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return command;
}

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool write_events(BlockFile& file, const std::vector<RecordedEvent>& events) {
  for (std::size_t begin = 0; begin < events.size(); begin += kEventsPerBlock) {
    const std::size_t count = std::min(events.size() - begin, kEventsPerBlock);
    const auto* const bytes =
        reinterpret_cast<const char*>(events.data() + begin);  // NOLINT: of a plain struct
    if (!file.write(BlockKind::events, {bytes, count * sizeof(RecordedEvent)})) return false;
  }
  return true;
}

}  // namespace

Window::Window(std::unique_ptr<BlockFile> file, const RecordingOptions& options)
    : options_(options), started_unix_ns_(unix_ns()), file_(std::move(file)) {}

std::string Window::header_text(bool is_window) const {
  const RecordingHeader& header = options_.header;
  JsonObject settings;
  for (const auto& [name, value] : header.settings) settings.add(name, json_quoted(value));
  std::string command;
  for (const std::string& word : command_of_process())
    command += (command.empty() ? "" : ",") + json_quoted(word);
  JsonObject json;
  json.add("version", json_quoted(VPMM_VERSION));
  json.add("pid", std::to_string(getpid()));
  json.add("device", std::to_string(header.device));
  json.add("device_name", json_quoted(header.device_name));
  json.add("page_size", std::to_string(header.page_size));
  json.add("grain", std::to_string(header.grain));
  if (header.capacity) json.add("capacity", std::to_string(*header.capacity));
  json.add("device_bytes", std::to_string(header.device_bytes));
  json.add("started_unix_ns", std::to_string(started_unix_ns_));
  json.add("command", "[" + command + "]");
  json.add("settings", settings.text());
  json.add("stacks", json_quoted(header.stacks));
  json.add("sample", std::to_string(options_.sample));
  json.add("source", json_quoted("vpmm"));
  json.add("is_window", is_window ? "true" : "false");
  return json.text();
}

bool Window::write_header() noexcept try {
  return file_->write(BlockKind::header, header_text(false));
} catch (const std::exception&) {
  file_->keep_error("no host memory");
  return false;
}

bool Window::write_lasting(std::string_view bytes) {
  lasting_.reserve(lasting_.size() + 1);
  const std::uint64_t begin = file_->size();
  if (!file_->write(BlockKind::definitions, bytes)) return false;
  lasting_.push_back({begin, file_->size()});
  return true;
}

bool Window::is_due(std::uint64_t now_ns) const {
  if (file_->size() < retry_at_) return false;
  if (options_.limit != 0 && file_->size() - newer_ >= options_.limit / 2) return true;
  return options_.window_ns != 0 && now_ns - newer_since_ns_ >= options_.window_ns;
}

void Window::keep_short(const LiveTable& live, std::uint64_t now_ns) noexcept try {
  if (!is_due(now_ns)) return;
  std::vector<RecordedEvent> lives = live.as_live_events();
  if (newer_ != 0 && !leave_out_older()) {
    retry_at_ = file_->size() + std::max<Bytes>(options_.limit / 4, kMiB);
    return;
  }
  lived_ = std::move(lives);
  newer_ = file_->size();
  newer_since_ns_ = now_ns;
  retry_at_ = 0;
} catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as said
}

bool Window::leave_out_older() {
  Result<std::unique_ptr<BlockFile>> made = BlockFile::create(file_->path() + ".new", file_.get());
  if (!made) {
    file_->keep_error(made.error().message.c_str());
    return false;
  }
  BlockFile& next = *made.value();
  std::vector<WindowRange> lasting;
  lasting.reserve(lasting_.size());
  bool is_done = next.write(BlockKind::header, header_text(true));
  for (const WindowRange& place : lasting_) {
    if (place.begin >= newer_) break;
    const std::uint64_t begin = next.size();
    is_done = is_done && next.copy(*file_, place.begin, place.end);
    lasting.push_back({begin, next.size()});
  }
  is_done = is_done && write_events(next, lived_);
  const std::uint64_t begin = next.size();
  for (const WindowRange& place : lasting_)
    if (place.begin >= newer_)
      lasting.push_back({place.begin - newer_ + begin, place.end - newer_ + begin});
  is_done = is_done && next.copy(*file_, newer_, file_->size()) && next.replace(*file_);
  if (!is_done) {
    next.remove();
    file_->keep_error(fmt::format("without its older part: {}", next.error()).c_str());
    return false;
  }
  if (!file_->error().empty()) next.keep_error(file_->error().c_str());
  file_ = std::move(made).value();
  lasting_ = std::move(lasting);
  return true;
}

}  // namespace vpmm::observe
