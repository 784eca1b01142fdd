// SPDX-License-Identifier: Apache-2.0
// observe: reads a recording block by block, and refuses any deviation from the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "observe/gzip_input.hpp"
#include "observe/recorded_event.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::observe {

// Blocks in order of a file that begins with "VPMMREC": a header first, an end last.
class BlockReader {
 public:
  struct RecordedBlock {
    BlockKind kind{};
    std::string bytes;
  };

  BlockReader(std::string path, std::unique_ptr<GzipInput> input)
      : path_(std::move(path)), input_(std::move(input)) {}

  // nullopt: end of the file. bad_file: "PATH: byte OFFSET: reason", with the block's offset.
  Result<std::optional<RecordedBlock>> next();
  Error error(const std::string& reason) const;  // at the block read last
  // After the end of the file: it lacks an end block, or stops inside a block.
  bool is_cut() const { return !has_end_; }

 private:
  Result<std::size_t> read(char* out, std::size_t size);
  Result<void> read_magic();
  Result<RecordedBlock> decompressed(const BlockHeader& header, const std::string& stored);
  Result<void> check(const BlockHeader& header);

  const std::string path_;
  const std::unique_ptr<GzipInput> input_;
  std::uint64_t offset_ = 0;  // of the block
  std::uint64_t at_ = 0;      // of the next read
  std::uint64_t blocks_ = 0;
  std::uint64_t decompressed_ = 0;  // bytes of all blocks
  bool has_end_ = false;
};

// Returns the allocations and frees of such a file.
Result<Trace> read_recorded_trace(const std::string& path, const std::string& name,
                                  std::unique_ptr<GzipInput> input);

}  // namespace vpmm::observe
