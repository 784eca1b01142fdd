// SPDX-License-Identifier: Apache-2.0
// tests: Result carries a value or an error, and VPMM_TRY passes the error on unchanged.
#include "base/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace vpmm {
namespace {

Error no_memory() { return Error{ErrorCode::out_of_memory, "device 0 has no 4 MiB left"}; }

Result<int> half_of(int n) {
  if (n % 2 != 0) return Error{ErrorCode::invalid_argument, "odd"};
  return n / 2;
}

Result<int> quarter_of(int n) {
  VPMM_TRY_ASSIGN(const int half, half_of(n));
  VPMM_TRY_ASSIGN(const int quarter, half_of(half));
  return quarter;
}

Result<void> fail_when(const Error* error) {
  if (error != nullptr) return *error;
  return {};
}

Result<void> pass_on(const Error* error, int& reached) {
  VPMM_TRY(fail_when(error));
  ++reached;
  return {};
}

TEST(Result, holds_the_value) {
  const Result<int> result = 3;
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(result.value(), 3);
}

TEST(Result, holds_the_error) {
  const Result<int> result = no_memory();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(result.error().message, "device 0 has no 4 MiB left");
}

TEST(Result, moves_out_values_that_cannot_be_copied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 5);
}

TEST(Result, void_is_ok_by_default) {
  EXPECT_TRUE(Result<void>().ok());
  EXPECT_FALSE(Result<void>(no_memory()).ok());
}

TEST(Result, try_assign_takes_the_value_or_returns_the_first_error) {
  EXPECT_EQ(quarter_of(8).value(), 2);
  EXPECT_EQ(quarter_of(6).error().message, "odd");
  EXPECT_EQ(quarter_of(7).error().code, ErrorCode::invalid_argument);
}

TEST(Result, try_goes_on_only_after_success) {
  int reached = 0;
  const Error error = no_memory();
  EXPECT_EQ(pass_on(&error, reached).error().message, error.message);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(pass_on(nullptr, reached).ok());
  EXPECT_EQ(reached, 1);
}

TEST(ErrorCode, every_code_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (int code = 1; code <= static_cast<int>(ErrorCode::bad_file); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  names.insert(
      to_string(ErrorCode::not_shared));  // the C ABI has a status between the two that is no error
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::bad_file) + 1);
  EXPECT_FALSE(names.contains("unknown error"));
}

TEST(ErrorCode, a_number_without_a_name_is_no_crash) {
  EXPECT_STREQ(to_string(static_cast<ErrorCode>(9999)), "unknown error");
}

}  // namespace
}  // namespace vpmm
