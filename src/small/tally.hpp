// SPDX-License-Identifier: Apache-2.0
// small: sums over the allocations and frees of users.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm::small {

// Sum that is written under a lock and read by any thread without it.
class Sum {
 public:
  std::uint64_t now() const { return value_.load(std::memory_order_relaxed); }
  void add(std::uint64_t change) { value_.store(now() + change, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Sums over the allocations that one stream's cache began and ended. The pool's index counts cached
// memory as allocated; these sums correct it and may be negative. Written under a lock, read by
// now() without it.
struct Tally {
  std::int64_t requested = 0;  // bytes
  std::int64_t allocated = 0;  // bytes, rounded up
  std::int64_t allocations = 0;
  std::int64_t deallocations = 0;
  std::int64_t corrections = 0;  // of `allocations`, downwards

  // Number of allocations by users; never falls.
  std::int64_t requests() const { return allocations + corrections; }
  std::int64_t live() const { return allocations - deallocations; }
  void begin(Bytes asked, Bytes rounded) {
    add(requested, asked);
    add(allocated, rounded);
    add(allocations, 1);
  }
  void end(Bytes asked, Bytes rounded) {
    add(requested, -asked);
    add(allocated, -rounded);
    add(deallocations, 1, std::memory_order_release);
  }
  // Corrects the pool's index for an allocation that no user made.
  void index_begins(Bytes asked, Bytes rounded) {
    add(requested, -asked);
    add(allocated, -rounded);
    add(allocations, Bytes{0} - 1);
    ++corrections;
  }
  // Corrects the pool's index for an end that is not a user's free.
  void index_ends(Bytes asked, Bytes rounded) {
    add(requested, asked);
    add(allocated, rounded);
    add(deallocations, Bytes{0} - 1, std::memory_order_release);
  }
  // Corrects the pool's index, which counts `asked` bytes too few.
  void index_omits(Bytes asked) { add(requested, asked); }

  // Any thread, without a lock; approximate while other threads call, but never with more ends than
  // begins.
  Tally now() const {
    Tally sums;
    sums.deallocations = read(deallocations, std::memory_order_acquire);
    sums.allocations = read(allocations);
    sums.requested = read(requested);
    sums.allocated = read(allocated);
    return sums;
  }
  Tally& operator+=(const Tally& other) {
    requested += other.requested;
    allocated += other.allocated;
    allocations += other.allocations;
    deallocations += other.deallocations;
    return *this;
  }

 private:
  static void add(std::int64_t& sum, Bytes change,
                  std::memory_order order = std::memory_order_relaxed) {
    std::atomic_ref(sum).store(sum + static_cast<std::int64_t>(change), order);
  }
  static std::int64_t read(const std::int64_t& sum,
                           std::memory_order order = std::memory_order_relaxed) {
    return std::atomic_ref(const_cast<std::int64_t&>(sum)).load(order);
  }
};

}  // namespace vpmm::small
