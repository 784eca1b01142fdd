// pool: how much memory the GPU has for this pool, as far as it is known without asking the driver
// each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/bytes.hpp"

namespace vpmm::pool {

// Note [The driver is asked before it is filled]
// A plan that is too large for the GPU would create all that is free before the driver refuses, and
// take it from others meanwhile. So nothing is created beyond what the driver says is free. It is
// asked again when half of that is used up or a plan has failed: a few times while a pool grows,
// and often only where little is left; and after a while, for other processes take and give memory,
// too. What its stream-ordered pools hold unused it does not call free, but gives to a call that
// needs it: hence the try in one piece (Mover::try_out).
//
// `held`: what this pool has of the GPU now. Bytes.
class GpuRoom {
 public:
  static constexpr std::uint64_t kKnownForNs = 100'000'000;

  explicit GpuRoom(std::optional<Bytes> capacity) : capacity_(capacity) {}

  void set_capacity(std::optional<Bytes> capacity) { capacity_ = capacity; }
  const std::optional<Bytes>& capacity() const { return capacity_; }
  // What the capacity leaves; no statement about the GPU.
  Bytes below_capacity(Bytes held) const {
    if (!capacity_) return std::numeric_limits<Bytes>::max();
    return held >= *capacity_ ? 0 : *capacity_ - held;
  }
  // What a capacity that was lowered does not cover.
  Bytes above_capacity(Bytes held) const {
    return capacity_ && held > *capacity_ ? held - *capacity_ : 0;
  }
  // What the driver said, or was seen to give.
  void learn(Bytes held, Bytes free, Bytes wanted, std::uint64_t now_ns) {
    all_ = held + free;
    ask_again_at_ = wanted <= free ? held + std::max(wanted, free / 2) : 0;
    asked_ns_ = now_ns;
  }
  // A plan failed: what was said is no longer so.
  void doubt() { ask_again_at_ = 0; }
  // Whether `more` bytes may be created without asking.
  bool covers(Bytes held, Bytes more) const { return held + more <= ask_again_at_; }
  bool is_old(std::uint64_t now_ns) const { return all_ == 0 || now_ns - asked_ns_ > kKnownForNs; }
  Bytes free(Bytes held) const {
    return std::min(below_capacity(held), all_ - std::min(all_, held));
  }
  // All that this pool has or may have.
  Bytes all(Bytes held) const { return held + free(held); }

 private:
  std::optional<Bytes> capacity_;
  Bytes all_ = 0;           // held and free, when the driver was last asked
  Bytes ask_again_at_ = 0;  // when so much is held
  std::uint64_t asked_ns_ = 0;
};

}  // namespace vpmm::pool
