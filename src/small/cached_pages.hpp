// small: allocations of whole pages that a stream freed and has cached, by size.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "region/region.hpp"

namespace vpmm::small {

// Larger allocations do not stay cached: in the pool they become one with their neighbours, for any size and stream.
// With 16 or 32 a replay holds a little less memory and takes an eighth or a sixth longer in the driver.
constexpr std::uint64_t kMostPages = 4;

// Such an allocation, and the number of its free.
struct Cached {
  region::Region* region = nullptr;
  std::uint64_t number = 0;
};

using CachedList = std::vector<Cached, LineAllocator<Cached>>;

// Sizes are in pages, kMostPages at most: of what was asked for, so that a region with slack serves its program again.
// Invariant: a size is marked when there is one of it.
class CachedPages {
 public:
  // Last freed last.
  const CachedList& of(std::uint64_t pages) const { return by_size_[pages]; }
  // Whether there is room for one more; the process may have no memory for it.
  bool provide(std::uint64_t pages) noexcept {
    CachedList& list = by_size_[pages];
    if (list.size() < list.capacity()) return true;
    try {
      list.reserve(2 * list.size() + 1);
      return true;
    } catch (...) {
      return false;
    }
  }
  void add(std::uint64_t pages, const Cached& cached) {
    by_size_[pages].push_back(cached);
    marks_ |= bit(pages);
  }
  // The last that was freed. Requires: there is one of that size.
  Cached take_last(std::uint64_t pages) {
    const Cached last = by_size_[pages].back();
    by_size_[pages].pop_back();
    unmark_empty(pages);
    return last;
  }
  // The first that were freed. Requires: there are so many of that size.
  Vector<Cached> take_first(std::uint64_t pages, std::size_t count) {
    const auto begin = by_size_[pages].begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    Vector<Cached> first(begin, end);
    by_size_[pages].erase(begin, end);
    unmark_empty(pages);
    return first;
  }
  void clear() {
    for (auto size = least_from(0); size; size = least_from(*size + 1)) by_size_[*size].clear();
    marks_ = 0;
  }
  // The least size there is of at least `pages`.
  std::optional<std::uint64_t> least_from(std::uint64_t pages) const {
    if (pages > kMostPages) return std::nullopt;
    const std::uint64_t found = marks_ & (~std::uint64_t{0} << pages);
    if (found == 0) return std::nullopt;
    return static_cast<std::uint64_t>(std::countr_zero(found));
  }

 private:
  static constexpr std::uint64_t bit(std::uint64_t pages) { return std::uint64_t{1} << pages; }
  void unmark_empty(std::uint64_t pages) {
    if (by_size_[pages].empty()) marks_ &= ~bit(pages);
  }

  std::array<CachedList, kMostPages + 1> by_size_;
  std::uint64_t marks_ = 0;
  static_assert(kMostPages < 64, "a mark for each size");
};

}  // namespace vpmm::small
