// SPDX-License-Identifier: Apache-2.0
// base: a piece of memory for many small objects: a huge page if available.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/host_memory.hpp"

namespace vpmm {

// Among very many objects each access is a miss, and with small memory pages a second one for the
// page table. Without huge pages the advice has no effect. Out of memory, it takes kFromReserve
// bytes of the reserve.
class HugeBlock {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kFromReserve = std::size_t{32} << 10;

  // Throws std::bad_alloc. Requires: `size` is a power of two up to a huge page. size() == `size`,
  // or kFromReserve.
  explicit HugeBlock(std::size_t size) : memory_(std::aligned_alloc(size, size)), size_(size) {
    if (memory_ != nullptr) {
      if (size == kHugePage) static_cast<void>(::madvise(memory_, size, MADV_HUGEPAGE));
      return;
    }
    size_ = kFromReserve;
    is_reserve_ = true;
    memory_ = host_reserve::take(size_, kReserveAlignment);
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  HugeBlock(HugeBlock&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        size_(other.size_),
        is_reserve_(other.is_reserve_) {}
  HugeBlock& operator=(HugeBlock&&) = delete;
  ~HugeBlock() {
    if (is_reserve_)
      host_reserve::give_back(memory_, kReserveAlignment);
    else
      std::free(memory_);
  }

  void* begin() const { return memory_; }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kReserveAlignment = 4096;

  void* memory_;
  std::size_t size_;
  bool is_reserve_ = false;
};

}  // namespace vpmm
