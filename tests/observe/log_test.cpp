// SPDX-License-Identifier: Apache-2.0
// tests: levels decide what reaches the sink, and unwanted messages are never formatted.
#include "observe/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

// Counts how often fmt formats one of these.
struct Counted {
  int* formatted;
};

}  // namespace

template <>
struct fmt::formatter<Counted> : fmt::formatter<int> {
  template <typename Context>
  auto format(const Counted& counted, Context& context) const {
    ++*counted.formatted;
    return fmt::formatter<int>().format(*counted.formatted, context);
  }
};

namespace vpmm::observe {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, std::string_view message) {
      lines_.push_back(std::string(to_string(level)) + ": " + std::string(message));
    });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_level(LogLevel::warning);
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, passes_messages_up_to_the_level) {
  set_log_level(LogLevel::info);
  log(LogLevel::error, "one {}", 1);
  log(LogLevel::info, "two");
  log(LogLevel::debug, "three");
  EXPECT_EQ(lines_, (std::vector<std::string>{"error: one 1", "info: two"}));
}

TEST_F(Log, says_nothing_when_quiet) {
  set_log_level(LogLevel::quiet);
  log(LogLevel::error, "lost");
  log(LogLevel::quiet, "never a level of a message");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(Log, does_not_format_what_nobody_wants) {
  int formatted = 0;
  log(LogLevel::debug, "{}", Counted{&formatted});
  EXPECT_EQ(formatted, 0);
  log(LogLevel::error, "{}", Counted{&formatted});
  EXPECT_EQ(formatted, 1);
}

TEST_F(Log, goes_to_stderr_without_a_sink) {
  set_log_sink({});
  testing::internal::CaptureStderr();
  log(LogLevel::warning, "page size {}", 3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "vpmm: warning: page size 3\n");
}

TEST_F(Log, may_change_the_sink_from_inside_the_sink) {
  set_log_sink([](LogLevel, std::string_view) { set_log_sink([](LogLevel, std::string_view) {}); });
  log(LogLevel::error, "replaces the sink while it runs");
  log(LogLevel::error, "goes to the second one");
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace vpmm::observe
