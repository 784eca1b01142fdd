// SPDX-License-Identifier: Apache-2.0
// tests/observe: numbers that a recording gives out.
#include "observe/definitions.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace vpmm::observe {
namespace {

const char* name_of_current_tag = "cupy";
const char* name_of_tag(std::uint32_t) { return name_of_current_tag; }

TEST(Definitions,
     a_library_keeps_its_number_when_there_are_too_many_or_its_tag_has_no_name_any_more) {
  constexpr std::uint32_t kMost = 0xffff;
  StackTable stacks;
  Definitions definitions(name_of_tag, stacks);
  for (std::uint32_t tag = 1; tag <= kMost; ++tag) ASSERT_EQ(definitions.library(tag), tag);
  EXPECT_EQ(definitions.library(kMost + 1), 0);
  EXPECT_EQ(definitions.library(1), 1);
  EXPECT_EQ(definitions.library(kMost), kMost);
  name_of_current_tag = "";
  EXPECT_EQ(definitions.library(2), 2);
  name_of_current_tag = "cupy";
}

}  // namespace
}  // namespace vpmm::observe
