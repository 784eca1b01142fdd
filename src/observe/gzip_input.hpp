// observe: the bytes of a file, gzip or plain, which tells a stream that was cut from one that is
// damaged.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace vpmm::observe {

// zlib's own gzFile takes anything behind the stream for nothing, and a cut stream for a damaged
// one.
class GzipInput {
 public:
  // The error of both is the bare reason, without the file's name.
  static Result<std::unique_ptr<GzipInput>> open(const std::string& path);
  static Result<std::unique_ptr<GzipInput>> standard_input();
  // Whether the file does, before anything is read. Requires: no more than a few bytes.
  bool begins_with(std::string_view bytes) const;
  // Up to `size` bytes; 0: the end.
  Result<std::size_t> read(char* out, std::size_t size);
  ~GzipInput();
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  // At the end: the file ended inside the compressed stream. All that came before it was read.
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
  fill();  // until input_ is full or the file ends; what was not consumed stays in front
  bool starts_member() const;
  Result<std::size_t> inflate_some(char* out, std::size_t size);

  const File file_;
  std::vector<unsigned char> input_;
  z_stream stream_{};  // next_in and avail_in: what of input_ is not consumed, for plain files too
  bool is_compressed_ = false;
  bool is_between_members_ = true;  // `cat a.gz b.gz` is a gzip file
  bool is_cut_ = false;
};

}  // namespace vpmm::observe
