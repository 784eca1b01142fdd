// SPDX-License-Identifier: Apache-2.0
// region: regions by size: the smallest that fits, the lowest address among equals.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "base/host_memory.hpp"
#include "base/page_unit.hpp"
#include "region/address_heap.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// Entry that validate() compares: number, begin and region.
struct Rank {
  std::uint64_t number = 0;
  DevicePtr begin{};
  const Region* region = nullptr;
  friend bool operator==(const Rank&, const Rank&) = default;
  friend bool operator<(const Rank& a, const Rank& b) {
    return std::tie(a.number, a.begin) < std::tie(b.number, b.begin);
  }
};
using Ranking = Vector<Rank>;

// Region found by size, with its range, so that no read of the node need wait for memory.
struct Fit {
  DevicePtr begin{};
  Bytes size = 0;
  Region* region = nullptr;  // null: not found
};

// One heap per number of pages up to a limit, and one bit per non-empty heap: adding, removing and
// finding cost the same for any number of regions, but for the depth of one heap. The few larger
// regions stand in a tree.
class SizeIndex {
 public:
  explicit SizeIndex(const PageUnit& unit) : unit_(unit) {}
  SizeIndex(const SizeIndex&) = delete;
  SizeIndex& operator=(const SizeIndex&) = delete;

  std::uint64_t count() const { return count_; }

  void add(Region* region) {
    ++count_;
    const std::uint64_t pages = unit_.pages(region->range.size);
    if (pages >= kHeaps) return add_large(region);
    std::unique_ptr<HeapGroup>& block = blocks_[pages / 64];
    if (!block) block = std::make_unique<HeapGroup>();
    block->heaps[pages % 64].add(region);
    occupied_[pages / 64] |= bit(pages);
    occupied_blocks_ |= bit(pages / 64);
  }

  void remove(const Region* region) {
    --count_;
    const std::uint64_t pages = unit_.pages(region->range.size);
    if (pages >= kHeaps) return remove_large(region);
    AddressHeap& all = heap(pages);
    all.remove(region);
    if (!all.empty()) return;
    occupied_[pages / 64] &= ~bit(pages);
    if (occupied_[pages / 64] == 0) occupied_blocks_ &= ~bit(pages / 64);
  }

  // Smallest region of at least `size` bytes, the lowest among equals.
  Fit at_least(Bytes size) const {
    const std::uint64_t pages = next_size(unit_.pages_up(size));
    if (pages == kHeaps) return large_.empty() ? Fit{} : first_large_fit(size, 1);
    const AddressHeap::Entry& lowest = heap(pages).lowest();
    return {lowest.begin, pages * unit_.bytes(), lowest.region};
  }
  // Regions of at least `size` bytes by ascending size, the lowest of each size first. Requires:
  // the index does not change meanwhile.
  class Ascent {
   public:
    Ascent(const SizeIndex& index, Bytes size)
        : index_(index),
          pages_(index.next_size(index.unit_.pages_up(size))),
          large_(index.large_.lower_bound({size, {}})) {}
    // Null at the end.
    Region* region() const {
      if (pages_ < kHeaps) return index_.heap(pages_).entry(place_).region;
      return large_ == index_.large_.end() ? nullptr : large_->second;
    }
    void next() {
      if (pages_ == kHeaps) {
        ++large_;
        return;
      }
      ++place_;
      if (place_ < index_.heap(pages_).size()) return;
      pages_ = index_.next_size(pages_ + 1);
      place_ = 0;
    }

   private:
    const SizeIndex& index_;
    std::uint64_t pages_;
    std::size_t place_ = 0;
    Map<std::pair<Bytes, DevicePtr>, Region*>::const_iterator large_;
  };
  // Same as at_least(), where `size` bytes at `alignment` fit.
  Fit first_fit(Bytes size, Bytes alignment) const;
  // The lowest of them, of any size; one step per size.
  Fit lowest_fit(Bytes size, Bytes alignment) const;
  Bytes largest() const;

  // Checks every structure; lists all regions by size and address.
  bool is_sound() const;
  Ranking ranking() const;

 private:
  static constexpr std::uint64_t kHeaps = 4096;  // bits of a word of words
  struct HeapGroup : FromHostMemory {
    std::array<AddressHeap, 64> heaps;
  };
  using Tree = Map<std::pair<Bytes, DevicePtr>, Region*>;

  static constexpr std::uint64_t bit(std::uint64_t number) {
    return std::uint64_t{1} << number % 64;
  }
  AddressHeap& heap(std::uint64_t pages) const { return blocks_[pages / 64]->heaps[pages % 64]; }
  // Smallest number of pages >= `pages` with a non-empty heap; kHeaps if none.
  std::uint64_t next_size(std::uint64_t pages) const {
    if (pages >= kHeaps) return kHeaps;
    std::uint64_t block = pages / 64;
    std::uint64_t found = occupied_[block] & (~std::uint64_t{0} << pages % 64);
    if (found == 0) {
      const std::uint64_t blocks = occupied_blocks_ & ~(bit(block) | (bit(block) - 1));
      if (blocks == 0) return kHeaps;
      block = static_cast<std::uint64_t>(std::countr_zero(blocks));
      found = occupied_[block];
    }
    return block * 64 + static_cast<std::uint64_t>(std::countr_zero(found));
  }
  Fit first_large_fit(Bytes size, Bytes alignment) const;
  void add_large(Region* region);
  void remove_large(const Region* region);

  PageUnit unit_;
  std::uint64_t count_ = 0;
  std::uint64_t occupied_blocks_ = 0;                  // bit n: occupied_[n] != 0
  std::array<std::uint64_t, kHeaps / 64> occupied_{};  // bit n: the heap of n pages is not empty
  std::array<std::unique_ptr<HeapGroup>, kHeaps / 64> blocks_;
  Tree large_;             // regions of kHeaps pages and more
  Tree::node_type spare_;  // of large_: the rest of a cut large region is mostly large, too
};

}  // namespace vpmm::region
