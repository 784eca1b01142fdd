// SPDX-License-Identifier: Apache-2.0
// tests: delta debugging over the operations of a program that fails.
#pragma once

#include <cstddef>
#include <utility>

namespace vpmm {

// Calls `try_without` with the operations but for a piece: ever smaller pieces, from the end, on
// which nothing depends. `operations` may become what was tried.
template <typename Operations, typename TryWithout>
void drop_pieces(const Operations& operations, TryWithout&& try_without) {
  for (std::size_t piece = operations.size(); piece > 0; piece /= 2) {
    for (std::size_t end = operations.size(); end > 0;) {
      const std::size_t begin = end > piece ? end - piece : 0;
      Operations fewer = operations;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(begin),
                  fewer.begin() + static_cast<std::ptrdiff_t>(end));
      try_without(std::move(fewer));
      end = begin;
    }
  }
}

}  // namespace vpmm
