// SPDX-License-Identifier: Apache-2.0
// tests: a failed check prints what broke and where, then aborts.
#include "base/check.hpp"

#include <gtest/gtest.h>

#include <string>

namespace vpmm {
namespace {

std::string count_and_say(int& calls) {
  ++calls;
  return "message";
}

TEST(CheckDeathTest, a_failed_check_prints_place_expression_and_message) {
  const int pages = 3;
  EXPECT_DEATH(VPMM_CHECK(pages == 4, "pool: " + std::to_string(pages)),
               "check_test\\.cpp:[0-9]+: check failed: pages == 4: pool: 3");
}

TEST(CheckDeathTest, the_message_is_built_only_on_failure) {
  int calls = 0;
  VPMM_CHECK(true, count_and_say(calls));
  EXPECT_EQ(calls, 0);
  EXPECT_DEATH(VPMM_CHECK(false, count_and_say(calls)), "message");
}

TEST(Check, is_one_statement_after_an_if_without_braces) {
  bool reached_else = false;
  const bool condition = false;
  if (condition)
    VPMM_CHECK(false, "not reached");
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

}  // namespace
}  // namespace vpmm
