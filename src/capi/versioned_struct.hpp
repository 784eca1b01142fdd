// SPDX-License-Identifier: Apache-2.0
// capi: structs that grow: match of two sides' sizes.
//
// A caller may have been compiled against an older header (a shorter struct) or a newer one (a
// longer struct). Only the common part is copied; `smallest` is the size of the first version, and
// a smaller size is a mistake.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/message.hpp"
#include "base/result.hpp"

namespace vpmm::capi {

inline Result<void> check_size(std::size_t size, std::size_t smallest, const char* name) {
  if (size >= smallest) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("{0}.size is {1}, at least {2} is needed: set it to sizeof({0})", name,
                          size, smallest)};
}

// Fills the caller's struct and zeroes the part unknown to us. Keeps the caller's `size`.
template <typename Struct>
void copy_out(Struct ours, Struct* theirs) {
  const std::size_t size = theirs->size;
  const std::size_t common = std::min(size, sizeof(Struct));
  ours.size = size;
  std::memcpy(theirs, &ours, common);
  std::memset(reinterpret_cast<char*>(theirs) + common, 0, size - common);
}

// Reads the caller's struct over our defaults. The part unknown to us must be zero: an ignored
// setting is an error.
template <typename Struct>
Result<void> copy_in(const Struct* theirs, Struct& ours, const char* name) {
  const char* const bytes = reinterpret_cast<const char*>(theirs);
  const auto is_zero = [](char byte) { return byte == 0; };
  const std::size_t common = std::min(theirs->size, sizeof(Struct));
  if (!std::all_of(bytes + common, bytes + theirs->size, is_zero))
    return Error{ErrorCode::unsupported,
                 message_of("{} holds settings that this version does not know", name)};
  std::memcpy(&ours, theirs, common);
  return {};
}

}  // namespace vpmm::capi
