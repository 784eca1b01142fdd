// SPDX-License-Identifier: Apache-2.0
// observe: allocations and frees from the events of a recording.
#include "observe/recording_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace vpmm::observe {
namespace {

class Tables {
 public:
  // Returns the fault as text; empty: no fault.
  std::string add(const nlohmann::json& json) {
    for (const auto& [name, table] : json.items()) {
      if (!table.is_object()) return fmt::format("the definitions of `{}` are no object", name);
      std::unordered_set<std::uint64_t>* const numbers = numbers_of(name);
      for (const auto& [key, value] : table.items()) {
        std::uint64_t number = 0;
        const char* const end = key.data() + key.size();
        const auto [stop, problem] = std::from_chars(key.data(), end, number);
        if (problem != std::errc{} || stop != end)
          return fmt::format("`{}` is no number of `{}`", key, name);
        if (name == "stacks" ? !value.is_array() : !value.is_string())
          return fmt::format("what number {} of `{}` stands for is of another type", number, name);
        if (numbers != nullptr) numbers->insert(number);
      }
    }
    return {};
  }

  std::string missing(const RecordedEvent& event) const {
    if (event.stream != kNoRecordedStream && !streams_.contains(event.stream))
      return fmt::format("stream {} is not defined", event.stream);
    if (event.stack != 0 && !stacks_.contains(event.stack))
      return fmt::format("stack {} is not defined", event.stack);
    const auto kind = static_cast<RecordedKind>(event.kind);
    const bool has_text = kind == RecordedKind::allocate_failed ||
                          kind == RecordedKind::out_of_memory || kind == RecordedKind::mark;
    if (has_text && event.value != 0 && !strings_.contains(event.value))
      return fmt::format("string {} is not defined", event.value);
    return {};
  }

 private:
  std::unordered_set<std::uint64_t>* numbers_of(const std::string& name) {
    if (name == "streams") return &streams_;
    if (name == "stacks") return &stacks_;
    return name == "strings" ? &strings_ : nullptr;
  }

  std::unordered_set<std::uint64_t> streams_;
  std::unordered_set<std::uint64_t> stacks_;
  std::unordered_set<std::uint64_t> strings_;
};

class RecordedTraceBuilder {
 public:
  explicit RecordedTraceBuilder(std::string name) { trace_.name = std::move(name); }

  // Each returns the fault as text; empty: no fault.
  std::string read_header(const nlohmann::json& json) {
    const auto bytes_of = [&](const char* key) -> std::optional<Bytes> {
      const auto found = json.find(key);
      return found != json.end() && found->is_number_unsigned() ? std::optional(found->get<Bytes>())
                                                                : std::nullopt;
    };
    trace_.capacity = bytes_of("capacity");
    trace_.device_bytes = bytes_of("device_bytes");
    return {};
  }

  std::string define(const nlohmann::json& json) { return tables_.add(json); }

  std::string add(const RecordedEvent& event) {
    if (event.kind == 0 || event.kind > kLastRecordedKind)
      return fmt::format("there is no event of kind {}", event.kind);
    if (event.time_ns < last_ns_)
      return fmt::format("time {} is before the {} of an earlier event", event.time_ns, last_ns_);
    last_ns_ = event.time_ns;
    if (std::string missing = tables_.missing(event); !missing.empty()) return missing;
    switch (static_cast<RecordedKind>(event.kind)) {
      case RecordedKind::allocate:
      case RecordedKind::live: return allocate(event);
      case RecordedKind::free: return deallocate(event);
      case RecordedKind::allocate_failed: return fail(event);
      default: return {};
    }
  }

  Trace take() {
    trace_.allocations = next_;
    trace_.streams = streams_.size();
    return std::move(trace_);
  }

 private:
  struct LiveTrace {
    std::size_t number = 0;
    Bytes bytes = 0;
    std::size_t stream = 0;
  };

  std::size_t stream_of(std::uint32_t stream) {
    return streams_.try_emplace(stream, streams_.size()).first->second;
  }

  std::string allocate(const RecordedEvent& event) {
    const LiveTrace live{next_, event.bytes, stream_of(event.stream)};
    if (!live_.try_emplace(event.address, live).second)
      return fmt::format("{:#x} is allocated while it lives", event.address);
    ++next_;
    trace_.events.push_back({TraceEvent::TraceKind::allocate, live.number, event.bytes, live.stream,
                             event.time_ns / 1000, false});
    return {};
  }

  // A free without a stream has that of its allocation.
  std::string deallocate(const RecordedEvent& event) {
    const auto found = live_.find(event.address);
    if (found == live_.end()) return fmt::format("{:#x} is freed and does not live", event.address);
    const LiveTrace live = found->second;
    if (event.bytes != 0 && event.bytes != live.bytes)
      return fmt::format("a free of {} bytes, where the allocation has {}", event.bytes,
                         live.bytes);
    live_.erase(found);
    const std::size_t stream =
        event.stream == kNoRecordedStream ? live.stream : stream_of(event.stream);
    trace_.events.push_back({TraceEvent::TraceKind::deallocate, live.number, live.bytes, stream,
                             event.time_ns / 1000, false});
    return {};
  }

  std::string fail(const RecordedEvent& event) {
    if ((event.flags & kNotForWantOfMemory) != 0) return {};
    ++trace_.failed;
    trace_.events.push_back({TraceEvent::TraceKind::allocate, next_++, event.bytes,
                             stream_of(event.stream), event.time_ns / 1000, true});
    return {};
  }

  Trace trace_;
  Tables tables_;
  std::uint64_t last_ns_ = 0;
  std::size_t next_ = 0;  // number of the next allocation
  std::unordered_map<std::uint64_t, LiveTrace> live_;
  std::unordered_map<std::uint32_t, std::size_t> streams_;
};

std::string add_events(const std::string& bytes, RecordedTraceBuilder& builder) {
  if (bytes.size() % sizeof(RecordedEvent) != 0)
    return fmt::format("{} bytes are no whole number of events", bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(RecordedEvent)) {
    RecordedEvent event;
    std::memcpy(&event, bytes.data() + at, sizeof(event));
    if (std::string wrong = builder.add(event); !wrong.empty())
      return fmt::format("event {} of the block: {}", at / sizeof(RecordedEvent), wrong);
  }
  return {};
}

std::string add_block(const BlockReader::RecordedBlock& block, RecordedTraceBuilder& builder) {
  if (block.kind == BlockKind::events) return add_events(block.bytes, builder);
  const nlohmann::json json = nlohmann::json::parse(block.bytes, nullptr, false);
  if (!json.is_object()) return "the block is no JSON object";
  if (block.kind == BlockKind::header) return builder.read_header(json);
  return block.kind == BlockKind::definitions ? builder.define(json) : "";
}

}  // namespace

Result<Trace> read_recorded_trace(const std::string& path, const std::string& name,
                                  std::unique_ptr<GzipInput> input) {
  BlockReader blocks(path, std::move(input));
  RecordedTraceBuilder builder(name);
  while (true) {
    VPMM_TRY_ASSIGN(const std::optional<BlockReader::RecordedBlock> block, blocks.next());
    if (!block) break;
    if (const std::string wrong = add_block(*block, builder); !wrong.empty())
      return blocks.error(wrong);
  }
  Trace trace = builder.take();
  if (blocks.is_cut())
    trace.warning = fmt::format(
        "{}: the file is cut short, for its recording was not stopped: {} events were read", path,
        trace.events.size());
  return trace;
}

}  // namespace vpmm::observe
