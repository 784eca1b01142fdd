// observe: a recording, read block by block, refusing everything that is not exactly one.
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

// The blocks of a file that begins with "VPMMREC", in their order: a header, and behind an end
// nothing.
class BlockReader {
 public:
  struct Block {
    BlockKind kind{};
    std::string bytes;
  };

  BlockReader(std::string path, std::unique_ptr<GzipInput> input)
      : path_(std::move(path)), input_(std::move(input)) {}

  // None: the file has ended. bad_file: "PATH: byte OFFSET: reason", the offset of the block.
  Result<std::optional<Block>> next();
  Error error(const std::string& reason) const;  // of the block that was read last
  // Once it has ended: without an end, or inside a block.
  bool is_cut() const { return !has_end_; }

 private:
  Result<std::size_t> read(char* out, std::size_t size);
  Result<void> read_magic();
  Result<Block> decompressed(const BlockHeader& header, const std::string& stored);
  Result<void> check(const BlockHeader& header);

  const std::string path_;
  const std::unique_ptr<GzipInput> input_;
  std::uint64_t offset_ = 0;  // of the block
  std::uint64_t at_ = 0;      // of what is read next
  std::uint64_t blocks_ = 0;
  bool has_end_ = false;
};

// Of such a file, what was allocated and freed.
Result<Trace> read_recorded_trace(const std::string& path, const std::string& name,
                                  std::unique_ptr<GzipInput> input);

}  // namespace vpmm::observe
