// SPDX-License-Identifier: Apache-2.0
// observe: a file of compressed blocks, each whole or absent.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "observe/own_file.hpp"
#include "observe/recorded_event.hpp"

namespace vpmm::observe {

// Keeps its first error; writes no more after one that may have left a partial block. Of one
// thread.
class BlockFile {
 public:
  // `like`: the file gets its permissions. ErrorCode::file_in_use: another recording writes the
  // file; bad_file: it cannot be created or begun.
  static Result<std::unique_ptr<BlockFile>> create(const std::string& path,
                                                   const BlockFile* like = nullptr);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // False: not in the file; without is_broken() for want of host memory.
  bool write(BlockKind kind, std::string_view bytes) noexcept;
  // Appends the bytes [begin, end) of `from`, one or several blocks.
  bool copy(const BlockFile& from, std::uint64_t begin, std::uint64_t end) noexcept;
  // Takes the place of `old`. Requires: our path is that of `old` and a suffix. False: both are
  // unchanged.
  bool replace(const BlockFile& old) noexcept;
  void remove() noexcept;
  void close() noexcept;

  bool is_broken() const { return is_broken_; }
  std::uint64_t size() const { return size_; }
  bool is_regular() const { return file_->is_regular(); }
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }  // empty: no error
  void keep_error(const char* text) noexcept;

 private:
  struct ContextDeleter {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  BlockFile(std::string path, std::unique_ptr<OwnFile> file);
  bool append(std::string_view bytes) noexcept;

  std::string path_;
  const std::unique_ptr<OwnFile> file_;
  bool is_broken_ = false;
  std::uint64_t size_ = 0;  // of whole blocks
  std::string error_;
  const std::unique_ptr<ZSTD_CCtx, ContextDeleter> context_;
  std::vector<char> stored_;
};

}  // namespace vpmm::observe
