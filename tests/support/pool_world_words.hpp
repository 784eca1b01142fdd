// SPDX-License-Identifier: Apache-2.0
// tests: sizes, times and expectations that tests of a whole pool share.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "support/page_size.hpp"
#include "support/pool_world.hpp"

namespace vpmm::test {

constexpr std::uint64_t kLongNs = 100'000'000;  // work that no call of a test outlasts

template <typename T>
std::string message_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

// Fails with `code`, in a text that contains each of `words`.
template <typename T>
void expect_error(const Result<T>& result, ErrorCode code,
                  const std::vector<std::string>& words = {}) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  for (const std::string& word : words)
    EXPECT_NE(result.error().message.find(word), std::string::npos)
        << word << " is not in: " << result.error().message;
}

inline std::string hex(DevicePtr ptr) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(to_integer(ptr)));
  return text;
}

}  // namespace vpmm::test
