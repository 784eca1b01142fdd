// SPDX-License-Identifier: Apache-2.0
// pool: GPU memory available to this pool, as far as known without a driver call each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/bytes.hpp"

namespace vpmm::pool {

// Note [The driver is asked before it is filled]
// A plan too large for the GPU would create all free memory before the driver refuses, and take it
// from other processes meanwhile. So creation stays within the driver's figure of free memory. The
// pool asks again when half of that is used, when a plan has failed, and after kKnownForNs, as
// other processes take and give memory. The driver does not count unused memory of its
// stream-ordered pools as free, yet gives it to a call in need: hence the try in one piece
// (Mover::try_out).
//
// `held`: GPU memory of this pool now. Bytes.
class GpuRoom {
 public:
  static constexpr std::uint64_t kKnownForNs = 100'000'000;

  explicit GpuRoom(std::optional<Bytes> capacity) : capacity_(capacity) {}

  void set_capacity(std::optional<Bytes> capacity) { capacity_ = capacity; }
  const std::optional<Bytes>& capacity() const { return capacity_; }
  // Bytes left below the capacity, regardless of the GPU.
  Bytes below_capacity(Bytes held) const {
    if (!capacity_) return std::numeric_limits<Bytes>::max();
    return held >= *capacity_ ? 0 : *capacity_ - held;
  }
  // Bytes held beyond a lowered capacity.
  Bytes above_capacity(Bytes held) const {
    return capacity_ && held > *capacity_ ? held - *capacity_ : 0;
  }
  // Records an answer of the driver, or a creation that it granted.
  void learn(Bytes held, Bytes free, Bytes wanted, std::uint64_t now_ns) {
    all_ = held + free;
    ask_again_at_ = wanted <= free ? held + std::max(wanted, free / 2) : 0;
    asked_ns_ = now_ns;
  }
  // Invalidates the figure after a failed plan.
  void doubt() { ask_again_at_ = 0; }
  // Tells if `more` bytes may be created without a driver query.
  bool covers(Bytes held, Bytes more) const { return held + more <= ask_again_at_; }
  bool is_old(std::uint64_t now_ns) const { return all_ == 0 || now_ns - asked_ns_ > kKnownForNs; }
  Bytes free(Bytes held) const {
    return std::min(below_capacity(held), all_ - std::min(all_, held));
  }
  // Bytes that this pool has or may have.
  Bytes all(Bytes held) const { return held + free(held); }

 private:
  std::optional<Bytes> capacity_;
  Bytes all_ = 0;           // held + free at the last query
  Bytes ask_again_at_ = 0;  // held bytes that cause the next query
  std::uint64_t asked_ns_ = 0;
};

}  // namespace vpmm::pool
