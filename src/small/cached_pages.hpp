// SPDX-License-Identifier: Apache-2.0
// small: allocations of a page and more that a stream freed and has cached, by size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "base/mutex.hpp"
#include "base/page_unit.hpp"
#include "region/region.hpp"
#include "small/tally.hpp"

namespace vpmm::small {

// Larger allocations do not stay cached: in the pool they become one with their neighbours, for any
// size and stream. With twice as many a stream's larger requests find worse fits; with half as
// many, streams that work side by side meet at the pool's lock more often.
constexpr std::uint64_t kMostPages = 4;

// The sizes of cached allocations, numbered from a page to kMostPages: 32 to a doubling, whole
// grains. Requests are rounded up to them, so that the same memory serves sizes that differ by less
// than a 32nd.
class PageSizes {
 public:
  PageSizes(Bytes page, Bytes grain) : grain_(grain), page_(page), least_(grain_.pages(page)) {}

  static constexpr std::uint64_t kCount =
      32 * (kMostPages - 1) + 1;  // at most: a grain is a 32nd of a page or more

  Bytes most() const { return kMostPages * page_; }
  // Bytes that a request takes: one of the sizes or, beyond them, whole grains.
  Bytes rounded(Bytes bytes) const {
    if (bytes <= page_) return page_;
    const Bytes step =
        bytes > most() ? grain_.bytes() : std::max(grain_.bytes(), std::bit_floor(bytes - 1) / 32);
    return is_power_of_two(step) ? (bytes + step - 1) & ~(step - 1) : round_up(bytes, step);
  }
  // Requires: rounded.
  std::uint64_t number_of(Bytes size) const { return grain_.pages(size) - least_; }
  // Number of the least sufficient size; nullopt beyond the sizes.
  std::optional<std::uint64_t> least_from(Bytes size) const {
    if (size > most()) return std::nullopt;
    return number_of(rounded(size));
  }

 private:
  PageUnit grain_;
  Bytes page_;
  std::uint64_t least_;
};

// Allocations in the order of their frees, linked through the regions with the numbers of the
// frees. An allocated region is in no other list by age. The links beyond both ends are arbitrary,
// so that a warm call writes no region but those it links.
class CachedList {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  region::Region* first() const { return first_; }
  static region::Region* after(const region::Region& region) { return region.by_age.next; }
  static std::uint64_t number_of(const region::Region& region) { return region.by_age.number; }

  void add(region::Region* region, std::uint64_t number) {
    region->by_age = {last_, nullptr, number};
    (last_ == nullptr ? first_ : last_->by_age.next) = region;
    last_ = region;
    ++count_;
  }
  // Require: not empty.
  region::Region* take_first() {
    region::Region* const first = first_;
    first_ = first->by_age.next;
    --count_;
    if (empty()) last_ = first_ = nullptr;
    return first;
  }
  region::Region* take_last() {
    region::Region* const last = last_;
    last_ = last->by_age.previous;
    --count_;
    if (empty()) last_ = first_ = nullptr;
    return last;
  }
  // Appends all of `other`.
  void splice(CachedList& other) {
    if (other.empty()) return;
    other.first_->by_age.previous = last_;
    (last_ == nullptr ? first_ : last_->by_age.next) = other.first_;
    last_ = other.last_;
    count_ += other.count_;
    other = {};
  }

 private:
  region::Region* first_ = nullptr;
  region::Region* last_ = nullptr;
  std::size_t count_ = 0;
};

// Lists by the numbers of PageSizes. Invariant: a size is marked <=> its list is not empty.
class CachedPages {
 public:
  // Any thread, without a lock.
  Bytes bytes() const { return bytes_.now(); }

  const CachedList& of(std::uint64_t size) const VPMM_REQUIRES(cache_lock) {
    return by_size_[size];
  }
  void add(std::uint64_t size, region::Region* region, std::uint64_t number)
      VPMM_REQUIRES(cache_lock) {
    by_size_[size].add(region, number);
    bytes_.add(region->range.size);
    marks_[size / 64] |= bit(size);
  }
  // Takes the last that was freed. Requires: there is one of that size.
  region::Region* take_last(std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    CachedList& cached = by_size_[size];
    region::Region* const last = cached.take_last();
    return taken(size, cached, last);
  }
  // Takes the first that was freed. Requires: there is one of that size.
  region::Region* take_first(std::uint64_t size) VPMM_REQUIRES(cache_lock) {
    CachedList& cached = by_size_[size];
    region::Region* const first = cached.take_first();
    return taken(size, cached, first);
  }
  // Takes all, by size.
  CachedList take_all() VPMM_REQUIRES(cache_lock) {
    CachedList all;
    for (auto size = least_from(0); size; size = least_from(*size + 1)) all.splice(by_size_[*size]);
    marks_ = {};
    bytes_.add(-bytes());
    return all;
  }
  // Least marked size from `size` on; nullopt if none.
  std::optional<std::uint64_t> least_from(std::uint64_t size) const VPMM_REQUIRES(cache_lock) {
    for (std::uint64_t word = size / 64; word < marks_.size(); ++word) {
      const std::uint64_t found =
          marks_[word] & (word == size / 64 ? ~std::uint64_t{0} << size % 64 : ~std::uint64_t{0});
      if (found != 0) return word * 64 + static_cast<std::uint64_t>(std::countr_zero(found));
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t bit(std::uint64_t size) { return std::uint64_t{1} << size % 64; }
  region::Region* taken(std::uint64_t size, const CachedList& left, region::Region* region)
      VPMM_REQUIRES(cache_lock) {
    bytes_.add(-region->range.size);
    if (left.empty()) marks_[size / 64] &= ~bit(size);
    return region;
  }

  std::array<CachedList, PageSizes::kCount> by_size_ VPMM_GUARDED_BY(cache_lock);
  std::array<std::uint64_t, PageSizes::kCount / 64 + 1> marks_ VPMM_GUARDED_BY(cache_lock){};
  Sum bytes_;
};

}  // namespace vpmm::small
