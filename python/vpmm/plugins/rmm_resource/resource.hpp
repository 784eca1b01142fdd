// SPDX-License-Identifier: Apache-2.0
// rmm_resource: the process-wide pools as resources that RMM's Python objects refer to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <rmm/resource_ref.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "vpmm/rmm_mr.hpp"

namespace vpmm::rmm_plugin {

// The pool of a device, opened by its first allocation, so that naming a device makes no CUDA
// context there.
class DefaultPool {
 public:
  explicit DefaultPool(int device) : device_(device) {
    if (vpmm_library_tag("rmm", &library_) != VPMM_OK) throw std::runtime_error(vpmm_last_error());
  }

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (library_ != 0) return allocate_tagged(bytes, alignment, stream.get(), 0);
    return memory_resource(device_).allocate(stream, bytes, alignment);
  }
  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t bytes,
                  std::size_t alignment) noexcept {
    if (const pool_ref pool = opened(); pool.handle() != nullptr)
      memory_resource(pool).deallocate(stream, ptr, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (library_ != 0) return allocate_tagged(bytes, alignment, nullptr, VPMM_ALLOCATE_ANY_STREAM);
    return memory_resource(device_).allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment) noexcept {
    if (const pool_ref pool = opened(); pool.handle() != nullptr)
      memory_resource(pool).deallocate_sync(ptr, bytes, alignment);
  }
  bool operator==(const DefaultPool&) const noexcept = default;
  friend constexpr void get_property(const DefaultPool&, cuda::mr::device_accessible) noexcept {}

 private:
  void* allocate_tagged(std::size_t bytes, std::size_t alignment, vpmm_stream stream,
                        std::uint32_t flags) const {
    if (stream == nullptr) stream = reinterpret_cast<vpmm_stream>(handle_of_default_stream);
    return default_pool(device_).allocate(
        vpmm_request{0, bytes, alignment, stream, flags, 0, library_});
  }
  // Pool of a free, which is open, as it allocated the memory. Null in a process that is ending,
  // which frees nothing.
  pool_ref opened() const noexcept {
    vpmm_pool* pool = nullptr;
    (void)vpmm_default_pool(device_, &pool);
    return pool_ref(pool);
  }

  int device_;
  std::uint32_t library_ = 0;
};

using Resource = with_rmm_errors<DefaultPool>;
static_assert(cuda::mr::resource_with<Resource, cuda::mr::device_accessible>);

// Valid as long as the process: RMM frees through such references while it ends.
inline rmm::device_async_resource_ref of_device(int device) {
  constexpr int kMostDevices = 64;
  static auto* const resources = [] {
    auto* const all = new std::vector<Resource>;
    for (int each = 0; each < kMostDevices; ++each) all->emplace_back(each);
    return all;
  }();
  if (device < 0 || device >= kMostDevices)
    throw std::invalid_argument("there is no device " + std::to_string(device));
  return rmm::device_async_resource_ref((*resources)[static_cast<std::size_t>(device)]);
}

}  // namespace vpmm::rmm_plugin
