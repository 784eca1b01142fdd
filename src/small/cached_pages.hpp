// small: allocations of a page and more that a stream freed and has cached, by size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/page_unit.hpp"
#include "region/region.hpp"

namespace vpmm::small {

// Larger allocations do not stay cached: in the pool they become one with their neighbours, for any
// size and stream. With twice as many a stream's larger requests find worse fits; with half as
// many, streams that work side by side meet at the pool's lock more often.
constexpr std::uint64_t kMostPages = 4;

// The sizes of cached allocations, numbered from a page to kMostPages: 32 to a doubling, whole
// grains. Requests are rounded up to them, so that the same memory serves what differs by less than
// a 32nd.
class PageSizes {
 public:
  PageSizes(Bytes page, Bytes grain) : grain_(grain), page_(page), least_(grain_.pages(page)) {}

  static constexpr std::uint64_t kCount =
      32 * (kMostPages - 1) + 1;  // at most: a grain is a 32nd of a page or more

  Bytes most() const { return kMostPages * page_; }
  // What the request takes: one of the sizes or, beyond them, whole grains.
  Bytes rounded(Bytes bytes) const {
    if (bytes <= page_) return page_;
    const Bytes step =
        bytes > most() ? grain_.bytes() : std::max(grain_.bytes(), std::bit_floor(bytes - 1) / 32);
    return is_power_of_two(step) ? (bytes + step - 1) & ~(step - 1) : round_up(bytes, step);
  }
  // Requires: rounded.
  std::uint64_t number_of(Bytes size) const { return grain_.pages(size) - least_; }
  // Of the least that is large enough; none: it is beyond them.
  std::optional<std::uint64_t> least_from(Bytes size) const {
    if (size > most()) return std::nullopt;
    return number_of(rounded(size));
  }

 private:
  PageUnit grain_;
  Bytes page_;
  std::uint64_t least_;
};

// Such an allocation, and the number of its free.
struct Cached {
  region::Region* region = nullptr;
  std::uint64_t number = 0;
};

using CachedList = std::vector<Cached, LineAllocator<Cached>>;

// By the numbers of PageSizes. Invariant: a size is marked when there is one of it.
class CachedPages {
 public:
  // Last freed last.
  const CachedList& of(std::uint64_t size) const { return by_size_[size]; }
  // Whether there is room for one more; the process may have no memory for it.
  bool provide(std::uint64_t size) noexcept {
    CachedList& list = by_size_[size];
    if (list.size() < list.capacity()) return true;
    try {
      list.reserve(2 * list.size() + 1);
      return true;
    } catch (...) {
      return false;
    }
  }
  void add(std::uint64_t size, const Cached& cached) {
    by_size_[size].push_back(cached);
    marks_[size / 64] |= bit(size);
  }
  // The last that was freed. Requires: there is one of that size.
  Cached take_last(std::uint64_t size) {
    const Cached last = by_size_[size].back();
    by_size_[size].pop_back();
    unmark_empty(size);
    return last;
  }
  // The first that were freed. Requires: there are so many of that size.
  Vector<Cached> take_first(std::uint64_t size, std::size_t count) {
    const auto begin = by_size_[size].begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    Vector<Cached> first(begin, end);
    by_size_[size].erase(begin, end);
    unmark_empty(size);
    return first;
  }
  void clear() {
    for (auto size = least_from(0); size; size = least_from(*size + 1)) by_size_[*size].clear();
    marks_ = {};
  }
  // The least size there is, from `size` on.
  std::optional<std::uint64_t> least_from(std::uint64_t size) const {
    for (std::uint64_t word = size / 64; word < marks_.size(); ++word) {
      const std::uint64_t found =
          marks_[word] & (word == size / 64 ? ~std::uint64_t{0} << size % 64 : ~std::uint64_t{0});
      if (found != 0) return word * 64 + static_cast<std::uint64_t>(std::countr_zero(found));
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t bit(std::uint64_t size) { return std::uint64_t{1} << size % 64; }
  void unmark_empty(std::uint64_t size) {
    if (by_size_[size].empty()) marks_[size / 64] &= ~bit(size);
  }

  std::array<CachedList, PageSizes::kCount> by_size_;
  std::array<std::uint64_t, PageSizes::kCount / 64 + 1> marks_{};
};

}  // namespace vpmm::small
