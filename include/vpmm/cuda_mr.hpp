// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17: a pool as a memory resource of cuda::mr, for CCCL's containers, RMM,
// Thrust and CUB.
//
// Needs CCCL 3.1 or newer. In CCCL 3.1 memory resources are experimental: include this header
// before any CCCL header, or define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE. The guide is
// docs/guides/cuda-mr.md.
#ifndef VPMM_CUDA_MR_HPP
#define VPMM_CUDA_MR_HPP

#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif

#include <cuda/version>
#if CCCL_VERSION < 3001000
#error "vpmm/cuda_mr.hpp needs CCCL 3.1 or newer (CUDA 13.1): put a newer CCCL first"
#endif

#include <cuda/memory_resource>
#include <cuda/std/type_traits>
#include <cuda/stream_ref>

#include <cstddef>
#include <cstdint>
#include <string>

#include "vpmm/vpmm.hpp"

namespace vpmm {

// The compilation of a file decides which stream the handle 0 means. Each choice has its own class,
// so that files of both kinds can be linked into one program.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_default_stream {
inline constexpr std::uintptr_t handle_of_default_stream = 2;  // CU_STREAM_PER_THREAD
#else
inline namespace legacy_default_stream {
inline constexpr std::uintptr_t handle_of_default_stream = 1;  // CU_STREAM_LEGACY
#endif

// A memory resource of cuda::mr that draws from a pool, for work on the pool's device. A value of
// the size of a pointer: copies refer to the same pool, do not own it, and must not be used after
// its destruction; process-wide pools are never destroyed. Any thread may make any call, whichever
// CUDA device is current.
class memory_resource {
 public:
  // The process-wide pool of a device; opens it from the environment if necessary. Throws as
  // default_pool does.
  explicit memory_resource(int device = 0) : pool_(default_pool(device)) {}
  explicit memory_resource(pool_ref pool) noexcept : pool_(pool) {}

  // Memory for work queued on `stream` after the call. `alignment`: a power of two; the address is
  // always aligned to 256 bytes at least. Zero bytes give null. Throws vpmm::out_of_memory, which
  // is a std::bad_alloc. Throws vpmm::failure, which is a std::runtime_error, for an invalid
  // alignment or stream and for a failed device.
  void* allocate(cuda::stream_ref stream, std::size_t bytes,
                 std::size_t alignment = default_alignment) {
    return pool_.allocate(bytes, known(stream), alignment);
  }

  // Frees memory; work queued on `stream` before the call is the last to use it. `stream` may
  // differ from the stream of the allocation. Size and alignment are ignored. If the process is out
  // of memory or the driver fails, the memory is reused only after all work queued so far is over.
  // A pointer that is not the pool's is counted as a caller's mistake. Null does nothing.
  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t,
                  std::size_t = default_alignment) noexcept {
    finish(vpmm_deallocate(pool_.handle(), ptr, known(stream).handle()), ptr);
  }

  // Memory for any work queued on any stream after the call.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return pool_.allocate(bytes, any_stream, alignment);
  }

  // Frees memory without a wait; work queued on any stream before the call may be the last to use
  // it.
  void deallocate_sync(void* ptr, std::size_t, std::size_t = default_alignment) noexcept {
    finish(vpmm_deallocate_any_stream(pool_.handle(), ptr), ptr);
  }

  pool_ref pool() const noexcept { return pool_; }

  friend bool operator==(const memory_resource& left, const memory_resource& right) noexcept {
    return left.pool_ == right.pool_;
  }
  friend bool operator!=(const memory_resource& left, const memory_resource& right) noexcept {
    return !(left == right);
  }

  friend constexpr void get_property(const memory_resource&, cuda::mr::device_accessible) noexcept {
  }
#if CCCL_VERSION >= 3002000
  using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif
  // An execution environment that contains the resource returns it when queried for a memory
  // resource.
  const memory_resource& query(
      const cuda::std::decay_t<decltype(cuda::mr::get_memory_resource)>&) const noexcept {
    return *this;
  }

 private:
  static constexpr std::size_t default_alignment = cuda::mr::default_cuda_malloc_alignment;

  static stream_ref known(cuda::stream_ref stream) noexcept {
    if (stream.get() != nullptr) return stream.get();
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's default streams are small numbers
    return stream_ref::from_handle(reinterpret_cast<vpmm_stream>(handle_of_default_stream));
  }

  // After a failure the memory is still allocated.
  void finish(vpmm_status status, void* ptr) const noexcept {
    if (status != VPMM_OK && status != VPMM_ERROR_INVALID_POINTER)
      vpmm_deallocate_deferred(pool_.handle(), ptr);
  }

  pool_ref pool_;
};

}  // namespace

}  // namespace vpmm

#endif
