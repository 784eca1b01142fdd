// SPDX-License-Identifier: Apache-2.0
// region: set of page numbers that finds the next and the previous one in a few words.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/check.hpp"

namespace vpmm::region {

// One bit per page, above it one bit per non-zero word, and so on up to a single word. Every
// operation touches at most one word of each level on its way up and one on its way down; four
// levels cover sixteen million pages.
class PageSet {
 public:
  // Words needed for a set of numbers below `pages`.
  static std::uint64_t words(std::uint64_t pages) {
    std::uint64_t all = 0;
    std::uint64_t level = pages;
    do {
      level = words_over(level);
      all += level;
    } while (level > 1);
    return all;
  }

  // `memory`: words(pages) zeros, owned by the caller; must stay in place.
  PageSet(std::uint64_t* memory, std::uint64_t pages) : pages_(pages) {
    std::uint64_t level = pages;
    do {
      VPMM_CHECK(depth_ < levels_.size(), "more pages than a set can number");
      level = words_over(level);
      levels_[depth_++] = memory;
      memory += level;
    } while (level > 1);
  }

  bool empty() const { return count_ == 0; }

  // Requires: not in the set.
  void add(std::uint64_t page) {
    ++count_;
    for (std::size_t level = 0; level < depth_; ++level, page /= 64) {
      std::uint64_t& word = levels_[level][page / 64];
      const bool was_empty = word == 0;
      word |= bit(page);
      if (!was_empty) return;
    }
  }

  // Requires: in the set.
  void remove(std::uint64_t page) {
    --count_;
    for (std::size_t level = 0; level < depth_; ++level, page /= 64) {
      std::uint64_t& word = levels_[level][page / 64];
      word &= ~bit(page);
      if (word != 0) return;
    }
  }

  // Smallest number >= `page`; nullopt if none.
  std::optional<std::uint64_t> first_from(std::uint64_t page) const {
    std::uint64_t numbers = pages_;
    for (std::size_t level = 0; level < depth_ && page < numbers; ++level) {
      const std::uint64_t found = levels_[level][page / 64] & (~std::uint64_t{0} << page % 64);
      if (found != 0)
        return descend(level, page / 64, found,
                       [](std::uint64_t word) { return std::countr_zero(word); });
      page = page / 64 + 1;
      numbers = words_over(numbers);
    }
    return std::nullopt;
  }

  // Largest number <= `page`; nullopt if none.
  std::optional<std::uint64_t> last_up_to(std::uint64_t page) const {
    std::uint64_t admitted = bit(page) | (bit(page) - 1);
    for (std::size_t level = 0; level < depth_; ++level) {
      const std::uint64_t found = levels_[level][page / 64] & admitted;
      if (found != 0)
        return descend(level, page / 64, found,
                       [](std::uint64_t word) { return 63 - std::countl_zero(word); });
      page /= 64;
      admitted = bit(page) - 1;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t bit(std::uint64_t number) {
    return std::uint64_t{1} << number % 64;
  }
  static constexpr std::uint64_t words_over(std::uint64_t numbers) { return (numbers + 63) / 64; }

  // Descends from the bits `found` in word `at` of `level` to a page.
  template <typename Pick>
  std::uint64_t descend(std::size_t level, std::uint64_t at, std::uint64_t found,
                        const Pick& pick) const {
    at = at * 64 + static_cast<std::uint64_t>(pick(found));
    for (; level > 0; --level)
      at = at * 64 + static_cast<std::uint64_t>(pick(levels_[level - 1][at]));
    return at;
  }

  // levels_[i + 1] has bit n <=> word n of levels_[i] != 0.
  std::array<std::uint64_t*, 6> levels_{};
  std::size_t depth_ = 0;
  std::uint64_t pages_;
  std::uint64_t count_ = 0;
};

}  // namespace vpmm::region
