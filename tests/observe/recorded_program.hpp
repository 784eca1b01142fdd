// SPDX-License-Identifier: Apache-2.0
// tests: a program that is recorded, in calls of one line.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/trace_writer.hpp"

namespace vpmm::observe {

constexpr DevicePtr kA{0x10000};
constexpr DevicePtr kB{0x20000};

class RecordedProgram {
 public:
  static Result<std::unique_ptr<RecordedProgram>> create(const std::string& path,
                                                         std::uint64_t now_us,
                                                         const RecordingOptions& options = {},
                                                         std::vector<LiveAllocation> live = {}) {
    auto channel = std::make_shared<RecordingChannel>();
    VPMM_TRY_ASSIGN(auto writer, TraceWriter::create(path, now_us * 1000, channel, options));
    VPMM_TRY(writer->begin(std::move(live), now_us * 1000));
    return std::make_unique<RecordedProgram>(std::move(channel), std::move(writer));
  }
  RecordedProgram(std::shared_ptr<RecordingChannel> channel, std::unique_ptr<TraceWriter> writer)
      : channel_(std::move(channel)), writer_(std::move(writer)) {}

  void record_allocate(DevicePtr ptr, Bytes bytes, std::optional<std::uint64_t> stream,
                       std::uint64_t us) noexcept {
    record(RecordedKind::allocate, ptr, bytes, stream, us);
  }
  void record_deallocate(DevicePtr ptr, std::optional<std::uint64_t> stream,
                         std::uint64_t us) noexcept {
    record(RecordedKind::free, ptr, 0, stream, us);
  }
  void record(RecordedKind kind, DevicePtr ptr, Bytes bytes, std::optional<std::uint64_t> stream,
              std::uint64_t us, std::unique_ptr<std::string> text = nullptr,
              std::uint64_t value = 0) noexcept {
    QueuedEvent event;
    event.kind = kind;
    event.address = ptr;
    event.bytes = bytes;
    event.stream = stream;
    event.time_ns = us * 1000;
    event.text = std::move(text);
    event.value = value;
    channel_->queue.put(std::move(event));
  }
  Result<void> close() { return writer_->close(); }
  Result<void> close(std::chrono::milliseconds patience) { return writer_->close(patience); }
  EventQueue& queue() { return channel_->queue; }
  RecordingChannel& channel() { return *channel_; }

 private:
  const std::shared_ptr<RecordingChannel> channel_;
  const std::unique_ptr<TraceWriter> writer_;
};

}  // namespace vpmm::observe
