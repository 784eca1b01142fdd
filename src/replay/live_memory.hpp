// SPDX-License-Identifier: Apache-2.0
// replay: live memory of a program, as requested and in whole pages.
#pragma once

#include <algorithm>

#include "base/bytes.hpp"

namespace vpmm::replay {

// Least bytes that any pool of pages needs for a request: whole pages for a page and more, a
// multiple of 256 bytes below.
constexpr Bytes page_rounded(Bytes bytes, Bytes page_size) {
  return round_up(bytes, bytes < page_size ? 256 : page_size);
}

class LiveMemory {
 public:
  explicit LiveMemory(Bytes page_size) : page_size_(page_size) {}

  void allocate(Bytes bytes) {
    now_ += bytes;
    rounded_now_ += page_rounded(bytes, page_size_);
    peak_ = std::max(peak_, now_);
    rounded_peak_ = std::max(rounded_peak_, rounded_now_);
  }
  void deallocate(Bytes bytes) {
    now_ -= bytes;
    rounded_now_ -= page_rounded(bytes, page_size_);
  }

  Bytes page_size() const { return page_size_; }
  Bytes peak() const { return peak_; }
  Bytes rounded_peak() const { return rounded_peak_; }

 private:
  const Bytes page_size_;
  Bytes now_ = 0;          // = sum of live bytes
  Bytes rounded_now_ = 0;  // = sum of page_rounded() of live allocations
  Bytes peak_ = 0;
  Bytes rounded_peak_ = 0;
};

}  // namespace vpmm::replay
