// observe: the file of a recording, which is made anew without its oldest part when it has become
// too large or too old.
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

// The file is an older part and a newer one. When the newer one has half of the limit, or is as old
// as the window, the older is left out: a file is made next to it, with what lived where the newer
// part begins and with the blocks of that part as they are, and takes its place. On any failure the
// old file goes on, and the error is kept.
class Window {
 public:
  Window(std::unique_ptr<BlockFile> file, const RecordingOptions& options);

  bool write_header() noexcept;
  bool write(BlockKind kind, std::string_view bytes) noexcept { return file_->write(kind, bytes); }
  // Definitions that no part may be without.
  bool write_lasting(std::string_view bytes);
  // Requires: everything so far is written. Without host memory nothing changes, and it is tried
  // again.
  void keep_short(const LiveTable& live, std::uint64_t now_ns) noexcept;

  void close() noexcept { file_->close(); }
  bool is_broken() const { return file_->is_broken(); }
  const std::string& path() const { return file_->path(); }
  const std::string& error() const { return file_->error(); }
  void keep_error(const char* text) noexcept { file_->keep_error(text); }

 private:
  struct Place {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  std::string header_text(bool is_window) const;
  bool is_due(std::uint64_t now_ns) const;
  bool leave_out_older();

  const RecordingOptions options_;
  const std::int64_t started_unix_ns_;
  std::unique_ptr<BlockFile> file_;
  std::vector<Place> lasting_;  // ascending
  // --- of the newer part ---
  std::vector<RecordedEvent> lived_;  // where it begins; empty where that is the beginning
  std::uint64_t newer_ = 0;           // where it begins; 0: all of the file is one part
  std::uint64_t newer_since_ns_ = 0;
  std::uint64_t retry_at_ = 0;  // the size of the file from which on it is tried again
};

}  // namespace vpmm::observe
