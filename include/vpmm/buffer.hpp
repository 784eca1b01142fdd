// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: owners of allocations. vpmm.hpp includes it.
#ifndef VPMM_BUFFER_HPP
#define VPMM_BUFFER_HPP

#include <cstddef>
#include <optional>
#include <utility>

#include "vpmm/pool.hpp"
#include "vpmm/result.hpp"
#include "vpmm/stream_ref.hpp"
#include "vpmm/vpmm.h"

namespace vpmm {

// Frees memory of `pool` on a stream, as a deleter of std::unique_ptr:
// std::unique_ptr<void, vpmm::deleter> owner(pool.allocate(n, s), vpmm::deleter(pool, s)). Keeps a
// memory_pool that it was made from. It cannot report errors: a pointer that is not the pool's is
// counted as a caller's mistake. A deleter that was moved from has a null pool.
class deleter {
 public:
  deleter() noexcept = default;  // of a null pointer
  deleter(shared_pool pool, stream_ref stream) noexcept : pool_(std::move(pool)), stream_(stream) {}
  deleter(shared_pool pool, any_stream_t) noexcept : pool_(std::move(pool)) {}

  void operator()(void* ptr) const noexcept {
    if (ptr == nullptr) return;
    if (stream_)
      (void)vpmm_deallocate(pool_.handle(), ptr, stream_->handle());
    else
      (void)vpmm_deallocate_any_stream(pool_.handle(), ptr);
  }
  const shared_pool& pool() const noexcept { return pool_; }
  std::optional<stream_ref> stream() const noexcept { return stream_; }  // none: any stream
  // Changes the stream of later calls. Does not order the streams.
  void set_stream(stream_ref stream) noexcept { stream_ = stream; }
  void set_stream(any_stream_t) noexcept { stream_.reset(); }

 private:
  shared_pool pool_{pool_ref(nullptr)};
  std::optional<stream_ref> stream_;
};

// Owns an allocation and frees it on the stream that it remembers. Made from a memory_pool, it
// keeps the pool; made from a pool_ref, the pool must outlive it. Movable; use it from one thread
// at a time.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(shared_pool pool, std::size_t bytes, stream_ref stream, std::size_t alignment = 0)
      : data_(pool.allocate(bytes, stream, alignment)),
        size_(bytes),
        deleter_(std::move(pool), stream) {}
  buffer(shared_pool pool, std::size_t bytes, any_stream_t, std::size_t alignment = 0)
      : data_(pool.allocate(bytes, any_stream, alignment)),
        size_(bytes),
        deleter_(std::move(pool), any_stream) {}
  // Takes ownership of memory that was allocated from `pool`.
  static buffer adopt(shared_pool pool, void* data, std::size_t bytes,
                      std::optional<stream_ref> stream) noexcept {
    buffer adopted;
    adopted.data_ = data;
    adopted.size_ = bytes;
    adopted.deleter_ = deleter(std::move(pool), any_stream);
    if (stream) adopted.set_stream(*stream);
    return adopted;
  }
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() { reset(); }

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }  // bytes requested
  bool empty() const noexcept { return size_ == 0; }
  std::optional<stream_ref> stream() const noexcept { return deleter_.stream(); }  // none: any
  // Keeps, in a copy or in what is made from it, the memory_pool that the buffer keeps.
  const shared_pool& pool() const noexcept { return deleter_.pool(); }

  // Sets the stream of the later free. It does not order the streams: make `stream` wait for work
  // that still uses the memory on the old one, or name the old one with record_use.
  void set_stream(stream_ref stream) noexcept { deleter_.set_stream(stream); }
  void set_stream(any_stream_t) noexcept { deleter_.set_stream(any_stream); }
  void record_use(stream_ref stream) const { pool().record_use(data_, stream); }

  // Frees the memory now. A destructor cannot report an error, and no action of the caller can
  // cause one here.
  void reset() noexcept {
    deleter_(std::exchange(data_, nullptr));
    size_ = 0;
  }
  // Passes ownership of the memory to the caller, who also keeps its pool.
  [[nodiscard]] void* release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }
  void swap(buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(deleter_, other.deleter_);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  deleter deleter_;
};

inline result<buffer> try_make_buffer(shared_pool pool, std::size_t bytes, stream_ref stream,
                                      std::size_t alignment = 0) {
  const result<void*> memory = pool.try_allocate(bytes, stream, alignment);
  if (!memory) return result<buffer>::failed(memory.status());
  return buffer::adopt(std::move(pool), memory.value(), bytes, stream);
}
inline result<buffer> try_make_buffer(shared_pool pool, std::size_t bytes, any_stream_t,
                                      std::size_t alignment = 0) {
  const result<void*> memory = pool.try_allocate(bytes, any_stream, alignment);
  if (!memory) return result<buffer>::failed(memory.status());
  return buffer::adopt(std::move(pool), memory.value(), bytes, std::nullopt);
}

}  // namespace vpmm

#endif
