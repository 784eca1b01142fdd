// SPDX-License-Identifier: Apache-2.0
// observe: the file of a recording, made anew without its oldest part once too large or too old.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "observe/block_file.hpp"
#include "observe/live_table.hpp"
#include "observe/recording_sink.hpp"

namespace vpmm::observe {

// The file has an older and a newer part. Once the newer one has half of the limit, or the window's
// age, the older is left out: a new file, with the allocations alive at the begin of the newer part
// and its blocks as they are, takes the place of the old. On any failure the old file goes on, and
// the error is kept.
class Window {
 public:
  Window(std::unique_ptr<BlockFile> file, const RecordingOptions& options);

  bool write_header() noexcept;
  bool write(BlockKind kind, std::string_view bytes) noexcept { return file_->write(kind, bytes); }
  // Writes definitions that every part needs.
  bool write_lasting(std::string_view bytes);
  // Starts a new part if due. Requires: all events so far are written. Without host memory it has
  // no effect, and the next call retries.
  void keep_short(const LiveTable& live, std::uint64_t now_ns) noexcept;

  void close() noexcept { file_->close(); }
  bool is_broken() const { return file_->is_broken(); }
  const std::string& path() const { return file_->path(); }
  const std::string& error() const { return file_->error(); }
  void keep_error(const char* text) noexcept { file_->keep_error(text); }

 private:
  struct WindowRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  std::string header_text(bool is_window) const;
  bool is_due(std::uint64_t now_ns) const;
  bool leave_out_older();

  const RecordingOptions options_;
  const std::int64_t started_unix_ns_;
  std::unique_ptr<BlockFile> file_;
  std::vector<WindowRange> lasting_;  // ascending
  // --- of the newer part ---
  std::vector<RecordedEvent> lived_;  // alive at its begin; empty if it begins the file
  std::uint64_t newer_ = 0;           // its begin; 0: the file is one part
  std::uint64_t newer_since_ns_ = 0;
  std::uint64_t retry_at_ = 0;  // size of the file that causes the next try
};

}  // namespace vpmm::observe
