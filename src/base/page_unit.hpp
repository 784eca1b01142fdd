// SPDX-License-Identifier: Apache-2.0
// base: from bytes to pages, by a shift wherever the page is a power of two.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bytes.hpp"

namespace vpmm {

class PageUnit {
 public:
  explicit PageUnit(Bytes page)
      : page_(page),
        shift_(is_power_of_two(page) ? static_cast<std::uint8_t>(std::countr_zero(page))
                                     : kNoShift) {}

  Bytes bytes() const { return page_; }
  // Whole pages in `bytes`.
  std::uint64_t pages(Bytes bytes) const {
    return shift_ != kNoShift ? bytes >> shift_ : bytes / page_;
  }
  std::uint64_t pages_up(Bytes bytes) const { return pages(bytes + page_ - 1); }
  bool is_whole(Bytes bytes) const { return pages(bytes) * page_ == bytes; }

 private:
  static constexpr std::uint8_t kNoShift = 64;

  Bytes page_;
  std::uint8_t shift_;
};

}  // namespace vpmm
