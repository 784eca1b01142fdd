// SPDX-License-Identifier: Apache-2.0
// base: arrays that are zero and cost address space only until they are written.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace vpmm {

struct FreeZeroed {
  void operator()(void* array) const { std::free(array); }
};
template <typename T>
using ZeroedArray = std::unique_ptr<T[], FreeZeroed>;

// Room for `count` elements and `extra` bytes behind them, all zero, from calloc: the kernel backs
// a page of it at the first write. Null: there is no memory, or no such size. Requires: zero bytes
// are a T.
template <typename T>
ZeroedArray<T> zeroed_array(std::size_t count, std::size_t extra = 0) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, sizeof(T), &bytes) ||
      __builtin_add_overflow(bytes, extra, &bytes))
    return nullptr;
  return ZeroedArray<T>(static_cast<T*>(std::calloc(1, bytes)));
}

}  // namespace vpmm
