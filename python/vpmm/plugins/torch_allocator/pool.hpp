// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the pool of a device: its opening and its limit.
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "segments.hpp"

namespace vpmm::torch_plugin {

// Any thread.
class Pool {
 public:
  Pool(DeviceIndex device, Segments& segments) : device_(device), segments_(segments) {}

  DeviceIndex device() const { return device_; }
  // Opened by the first call that needs it, from the settings in the environment.
  vpmm_pool* get();
  // Null: no call has needed it.
  vpmm_pool* if_open() const { return pool_.load(std::memory_order_acquire); }
  // The largest request that is cut from shared pages. It is open.
  std::size_t largest_small() const { return largest_small_; }
  // The tag of requests outside entered tags; 0: none. It is open.
  std::uint32_t library() const { return library_; }
  vpmm_statistics figures() { return figures_of(get()); }
  std::uint64_t capacity();
  double fraction();
  void set_fraction(double fraction);

 private:
  vpmm_pool* open() VPMM_REQUIRES(opening_);
  void limit(vpmm_pool* pool, double fraction);

  const DeviceIndex device_;
  Segments& segments_;
  std::atomic<vpmm_pool*> pool_{nullptr};
  std::size_t largest_small_ = 0;                       // set before `pool_`
  std::uint32_t library_ = 0;                           // likewise
  bool is_followed_ VPMM_GUARDED_BY(opening_) = false;  // by Segments
  Mutex opening_;
  Mutex mutex_;
  // At first that of PyTorch's option, which takes effect when the pool is opened.
  double fraction_ VPMM_GUARDED_BY(mutex_) =
      cca::CUDAAllocatorConfig::per_process_memory_fraction();
  // The pool's limit before a fraction below 1 was set.
  std::optional<std::uint64_t> full_capacity_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::torch_plugin
