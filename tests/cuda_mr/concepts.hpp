// SPDX-License-Identifier: Apache-2.0
// cuda_mr tests: what cuda::mr says of the resource, and all ways of passing it around, for every
// CCCL by itself.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "vpmm/cuda_mr.hpp"  // before CCCL's own: 3.1 has cuda::mr only where it is asked for

#include <cuda/std/execution>

namespace vpmm::cuda_mr_test {

using DeviceRef = cuda::mr::resource_ref<cuda::mr::device_accessible>;

static_assert(cuda::mr::resource<memory_resource>);
static_assert(cuda::mr::synchronous_resource<memory_resource>);
static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<memory_resource, cuda::mr::host_accessible>);
static_assert(std::is_constructible_v<DeviceRef, memory_resource&>);
static_assert(std::is_trivially_copyable_v<memory_resource> &&
              sizeof(memory_resource) == sizeof(void*));
static_assert(noexcept(std::declval<memory_resource&>().deallocate(cuda::stream_ref{cudaStream_t{}},
                                                                   nullptr, 0, 1)));
static_assert(noexcept(std::declval<memory_resource&>().deallocate_sync(nullptr, 0, 1)));

inline void allocate_and_free(DeviceRef resource, cuda::stream_ref stream, std::size_t bytes) {
  resource.deallocate(stream, resource.allocate(stream, bytes, 256), bytes, 256);
  resource.deallocate_sync(resource.allocate_sync(bytes, 256), bytes, 256);
}

inline bool is_found_in_an_environment(const memory_resource& resource) {
  return cuda::mr::get_memory_resource(cuda::std::execution::env{resource}) == resource;
}

#if CCCL_VERSION >= 3002000
using AnyDevice = cuda::mr::any_resource<cuda::mr::device_accessible>;

inline void pass_as_any(const memory_resource& resource, cuda::stream_ref stream,
                        std::size_t bytes) {
  AnyDevice any(resource);
  AnyDevice copy = any;
  allocate_and_free(copy, stream, bytes);
  AnyDevice moved = std::move(copy);
  allocate_and_free(moved, stream, bytes);
  auto shared = cuda::mr::make_shared_resource<memory_resource>(resource.pool());
  allocate_and_free(shared, stream, bytes);
}
#endif

}  // namespace vpmm::cuda_mr_test
