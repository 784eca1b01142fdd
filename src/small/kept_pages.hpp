// small: allocations of whole pages that a stream freed and has in hand, by size.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "pool/rounding.hpp"
#include "region/region.hpp"

namespace vpmm::small {

// The largest that stay in hand (Note [Large frees stay in hand while one stream makes the pool grow]).
constexpr std::uint64_t kMostPages = 32;
constexpr std::uint64_t kMostPagesUsually = 8;
constexpr std::uint64_t kMostSlices = kMostPages * pool::Rounding::kSlicesPerPage;

// Such an allocation, and the number of its free.
struct Kept {
  region::Region* region = nullptr;
  std::uint64_t number = 0;
};

using KeptList = std::vector<Kept, LineAllocator<Kept>>;

// Sizes are in slices, kMostSlices at most. Invariant: a size is marked when there is one of it.
class KeptPages {
 public:
  // Last freed last.
  const KeptList& of(std::uint64_t slices) const { return by_size_[slices]; }
  void add(std::uint64_t slices, const Kept& kept) {
    by_size_[slices].push_back(kept);
    marks_[slices / 64] |= bit(slices);
  }
  // The last that was freed. Requires: there is one of that size.
  Kept take_last(std::uint64_t slices) {
    const Kept last = by_size_[slices].back();
    by_size_[slices].pop_back();
    unmark_empty(slices);
    return last;
  }
  // The first that were freed. Requires: there are so many of that size.
  Vector<Kept> take_first(std::uint64_t slices, std::size_t count) {
    const auto begin = by_size_[slices].begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    Vector<Kept> first(begin, end);
    by_size_[slices].erase(begin, end);
    unmark_empty(slices);
    return first;
  }
  void clear() {
    for (auto size = least_from(0); size; size = least_from(*size + 1)) by_size_[*size].clear();
    marks_.fill(0);
  }
  // The least size there is of at least `slices`.
  std::optional<std::uint64_t> least_from(std::uint64_t slices) const {
    if (slices > kMostSlices) return std::nullopt;
    std::uint64_t found = marks_[slices / 64] & (~std::uint64_t{0} << slices % 64);
    for (std::size_t at = slices / 64;; found = marks_[at]) {
      if (found != 0) return at * 64 + static_cast<std::uint64_t>(std::countr_zero(found));
      if (++at == marks_.size()) return std::nullopt;
    }
  }

 private:
  static constexpr std::uint64_t bit(std::uint64_t slices) { return std::uint64_t{1} << slices % 64; }
  void unmark_empty(std::uint64_t slices) {
    if (by_size_[slices].empty()) marks_[slices / 64] &= ~bit(slices);
  }

  std::array<KeptList, kMostSlices + 1> by_size_;
  std::array<std::uint64_t, kMostSlices / 64 + 1> marks_{};
};

}  // namespace vpmm::small
