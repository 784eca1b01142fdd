// SPDX-License-Identifier: Apache-2.0
// observe: writes blocks, and puts one file in the place of another.
#include "observe/block_file.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

namespace vpmm::observe {
namespace {

// Lowest level: recording must not slow the program down.
constexpr int kLevel = 1;

}  // namespace

Result<std::unique_ptr<BlockFile>> BlockFile::create(const std::string& path,
                                                     const BlockFile* like) {
  VPMM_TRY_ASSIGN(auto own, OwnFile::create(path, OwnFile::Access::read_and_write,
                                            like == nullptr ? nullptr : like->file_.get()));
  std::unique_ptr<BlockFile> file(new BlockFile(path, std::move(own)));
  if (!file->context_)
    return Error{ErrorCode::host_out_of_memory, "no memory to compress a recording"};
  if (file->append(kRecordingMagic)) return file;
  return Error{ErrorCode::bad_file, fmt::format("{}: cannot be created: {}", path, file->error_)};
}

BlockFile::BlockFile(std::string path, std::unique_ptr<OwnFile> file)
    : path_(std::move(path)), file_(std::move(file)), context_(ZSTD_createCCtx()) {
  if (context_) ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
}

BlockFile::~BlockFile() { close(); }

void BlockFile::close() noexcept {
  is_broken_ = true;
  if (!file_->close()) keep_error(std::strerror(errno));
}

void BlockFile::keep_error(const char* text) noexcept {
  if (!error_.empty()) return;
  try {
    error_ = text;
  } catch (...) {
    error_ = "unknown";  // short enough to need no memory
  }
}

bool BlockFile::append(std::string_view bytes) noexcept {
  if (is_broken_) return false;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(file_->descriptor(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      keep_error(std::strerror(errno));
      is_broken_ = true;  // blocks behind a partial one could not be read
      if (is_regular())
        static_cast<void>(::ftruncate(file_->descriptor(), static_cast<off_t>(size_)) == 0);
      return false;
    }
    done += static_cast<std::size_t>(count);
  }
  size_ += bytes.size();
  return true;
}

bool BlockFile::write(BlockKind kind, std::string_view bytes) noexcept try {
  BlockHeader header{kBlockMagic, static_cast<std::uint32_t>(kind), 0,
                     static_cast<std::uint32_t>(bytes.size()), 0};
  stored_.resize(sizeof(header) + ZSTD_compressBound(bytes.size()));
  char* const frame = stored_.data() + sizeof(header);
  const std::size_t size = ZSTD_compress2(context_.get(), frame, stored_.size() - sizeof(header),
                                          bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0) {
    return false;  // out of zstd's own memory
  }
  header.stored = static_cast<std::uint32_t>(size);
  header.crc = static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(frame),
                                                static_cast<uInt>(size)));  // NOLINT: zlib's bytes
  std::memcpy(stored_.data(), &header, sizeof(header));
  return append({stored_.data(), sizeof(header) + size});
} catch (const std::exception&) {  // no host memory
  return false;
}

bool BlockFile::copy(const BlockFile& from, std::uint64_t begin, std::uint64_t end) noexcept {
  std::array<char, std::size_t{1} << 16> some;
  while (begin < end) {
    const ssize_t count = ::pread(from.file_->descriptor(), some.data(),
                                  std::min<std::uint64_t>(some.size(), end - begin), off_t(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      keep_error(count < 0 ? std::strerror(errno) : "it was cut by others");
      return false;
    }
    if (!append({some.data(), static_cast<std::size_t>(count)})) return false;
    begin += static_cast<std::uint64_t>(count);
  }
  return true;
}

bool BlockFile::replace(const BlockFile& old) noexcept {
  if (std::rename(path_.c_str(), old.path_.c_str()) != 0) {
    keep_error(std::strerror(errno));
    return false;
  }
  path_.resize(old.path_.size());  // it was `old.path_` and a suffix
  return true;
}

void BlockFile::remove() noexcept { ::unlink(path_.c_str()); }

}  // namespace vpmm::observe
