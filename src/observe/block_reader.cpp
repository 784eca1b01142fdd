// SPDX-License-Identifier: Apache-2.0
// observe: blocks of a recording, each checked before it is returned.
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "observe/recording_reader.hpp"

namespace vpmm::observe {
namespace {

// A longer one was made to fill the memory: docs/reference/recording.md. The Python package has the
// same bounds.
constexpr std::uint64_t kMostOfSmall = std::uint64_t{512} << 20;
constexpr std::uint64_t kMostTimes = 200;

}  // namespace

Error BlockReader::error(const std::string& reason) const {
  return Error{ErrorCode::bad_file, fmt::format("{}: byte {}: {}", path_, offset_, reason)};
}

// Reads `size` bytes, fewer only at the end of the file.
Result<std::size_t> BlockReader::read(char* out, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    auto count = input_->read(out + done, size - done);
    if (!count) return error(count.error().message);
    if (count.value() == 0) break;
    done += count.value();
  }
  at_ += done;
  return done;
}

Result<void> BlockReader::read_magic() {
  std::array<char, kRecordingMagic.size()> magic{};
  VPMM_TRY_ASSIGN(const std::size_t count, read(magic.data(), magic.size()));
  const std::string_view found(magic.data(), count);
  if (found == kRecordingMagic) return {};
  if (found.size() < magic.size()) return error("the file is cut inside its first bytes");
  return error(fmt::format("version {} of the format, where this program reads version {}",
                           static_cast<unsigned>(static_cast<unsigned char>(found.back())),
                           static_cast<unsigned>(kRecordingMagic.back())));
}

Result<void> BlockReader::check(const BlockHeader& header) {
  if (header.magic != kBlockMagic) return error("no block begins here");
  if (header.kind < 1 || header.kind > 4)
    return error(fmt::format("there is no block of kind {}", header.kind));
  const auto kind = static_cast<BlockKind>(header.kind);
  if (has_end_) return error("a block follows the end");
  if ((blocks_ == 0) != (kind == BlockKind::header))
    return error(blocks_ == 0 ? "the first block is no header" : "a second header");
  if (header.decompressed > kLargestBlock)
    return error(fmt::format("a block of {} bytes: there are none of more than {}",
                             header.decompressed, kLargestBlock));
  if (header.stored > ZSTD_compressBound(kLargestBlock))
    return error(fmt::format("a block of {} stored bytes is larger than any", header.stored));
  decompressed_ += header.decompressed;
  if (decompressed_ > std::max(kMostOfSmall, kMostTimes * input_->taken()))
    return error(fmt::format("decompressed it has {} bytes up to here, which no recording has",
                             decompressed_));
  return {};
}

Result<std::optional<BlockReader::RecordedBlock>> BlockReader::next() {
  if (at_ == 0) VPMM_TRY(read_magic());
  offset_ = at_;
  BlockHeader header;
  VPMM_TRY_ASSIGN(const std::size_t of_header,
                  read(reinterpret_cast<char*>(&header), sizeof(header)));
  const auto end_here = [&]() -> Result<std::optional<RecordedBlock>> {
    if (blocks_ == 0) return error("the file is cut before its header");
    has_end_ = has_end_ && at_ == offset_;
    return std::optional<RecordedBlock>();
  };
  if (of_header < sizeof(header)) {
    if (has_end_ && of_header > 0) return error("something follows the end");
    return end_here();
  }
  VPMM_TRY(check(header));
  std::string stored(header.stored, '\0');
  VPMM_TRY_ASSIGN(const std::size_t count, read(stored.data(), stored.size()));
  if (count < stored.size()) return end_here();
  VPMM_TRY_ASSIGN(RecordedBlock block, decompressed(header, stored));
  ++blocks_;
  has_end_ = block.kind == BlockKind::end;
  return std::optional(std::move(block));
}

Result<BlockReader::RecordedBlock> BlockReader::decompressed(const BlockHeader& header,
                                                             const std::string& stored) {
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(stored.data()), static_cast<uInt>(stored.size()));
  if (crc != header.crc) return error("the block is damaged: its checksum is another");
  RecordedBlock block{static_cast<BlockKind>(header.kind), std::string(header.decompressed, '\0')};
  const std::size_t size =
      ZSTD_decompress(block.bytes.data(), block.bytes.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0)
    return error(fmt::format("the block is damaged ({})", ZSTD_getErrorName(size)));
  if (size != block.bytes.size())
    return error(
        fmt::format("the block has {} bytes, where its header says {}", size, block.bytes.size()));
  return block;
}

}  // namespace vpmm::observe
