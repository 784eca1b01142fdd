// SPDX-License-Identifier: Apache-2.0
// observe: inflates a file piece by piece.
#include "observe/gzip_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace vpmm::observe {
namespace {

constexpr std::size_t kInputBytes = std::size_t{64} * 1024;
constexpr int kGzipOnly = 16 + MAX_WBITS;
constexpr unsigned char kMagic[] = {0x1f, 0x8b};

Error bad(std::string reason) { return Error{ErrorCode::bad_file, std::move(reason)}; }

}  // namespace

Result<std::unique_ptr<GzipInput>> GzipInput::open(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return bad(fmt::format("cannot be opened: {}", std::strerror(errno)));
  return begin(std::move(file));
}

Result<std::unique_ptr<GzipInput>> GzipInput::standard_input() { return begin(File(stdin)); }

Result<std::unique_ptr<GzipInput>> GzipInput::begin(File file) {
  std::unique_ptr<GzipInput> input(new GzipInput(std::move(file)));
  VPMM_TRY(input->fill());
  input->is_compressed_ = input->starts_member();
  if (input->is_compressed_ && inflateInit2(&input->stream_, kGzipOnly) != Z_OK) {
    input->is_compressed_ = false;
    return Error{ErrorCode::host_out_of_memory, "no memory to decompress it"};
  }
  return input;
}

GzipInput::GzipInput(File file) : file_(std::move(file)), input_(kInputBytes) {
  stream_.next_in = input_.data();
}

GzipInput::~GzipInput() {
  if (is_compressed_) inflateEnd(&stream_);
}

Result<void> GzipInput::fill() {
  std::memmove(input_.data(), stream_.next_in, stream_.avail_in);
  stream_.next_in = input_.data();
  const std::size_t count = std::fread(input_.data() + stream_.avail_in, 1,
                                       input_.size() - stream_.avail_in, file_.get());
  stream_.avail_in += static_cast<unsigned>(count);
  taken_ += count;
  if (std::ferror(file_.get()) != 0)
    return bad(fmt::format("cannot read on: {}", std::strerror(errno)));
  return {};
}

bool GzipInput::starts_member() const {
  return stream_.avail_in >= sizeof(kMagic) &&
         std::memcmp(stream_.next_in, kMagic, sizeof(kMagic)) == 0;
}

bool GzipInput::begins_with(std::string_view bytes) const {
  return stream_.avail_in >= bytes.size() &&
         std::memcmp(stream_.next_in, bytes.data(), bytes.size()) == 0;
}

Result<std::size_t> GzipInput::read(char* out, std::size_t size) {
  if (stream_.avail_in < sizeof(kMagic)) VPMM_TRY(fill());
  if (is_compressed_) return inflate_some(out, size);
  const std::size_t count = std::min<std::size_t>(size, stream_.avail_in);
  std::memcpy(out, stream_.next_in, count);
  stream_.next_in += count;
  stream_.avail_in -= static_cast<unsigned>(count);
  return count;
}

// Returns bytes inflated before an error first; zlib repeats its error at the next call.
Result<std::size_t> GzipInput::inflate_some(char* out, std::size_t size) {
  stream_.next_out = reinterpret_cast<unsigned char*>(out);
  stream_.avail_out = static_cast<unsigned>(size);
  while (stream_.avail_out == size) {
    if (stream_.avail_in < sizeof(kMagic)) VPMM_TRY(fill());
    if (is_between_members_) {
      if (stream_.avail_in == 0) return 0;
      if (!starts_member())
        return bad("something that is not compressed follows the end of the compressed data");
      is_between_members_ = false;
    }
    const bool is_all = stream_.avail_in == 0;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      is_between_members_ = true;
      inflateReset(&stream_);
      continue;
    }
    if (is_all && stream_.avail_out == size && (code == Z_OK || code == Z_BUF_ERROR)) {
      is_cut_ = true;
      return 0;
    }
    if (code == Z_MEM_ERROR)
      return Error{ErrorCode::host_out_of_memory, "no memory to decompress it"};
    if (code != Z_OK && code != Z_BUF_ERROR && stream_.avail_out == size)
      return bad(fmt::format("the compressed data is damaged ({})",
                             stream_.msg == nullptr ? "?" : stream_.msg));
  }
  return size - stream_.avail_out;
}

}  // namespace vpmm::observe
