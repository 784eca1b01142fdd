// SPDX-License-Identifier: Apache-2.0
// observe: bytes of a file, gzip or plain; tells a cut stream from a damaged one.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace vpmm::observe {

// Replaces zlib's gzFile, which ignores any bytes behind the stream, and takes a cut stream for a
// damaged one.
class GzipInput {
 public:
  // Both return the bare reason as error, without the file's name.
  static Result<std::unique_ptr<GzipInput>> open(const std::string& path);
  static Result<std::unique_ptr<GzipInput>> standard_input();
  // Tells if the file begins with `bytes`, at most a few. Requires: nothing is read yet.
  bool begins_with(std::string_view bytes) const;
  // Reads up to `size` bytes; 0: the end.
  Result<std::size_t> read(char* out, std::size_t size);
  ~GzipInput();
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  // Bytes of the file, compressed or not, that were taken from it.
  std::uint64_t taken() const { return taken_; }
  // At the end: the file ended inside the compressed stream. All bytes before were returned.
  bool is_cut() const { return is_cut_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  using File = std::unique_ptr<std::FILE, Closer>;

  explicit GzipInput(File file);
  static Result<std::unique_ptr<GzipInput>> begin(File file);
  Result<void>
  fill();  // fills input_, or up to the end of the file; unconsumed bytes stay in front
  bool starts_member() const;
  Result<std::size_t> inflate_some(char* out, std::size_t size);

  const File file_;
  std::vector<unsigned char> input_;
  z_stream stream_{};  // next_in and avail_in: unconsumed part of input_, for plain files too
  std::uint64_t taken_ = 0;
  bool is_compressed_ = false;
  bool is_between_members_ = true;  // `cat a.gz b.gz` is a gzip file
  bool is_cut_ = false;
};

}  // namespace vpmm::observe
