// SPDX-License-Identifier: Apache-2.0
// driver/sim: vector clocks: work of every actor that one actor has seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vpmm::driver::sim {

// Actor of the vector clocks: slot 0 is the host, every other slot a stream. A new stream gets a
// slot only once the host has seen all of the old one, so numbers in a slot only grow.
using Slot = std::uint32_t;
constexpr Slot kHostSlot = 0;

class VectorClock {
 public:
  std::uint64_t at(Slot slot) const { return slot < seen_.size() ? seen_[slot] : 0; }
  bool covers(Slot slot, std::uint64_t n) const { return n <= at(slot); }
  void set(Slot slot, std::uint64_t n) {
    if (slot >= seen_.size()) seen_.resize(slot + std::size_t{1});
    seen_[slot] = n;
  }
  // Returns true if this clock learned something.
  bool join(const VectorClock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    bool learned = false;
    for (std::size_t slot = 0; slot < other.seen_.size(); ++slot) {
      if (seen_[slot] >= other.seen_[slot]) continue;
      seen_[slot] = other.seen_[slot];
      learned = true;
    }
    return learned;
  }
  void clear() { std::fill(seen_.begin(), seen_.end(), 0); }

 private:
  std::vector<std::uint64_t> seen_;
};

}  // namespace vpmm::driver::sim
