// SPDX-License-Identifier: Apache-2.0
// report: memory that a device's pool can still hand out, within its limit and the GPU's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/bytes.hpp"

namespace vpmm::report {

// Free memory, missing memory and advice follow from one signed quantity: left = mappable + idle,
// with mappable = min(free on the GPU, capacity - mapped). Negative if more is in use than a
// lowered capacity allows.
class Headroom {
 public:
  // idle: mapped memory that is unused and can move. gpu_free: free memory of the GPU. capacity:
  // nullopt for no limit.
  Headroom(Bytes mapped, Bytes idle, Bytes gpu_free, std::optional<Bytes> capacity)
      : idle_(whole(idle)), gpu_free_(whole(gpu_free)), below_capacity_(gpu_free_) {
    if (capacity) below_capacity_ = whole(*capacity) - whole(mapped);
  }

  // Bytes that may still be mapped.
  Bytes mappable() const { return positive(std::min(gpu_free_, below_capacity_)); }
  // Largest possible request.
  Bytes left() const { return positive(signed_left()); }
  // Bytes to free, or to add to the capacity, for a request of this size.
  Bytes missing(Bytes size) const { return positive(whole(size) - signed_left()); }
  // Tells if a higher capacity alone would serve the request.
  bool is_limited(Bytes size) const {
    return missing(size) > 0 && whole(size) <= gpu_free_ + idle_;
  }

 private:
  // Limits a number, so that sums cannot overflow.
  static std::int64_t whole(Bytes bytes) {
    constexpr Bytes kMost = Bytes{1} << 60;
    return static_cast<std::int64_t>(std::min(bytes, kMost));
  }
  static Bytes positive(std::int64_t bytes) {
    return static_cast<Bytes>(std::max<std::int64_t>(bytes, 0));
  }
  std::int64_t signed_left() const { return std::min(gpu_free_, below_capacity_) + idle_; }

  std::int64_t idle_;
  std::int64_t gpu_free_;
  std::int64_t below_capacity_;
};

}  // namespace vpmm::report
