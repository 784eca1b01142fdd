// SPDX-License-Identifier: Apache-2.0
// base: the reserve: blocks of powers of two, cut from a piece that exists from the start and was
// never touched before.
#include "base/host_memory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/check.hpp"
#include "base/no_host_memory.hpp"
#include "base/spin_lock.hpp"

namespace vpmm {
namespace {

constexpr std::size_t kFirstPiece = std::size_t{8} << 20;  // untouched, it costs address space only
constexpr std::size_t kLeastBlock = 64;
constexpr std::size_t kMostAlignment = 4096;
constexpr std::size_t kLeastHeader = 16;
constexpr std::size_t kPieces = 16;  // each as large as all before it

// Lies before the memory given out; the block begins max(alignment, kLeastHeader) before that.
struct Header {
  std::size_t block = 0;  // bytes
};
struct FreeBlock {
  FreeBlock* next = nullptr;
};
struct HostPiece {
  std::byte* begin = nullptr;
  std::size_t size = 0;
  std::size_t cut = 0;  // bytes already cut into blocks, in use or free
};

alignas(kMostAlignment) constinit std::array<std::byte, kFirstPiece> first_piece{};

// used_ = sum of blocks in use; at 0 the pieces are whole again. promised_ = sum of the promises to
// calls in progress.
class Reserve {
 public:
  constexpr Reserve() { pieces_[0] = {first_piece.data(), kFirstPiece, 0}; }

  bool promise(std::size_t bytes) noexcept {
    const std::size_t promised = promised_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (used_.load(std::memory_order_relaxed) == 0 && promised <= kFirstPiece) return true;
    if (has_room(promised)) return true;
    take_back(bytes);
    return false;
  }
  void take_back(std::size_t bytes) noexcept {
    promised_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  void* take(std::size_t bytes, std::size_t alignment) noexcept {
    const std::size_t header = std::max(alignment, kLeastHeader);
    if (alignment > kMostAlignment || bytes > (std::size_t{1} << 40)) return nullptr;
    const std::size_t block = std::bit_ceil(std::max(bytes + header, kLeastBlock));
    const SpinGuard guard(lock_);
    std::byte* const begin = begin_block(block);
    if (begin == nullptr) return nullptr;
    used_.fetch_add(block, std::memory_order_relaxed);
    std::byte* const memory = begin + header;
    header_of(memory)->block = block;
    return memory;
  }

  bool has(const void* memory) const noexcept {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i)
      if (static_cast<std::size_t>(static_cast<const std::byte*>(memory) - pieces_[i].begin) <
          pieces_[i].size)
        return true;
    return false;
  }

  void give_back(void* memory, std::size_t alignment) noexcept {
    auto* const at = static_cast<std::byte*>(memory);
    const SpinGuard guard(lock_);
    const std::size_t block = header_of(at)->block;
    std::byte* const begin = at - std::max(alignment, kLeastHeader);
    FreeBlock*& list = free_[static_cast<std::size_t>(std::countr_zero(block))];
    list = new (begin) FreeBlock{list};
    const std::size_t before = used_.fetch_sub(block, std::memory_order_relaxed);
    if (before == block) make_whole();
  }

  std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }

 private:
  static Header* header_of(std::byte* memory) {
    return static_cast<Header*>(static_cast<void*>(memory - sizeof(Header)));
  }

  // Tells if uncut memory suffices, one call's need in one piece; free blocks may have the wrong
  // size, so they do not count.
  bool has_room(std::size_t bytes) noexcept {
    const SpinGuard guard(lock_);
    const std::size_t count = count_.load(std::memory_order_relaxed);
    std::size_t room = 0;
    std::size_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      room += pieces_[i].size - pieces_[i].cut;
      largest = std::max(largest, pieces_[i].size - pieces_[i].cut);
    }
    return (room >= bytes && largest >= kHostReserve) || add_piece(count, bytes);
  }

  std::byte* begin_block(std::size_t block) VPMM_REQUIRES(lock_) {
    FreeBlock*& list = free_[static_cast<std::size_t>(std::countr_zero(block))];
    if (list != nullptr)
      return static_cast<std::byte*>(static_cast<void*>(std::exchange(list, list->next)));
    const std::size_t count = count_.load(std::memory_order_relaxed);
    const std::size_t alignment = std::min(block, kMostAlignment);
    for (std::size_t i = 0; i < count; ++i) {
      HostPiece& piece = pieces_[i];
      const std::size_t from = (piece.cut + alignment - 1) / alignment * alignment;
      if (from > piece.size || piece.size - from < block) continue;
      piece.cut = from + block;
      return piece.begin + from;
    }
    return nullptr;
  }

  bool add_piece(std::size_t count, std::size_t bytes) VPMM_REQUIRES(lock_) {
    if (count == kPieces) return false;
    const std::size_t size = std::max(kFirstPiece << count, std::bit_ceil(bytes));
    void* const memory = ::operator new (size, std::align_val_t{kMostAlignment}, std::nothrow);
    if (memory == nullptr) return false;
    pieces_[count] = {static_cast<std::byte*>(memory), size, 0};
    count_.store(count + 1, std::memory_order_release);
    return true;
  }

  void make_whole() VPMM_REQUIRES(lock_) {
    free_.fill(nullptr);
    for (HostPiece& piece : pieces_) piece.cut = 0;
  }

  SpinLock lock_;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> promised_{0};
  std::atomic<std::size_t> count_{1};
  // A piece's `begin` and `size` are fixed once count_ covers it; lock_ guards `cut`.
  std::array<HostPiece, kPieces> pieces_{};
  std::array<FreeBlock*, 64> free_ VPMM_GUARDED_BY(lock_){};  // by the logarithm of their size
};

constinit Reserve reserve;

void check_is_allowed() noexcept {
  VPMM_CHECK(!NoHostMemory::is_asked(), "host memory under a lock that other threads spin for");
}

}  // namespace

HostPromise::HostPromise(std::size_t bytes) noexcept : bytes_(reserve.promise(bytes) ? bytes : 0) {}
HostPromise::~HostPromise() { reserve.take_back(bytes_); }

std::size_t host_reserve::used() noexcept { return reserve.used(); }

void* host_reserve::take(std::size_t bytes, std::size_t alignment) noexcept {
  check_is_allowed();
  void* const memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                           ? ::operator new(bytes, std::nothrow)
                           : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
  return memory != nullptr ? memory : reserve.take(bytes, alignment);
}

void host_reserve::give_back(void* memory, std::size_t alignment) noexcept {
  if (memory == nullptr) return;
  check_is_allowed();
  if (reserve.has(memory)) return reserve.give_back(memory, alignment);
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
    ::operator delete(memory);
  else
    ::operator delete (memory, std::align_val_t{alignment});
}

}  // namespace vpmm
