// SPDX-License-Identifier: Apache-2.0
// tests: ScopeExit runs its function once, unless dismissed.
#include "base/scope_exit.hpp"

#include <gtest/gtest.h>

namespace vpmm {
namespace {

TEST(ScopeExit, runs_when_the_scope_is_left) {
  int runs = 0;
  {
    const ScopeExit undo([&] { ++runs; });
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 1);
}

TEST(ScopeExit, does_nothing_once_dismissed) {
  int runs = 0;
  {
    ScopeExit undo([&] { ++runs; });
    undo.dismiss();
  }
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace vpmm
