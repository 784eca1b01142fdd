// SPDX-License-Identifier: Apache-2.0
// base: what is allocated in lines shares none.
#include "base/line_allocator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace vpmm {
namespace {

TEST(LineAllocator, what_it_allocates_shares_no_line_with_anything_else) {
  std::vector<std::vector<std::uint64_t, LineAllocator<std::uint64_t>>> lined(100);
  std::vector<std::unique_ptr<std::uint64_t>> others;
  std::set<std::uintptr_t> lines;
  std::size_t count = 0;
  for (std::size_t i = 0; i < lined.size(); ++i) {
    lined[i].resize(1 + i % 20);
    const auto begin = reinterpret_cast<std::uintptr_t>(lined[i].data());
    EXPECT_EQ(begin % kCacheLine, 0u);
    const std::size_t used =
        (lined[i].size() * sizeof(std::uint64_t) + kCacheLine - 1) / kCacheLine;
    for (std::size_t line = 0; line < used; ++line) lines.insert(begin / kCacheLine + line);
    count += used;
  }
  EXPECT_EQ(lines.size(), count) << "of each other";
  for (std::uint64_t i = 0; i < 10'000; ++i) others.push_back(std::make_unique<std::uint64_t>(i));
  for (const auto& other : others)
    EXPECT_EQ(lines.count(reinterpret_cast<std::uintptr_t>(other.get()) / kCacheLine), 0u);
}

// Where others stood before.
TEST(LineArray, begins_as_zeros) {
  constexpr std::size_t kSize = 16;
  std::vector<LineArray<std::uint64_t>> arrays;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      arrays.push_back(make_line_array<std::uint64_t>(kSize));
      for (std::size_t at = 0; at < kSize; ++at) {
        ASSERT_EQ(arrays.back()[at], 0u);
        arrays.back()[at] = ~std::uint64_t{0};
      }
    }
    arrays.clear();
  }
}

TEST(LineArray, shares_no_line_with_another) {
  std::vector<LineArray<std::uint64_t>> arrays;
  std::set<std::uintptr_t> lines;
  for (std::size_t i = 0; i < 100; ++i) {
    arrays.push_back(make_line_array<std::uint64_t>(1 + i % 3));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arrays.back().get()) % kCacheLine, 0u);
    EXPECT_TRUE(lines.insert(reinterpret_cast<std::uintptr_t>(arrays.back().get())).second);
  }
}

}  // namespace
}  // namespace vpmm
