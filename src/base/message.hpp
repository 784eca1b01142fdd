// SPDX-License-Identifier: Apache-2.0
// base: text of an error, which never fails for want of memory.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

namespace vpmm {

// Short enough for std::string without an allocation.
constexpr const char* kNoMemoryForMessage = "no host memory";

// fmt::format, or without memory kNoMemoryForMessage: an error must not become another one on its
// way, least of all half-way through a change.
template <typename... Args>
std::string message_of(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    return fmt::format(format, std::forward<Args>(args)...);
  } catch (...) {
    return kNoMemoryForMessage;
  }
}

}  // namespace vpmm
