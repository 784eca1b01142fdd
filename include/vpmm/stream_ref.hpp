// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: stream arguments. vpmm.hpp includes it.
#ifndef VPMM_STREAM_REF_HPP
#define VPMM_STREAM_REF_HPP

#include <cstddef>
#include <functional>

#include "vpmm/result.hpp"
#include "vpmm/vpmm.h"

struct CUstream_st;  // CUDA's: CUstream and cudaStream_t point to it

namespace vpmm {

// A CUDA stream that it does not own: one word, passed by value. CUstream and cudaStream_t convert
// to it; other pointers, integers and nullptr do not, so that swapped arguments do not compile.
class stream_ref {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for CUDA's own handles
  constexpr stream_ref(CUstream_st* stream) noexcept : handle_(stream) {}
  stream_ref(std::nullptr_t) = delete;  // say default_stream
  stream_ref(int) = delete;
  // The same for a handle that has lost its type, such as one of C or of another language.
  static constexpr stream_ref from_handle(vpmm_stream handle) noexcept {
    stream_ref stream(static_cast<CUstream_st*>(nullptr));
    stream.handle_ = handle;
    return stream;
  }

  constexpr vpmm_stream handle() const noexcept { return handle_; }

  friend constexpr bool operator==(stream_ref left, stream_ref right) noexcept {
    return left.handle_ == right.handle_;
  }
  friend constexpr bool operator!=(stream_ref left, stream_ref right) noexcept {
    return !(left == right);
  }

 private:
  vpmm_stream handle_;
};

// CUDA's stream 0, the legacy default stream, also in files that are compiled for per-thread
// default streams; theirs is cudaStreamPerThread or CU_STREAM_PER_THREAD.
inline constexpr stream_ref default_stream{static_cast<CUstream_st*>(nullptr)};

// Takes the place of a stream argument: memory for any stream.
struct any_stream_t {
  explicit constexpr any_stream_t() = default;
};
inline constexpr any_stream_t any_stream{};

}  // namespace vpmm

// Streams are equal if their handles are.
template <>
struct std::hash<vpmm::stream_ref> {
  std::size_t operator()(vpmm::stream_ref stream) const noexcept {
    return std::hash<void*>()(stream.handle());
  }
};

#endif
