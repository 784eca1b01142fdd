// SPDX-License-Identifier: Apache-2.0
// base: a scope without host memory, which builds with test hooks check.
#include "base/no_host_memory.hpp"

#include <gtest/gtest.h>

#include "base/host_memory.hpp"

namespace vpmm {
namespace {

TEST(NoHostMemory, ends_the_process_that_takes_some_or_gives_some_back) {
  Vector<int> before = {1};
  EXPECT_DEATH(
      {
        const NoHostMemory scope;
        before.push_back(2);
      },
      "host memory under a lock");
  EXPECT_DEATH(
      {
        const NoHostMemory scope;
        before = Vector<int>();
      },
      "host memory under a lock");
}

TEST(NoHostMemory, is_over_with_its_scope) {
  {
    const NoHostMemory outer;
    const NoHostMemory inner;
    EXPECT_TRUE(NoHostMemory::is_asked());
  }
  EXPECT_FALSE(NoHostMemory::is_asked());
  EXPECT_EQ(Vector<int>(3).size(), 3U);
}

}  // namespace
}  // namespace vpmm
