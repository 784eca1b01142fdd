// SPDX-License-Identifier: Apache-2.0
// observe: destination of a recording's events: a file of one format or another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/result.hpp"
#include "observe/event_queue.hpp"
#include "observe/stack_table.hpp"

namespace vpmm::observe {

// An allocation alive at the begin of the recording.
struct LiveAllocation {
  DevicePtr address{};
  Bytes requested = 0;
  Bytes taken = 0;
  std::optional<std::uint64_t> stream;
  std::optional<std::uint64_t> stream_handle;
  std::uint64_t arena = 0;
  std::uint32_t tag = 0;
  std::uint32_t library = 0;
};

struct RecordingHeader {
  std::uint32_t device = 0;
  std::string device_name;
  Bytes page_size = 0;
  Bytes grain = 0;
  std::optional<Bytes> capacity;  // nullopt: the GPU's memory
  Bytes device_bytes = 0;
  std::vector<std::pair<std::string, std::string>> settings;
  std::string stacks = "none";
  const char* (*tag_name)(std::uint32_t tag) = nullptr;  // null: tags have no names
};

struct RecordingOptions {
  RecordingHeader header;
  std::uint32_t sample = 1;     // one allocation in so many
  Bytes limit = 0;              // of the file; 0: none
  std::uint64_t window_ns = 0;  // least time that the file reaches back; 0: to the beginning
};

// Used by one thread at a time. Keeps its first error. After std::bad_alloc of write() the event is
// left out.
class RecordingSink {
 public:
  RecordingSink() = default;
  RecordingSink(const RecordingSink&) = delete;
  RecordingSink& operator=(const RecordingSink&) = delete;
  virtual ~RecordingSink() = default;

  virtual void begin(const std::vector<LiveAllocation>& live, std::uint64_t now_ns) = 0;
  virtual void write(const QueuedEvent& event) = 0;
  // Makes the file complete up to here. Returns the number of events left out since the last flush.
  virtual std::uint64_t flush() noexcept = 0;
  virtual void close(std::uint64_t lost, bool is_exit) noexcept = 0;
  virtual const std::string& error() const = 0;  // empty: no error
};

// ErrorCode::file_in_use: another recording writes the file; bad_file: it cannot be created.
Result<std::unique_ptr<RecordingSink>> make_csv_sink(const std::string& path,
                                                     std::uint64_t start_ns);
Result<std::unique_ptr<RecordingSink>> make_block_sink(const std::string& path,
                                                       std::uint64_t start_ns,
                                                       const RecordingOptions& options,
                                                       StackTable& stacks);

}  // namespace vpmm::observe
