// SPDX-License-Identifier: Apache-2.0
// replay: places and values that the replay writes into an allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.hpp"

namespace vpmm::replay {

constexpr Bytes kSpotBytes = 64;
constexpr Bytes kSpotPage =
    2 * kMiB;  // spots stand at starts of these, counted from the allocation's start
constexpr std::size_t kMaxPageSpots = 16;

// A few bytes of an allocation that the replay writes and later reads back.
struct Spot {
  Bytes offset = 0;
  Bytes size = 0;  // at most kSpotBytes
  friend bool operator==(const Spot&, const Spot&) = default;
};

// Spots of one allocation, ascending and disjoint: its first 64 bytes, its last 64, and starts of
// pages between: all up to 16, else 16 spread by `seed`, so that allocations which share memory are
// caught sooner or later. Empty for an allocation of no bytes.
class Spots {
 public:
  Spots(Bytes bytes, std::uint64_t seed);
  const Spot* begin() const { return spots_; }
  const Spot* end() const { return spots_ + count_; }
  std::size_t size() const { return count_; }

 private:
  void add(Spot spot) { spots_[count_++] = spot; }

  Spot spots_[kMaxPageSpots + 2];
  std::size_t count_ = 0;
};

std::uint64_t seed_of(std::uint64_t run_seed, std::size_t allocation);

// Bytes at `offset` of the allocation with this seed; never begin with kLastUseByte.
void fill(std::span<std::byte> bytes, std::uint64_t seed, Bytes offset);
bool holds(std::span<const std::byte> bytes, std::uint64_t seed, Bytes offset);

// Left behind by the last use of an allocation.
constexpr std::uint8_t kLastUseByte = 0xDD;

}  // namespace vpmm::replay
