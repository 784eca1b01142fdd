// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++20: the resource of cuda_mr.hpp with the exceptions that RMM's adaptors and
// callers catch.
#ifndef VPMM_RMM_MR_HPP
#define VPMM_RMM_MR_HPP

#include "vpmm/cuda_mr.hpp"

#include <cstddef>
#include <rmm/error.hpp>

namespace vpmm {

// A resource that throws rmm::out_of_memory, a std::bad_alloc, with the same text when memory runs
// out. RMM's failure_callback_resource_adaptor, for example, retries only after that exception.
template <typename Resource>
class with_rmm_errors : public Resource {
 public:
  using Resource::Resource;

  void* allocate(cuda::stream_ref stream, std::size_t bytes,
                 std::size_t alignment = default_alignment) {
    return translated([&] { return Resource::allocate(stream, bytes, alignment); });
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return translated([&] { return Resource::allocate_sync(bytes, alignment); });
  }

 private:
  static constexpr std::size_t default_alignment = cuda::mr::default_cuda_malloc_alignment;

  template <typename Call>
  static void* translated(Call&& call) {
    try {
      return call();
    } catch (const out_of_memory& error) {
      throw rmm::out_of_memory(error.what());
    }
  }
};

// A pool for rmm::mr::set_per_device_resource, rmm::device_uvector and whatever takes a
// device_async_resource_ref.
using rmm_memory_resource = with_rmm_errors<memory_resource>;

}  // namespace vpmm

#endif
