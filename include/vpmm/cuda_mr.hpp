// vpmm: header-only C++17: a pool as a memory resource of cuda::mr, for CCCL's containers, RMM, Thrust and CUB.
//
// Needs CCCL 3.1 or newer. Of 3.1 it is an experimental part: there include this header before any of CCCL, or define
// LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE. docs/guides/cuda-mr.md is the guide.
#ifndef VPMM_CUDA_MR_HPP
#define VPMM_CUDA_MR_HPP

#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif

#include <cuda/version>
#if CCCL_VERSION < 3001000
#error "vpmm/cuda_mr.hpp needs CCCL 3.1 or newer, as in CUDA 13.1; a newer CCCL may be put in front of an older CUDA's"
#endif

#include <cuda/memory_resource>
#include <cuda/std/type_traits>
#include <cuda/stream_ref>

#include <cstddef>
#include <cstdint>
#include <string>

#include "vpmm/vpmm.hpp"

namespace vpmm {

// Which stream the handle 0 names is decided when a file is compiled. Files compiled in both ways have two classes, so
// that they can be linked into one program.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_default_stream {
inline constexpr std::uintptr_t default_stream = 2;  // CU_STREAM_PER_THREAD
#else
inline namespace legacy_default_stream {
inline constexpr std::uintptr_t default_stream = 1;  // CU_STREAM_LEGACY
#endif

// Memory of a pool as cuda::mr asks for it, for work of the pool's device. A value of the size of a pointer: copies
// name the same pool, do not own it, and must not be used after it; process-wide pools are never destroyed. Any thread
// may make any call, whichever CUDA device is current.
class memory_resource {
 public:
  // The process-wide pool of a device, opened from the environment when nobody has opened it; throws as default_pool.
  explicit memory_resource(int device = 0) : pool_(default_pool(device)) {}
  explicit memory_resource(pool_ref pool) noexcept : pool_(pool) {}

  // Memory that work queued on `stream` after the call may use. `alignment`: a power of two; there are 256 bytes in any
  // case. Zero bytes give null. Throws vpmm::out_of_memory, which is a std::bad_alloc, and vpmm::failure, which is a
  // std::runtime_error, for an alignment or a stream that is not allowed and for a device that has failed.
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return pool_.allocate(possible(bytes), handle_of(stream), alignment);
  }

  // Work queued on `stream` before the call is the last to use the memory; it may be another stream than that of the
  // allocation. Size and alignment are not looked at. Where that cannot be kept, because the process is out of memory
  // or the driver fails, the memory is used again when all work that is queued by now is over. A pointer that is not
  // the pool's is counted as a caller's mistake. Null does nothing.
  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t, std::size_t = default_alignment) noexcept {
    finish(vpmm_deallocate(pool_.handle(), ptr, handle_of(stream)), ptr);
  }

  // Memory that any work queued on any stream after the call may use.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return pool_.allocate(possible(bytes), any_stream, alignment);
  }

  // Does not wait: work queued on any stream before the call may be the last to use the memory.
  void deallocate_sync(void* ptr, std::size_t, std::size_t = default_alignment) noexcept {
    finish(vpmm_deallocate_any_stream(pool_.handle(), ptr), ptr);
  }

  pool_ref pool() const noexcept { return pool_; }

  friend bool operator==(const memory_resource& left, const memory_resource& right) noexcept {
    return left.pool_.handle() == right.pool_.handle();
  }
  friend bool operator!=(const memory_resource& left, const memory_resource& right) noexcept {
    return !(left == right);
  }

  friend constexpr void get_property(const memory_resource&, cuda::mr::device_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
  using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif
  // An execution environment that contains the resource answers with it when it is asked for one.
  const memory_resource& query(const cuda::std::decay_t<decltype(cuda::mr::get_memory_resource)>&) const noexcept {
    return *this;
  }

 private:
  static constexpr std::size_t default_alignment = cuda::mr::default_cuda_malloc_alignment;

  static vpmm_stream handle_of(cuda::stream_ref stream) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's default streams are small numbers
    return stream.get() != nullptr ? stream.get() : reinterpret_cast<vpmm_stream>(default_stream);
  }

  // Of a size that no pool takes CUDA's users expect that memory runs out.
  static std::size_t possible(std::size_t bytes) {
    constexpr std::size_t most = std::size_t{1} << 47;
    if (bytes <= most) return bytes;
    throw out_of_memory(VPMM_ERROR_OUT_OF_MEMORY, std::to_string(bytes) + " bytes are more than any address space has");
  }

  // After a failure the memory is still allocated.
  void finish(vpmm_status status, void* ptr) const noexcept {
    if (status != VPMM_OK && status != VPMM_ERROR_INVALID_POINTER) vpmm_deallocate_deferred(pool_.handle(), ptr);
  }

  pool_ref pool_;
};

}  // namespace

}  // namespace vpmm

#endif
