// SPDX-License-Identifier: Apache-2.0
// torch_allocator: opens a device's pool and limits it.
#include "pool.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>

namespace vpmm::torch_plugin {
namespace {

std::uint64_t capacity_of(vpmm_pool* pool) {
  std::uint64_t capacity = 0;
  check(vpmm_get_capacity(pool, &capacity), "the limit");
  return capacity;
}

}  // namespace

vpmm_pool* Pool::get() {
  vpmm_pool* const pool = if_open();
  if (C10_LIKELY(pool != nullptr)) return pool;
  const MutexLock lock(opening_);
  return if_open() == nullptr ? open() : if_open();
}

vpmm_pool* Pool::open() {
  vpmm_pool* pool = nullptr;
  check(vpmm_default_pool(device_, &pool), "the pool could not be opened");
  if (const double part = fraction(); part < 1) limit(pool, part);
  largest_small_ = Layout(pool)->largest_small;
  check(vpmm_library_tag("torch", &library_), "the tag of its memory");
  constexpr std::uint32_t kKinds = (1U << VPMM_EVENT_MAP) | (1U << VPMM_EVENT_UNMAP) |
                                   (1U << VPMM_EVENT_ARENA_GROW) | (1U << VPMM_EVENT_ARENA_SHRINK);
  std::uint64_t id = 0;  // it is never removed
  if (!is_followed_)
    check(vpmm_add_event_callback(pool, kKinds, &Segments::on_event, &segments_, &id), "events");
  is_followed_ = true;
  segments_.begin(pool);
  pool_.store(pool, std::memory_order_release);
  return pool;
}

std::uint64_t Pool::capacity() { return capacity_of(get()); }

double Pool::fraction() {
  const MutexLock lock(mutex_);
  return fraction_;
}

// A fraction of the device's memory, but at most the pool's own limit (VPMM_CAPACITY). 1: as if it
// was never set.
void Pool::set_fraction(double fraction) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction,
              ". Please set within [0, 1].");
  if (fraction < 1) return limit(get(), fraction);
  std::optional<std::uint64_t> full;
  {
    const MutexLock lock(mutex_);
    fraction_ = 1;
    std::swap(full, full_capacity_);
  }
  if (full) check(vpmm_set_capacity(get(), *full), "the memory fraction");
}

void Pool::limit(vpmm_pool* pool, double fraction) {
  const c10::cuda::CUDAGuard guard(device_);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const std::uint64_t before = capacity_of(pool);
  const auto part = static_cast<std::uint64_t>(fraction * static_cast<double>(total));
  std::uint64_t limit = 0;
  {
    const MutexLock lock(mutex_);
    fraction_ = fraction;
    full_capacity_ = full_capacity_.value_or(before);
    limit = std::min(std::max<std::uint64_t>(part, 1), *full_capacity_);
  }
  check(vpmm_set_capacity(pool, limit), "the memory fraction");
}

}  // namespace vpmm::torch_plugin
