// SPDX-License-Identifier: Apache-2.0
// capi: options of recordings, names of files that the environment gives, and marks of all pools.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "capi/sim_pool.hpp"
#include "observe/trace_file.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::capi_test {
namespace {

namespace fs = std::filesystem;
using observe::RecordedKind;
using test::read_recorded;
using test::RecordedFile;

// With a folder for files of the test.
class RecordOptions : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr) << folder_;
  }
  void TearDown() override {
    for (const char* name : {"VPMM_RECORD", "VPMM_RECORD_STACKS"}) unsetenv(name);
    fs::remove_all(folder_);
    SimPool::TearDown();
  }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  vpmm_record_options options_for(const std::string& path) const {
    vpmm_record_options options{};
    options.size = sizeof(options);
    options.path = path.c_str();
    return options;
  }
  void allocate_some(int count) {
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(vpmm_deallocate(pool_, allocate(3000), nullptr), VPMM_OK);
  }
  static void open_pool() {
    vpmm_pool* pool = nullptr;
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
  }

  std::string folder_ = testing::TempDir() + "vpmm-options-XXXXXX";
};

TEST_F(RecordOptions, are_stacks_sample_limit_and_window) {
  const std::string path = file("all");
  vpmm_record_options asked = options_for(path);
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  allocate_some(100);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  RecordedFile recorded = read_recorded(path);
  EXPECT_EQ(recorded.header["stacks"], "none");
  EXPECT_EQ(recorded.header["sample"], 1);
  EXPECT_EQ(recorded.count(RecordedKind::allocate), 100U);
  asked.stacks = "both";
  asked.sample = 10;
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  allocate_some(2000);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  recorded = read_recorded(path);
  EXPECT_EQ(recorded.header["stacks"], "both");
  EXPECT_EQ(recorded.header["sample"], 10);
  EXPECT_GT(recorded.count(RecordedKind::allocate), 20U);
  EXPECT_LT(recorded.count(RecordedKind::allocate), 1000U);
  EXPECT_EQ(recorded.header["is_window"], false);
  asked = options_for(path);
  asked.sample = 1;
  asked.limit = 65536;
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  allocate_some(20'000);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(read_recorded(path).header["is_window"], true);
}

TEST_F(RecordOptions, for_blocks_alone_are_refused_for_lines_each_by_itself) {
  const std::string lines = file("lines.csv");
  for (const int which : {0, 1, 2, 3}) {
    vpmm_record_options asked = options_for(lines);
    if (which == 0) asked.stacks = "native";
    if (which == 1) asked.sample = 2;
    if (which == 2) asked.limit = 65536;
    if (which == 3) asked.window_ns = 1'000'000'000;
    EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_ERROR_INVALID_ARGUMENT) << which;
    EXPECT_TRUE(last_error_names("are not for .csv files")) << vpmm_last_error();
  }
  vpmm_record_options asked = options_for(lines);
  asked.stacks = "none";
  asked.sample = 1;
  EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_record_stop(pool_), VPMM_OK);
}

TEST_F(RecordOptions, name_what_is_wrong_with_them) {
  const std::string path = file("none");
  const auto expect = [&](vpmm_record_options asked, const std::string& said) {
    EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_names(said.c_str())) << vpmm_last_error();
  };
  vpmm_record_options asked = options_for(path);
  asked.size = sizeof(asked) - 1;
  expect(asked, "vpmm_record_options.size is " + std::to_string(asked.size));
  asked = options_for(path);
  asked.path = nullptr;
  expect(asked, "`path` is null");
  asked.path = "";
  expect(asked, "`path` is empty");
  asked = options_for(path);
  asked.limit = 65535;
  expect(asked, "65535");
  EXPECT_EQ(vpmm_record_start_with(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`options` is null");
  EXPECT_EQ(vpmm_record_start(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`path` is null");
  struct {
    vpmm_record_options known;
    std::uint64_t newer;
  } longer{options_for(path), 1};
  longer.known.size = sizeof(longer);
  EXPECT_EQ(vpmm_record_start_with(pool_, &longer.known), VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(
      last_error_names("vpmm_record_options holds settings that this version does not know"))
      << vpmm_last_error();
  EXPECT_EQ(names(), std::vector<std::string>{});
  EXPECT_EQ(vpmm_record_stop(pool_), VPMM_ERROR_INVALID_ARGUMENT) << "nothing is recorded";
  EXPECT_EQ(vpmm_record_mark(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`text` is null");
}

// Each name as the first pool's file, and as the second's.
TEST_F(RecordOptions, of_the_environment_have_names_with_process_device_and_number) {
  const std::string process = std::to_string(getpid());
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"plain", {"plain", "plain.2"}},       {"a.csv.gz", {"a.2.csv.gz", "a.csv.gz"}},
      {".hidden", {".hidden", ".hidden.2"}}, {".hidden.csv", {".hidden.2.csv", ".hidden.csv"}},
      {"%p", {process, process + ".2"}},     {"%d", {"0", "0.2"}},
      {"100%%", {"100%", "100%.2"}},         {"%p-%d.%%", {process + "-0.%", process + "-0.2.%"}},
  };
  for (const auto& [pattern, expected] : cases) {
    const std::string inner = file("in.side");  // a dot before the name
    fs::create_directory(inner);
    setenv("VPMM_RECORD", (inner + "/" + pattern).c_str(), 1);
    for (int i = 0; i < 2; ++i) open_pool();
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(inner))
      found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, expected) << pattern;
    fs::remove_all(inner);
  }
}

TEST_F(RecordOptions, of_the_environment_need_a_name_after_their_percent_sign) {
  for (const char* const pattern : {"run-%", "%x", "%%%", "%p%"}) {
    setenv("VPMM_RECORD", file(pattern).c_str(), 1);
    testing::internal::CaptureStderr();
    open_pool();
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "vpmm: error: nothing is recorded: VPMM_RECORD=" + file(pattern) +
                  ": a % stands before p (process), d (device) or another %\n");
  }
  EXPECT_EQ(names(), std::vector<std::string>{});
}

// Nor does a second name help where it is in use as well.
TEST_F(RecordOptions, of_the_environment_that_name_a_file_in_use_are_told_if_no_other_can_be_had) {
  const std::vector<std::string> taken = {file("run"), file("run." + std::to_string(getpid()))};
  std::vector<int> files;
  for (const std::string& each : taken) {
    files.push_back(::open(each.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::flock(files.back(), LOCK_EX), 0);
  }
  setenv("VPMM_RECORD", taken.front().c_str(), 1);
  testing::internal::CaptureStderr();
  open_pool();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("vpmm: error: nothing is recorded: " + taken.front()), 0U) << said;
  EXPECT_EQ(said.find("recording to"), std::string::npos) << said;
  for (const int each : files) ::close(each);
}

// --- marks

using Marks = RecordOptions;

TEST_F(Marks, are_of_one_pool_or_of_all) {
  vpmm_pool* other = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &other), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_start(pool_, file("one").c_str()), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_start(other, file("two").c_str()), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_mark(pool_, "first"), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_mark(other, "second"), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_mark(nullptr, "both"), VPMM_OK) << vpmm_last_error();
  for (vpmm_pool* const pool : {pool_, other}) ASSERT_EQ(vpmm_record_stop(pool), VPMM_OK);
  for (const auto& [name, own] : {std::pair{"one", "first"}, std::pair{"two", "second"}}) {
    const RecordedFile recorded = read_recorded(file(name));
    std::vector<std::string> marks;
    for (const auto& event : recorded.events)
      if (event.kind == static_cast<std::uint16_t>(RecordedKind::mark))
        marks.push_back(recorded.text(event.value));
    EXPECT_EQ(marks, (std::vector<std::string>{own, "both"})) << name;
  }
  EXPECT_EQ(vpmm_pool_destroy(other), VPMM_OK);
}

// Started anew by the threadsafe style, as only a process without a pool keeps marks.
class EarlyMarksDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override {
    fs::remove(path());
    fs::remove(path() + ".2");
  }
  static std::string path() {
    return testing::TempDir() + "vpmm_early_marks_" + std::to_string(getuid());
  }
  [[noreturn]] static void mark_and_open() {
    setenv("VPMM_RECORD", path().c_str(), 1);
    for (int i = 0; i < 103; ++i)
      if (vpmm_record_mark(nullptr, std::to_string(i).c_str()) != VPMM_OK) _exit(98);
    vpmm_pool* pool = nullptr;
    if (vpmm_pool_create(0, nullptr, &pool) != VPMM_OK) _exit(97);
    if (vpmm_record_mark(nullptr, "open") != VPMM_OK) _exit(96);
    vpmm_pool* second = nullptr;
    if (vpmm_pool_create(0, nullptr, &second) != VPMM_OK) _exit(95);
    if (vpmm_pool_destroy(second) != VPMM_OK || vpmm_pool_destroy(pool) != VPMM_OK) _exit(94);
    _exit(42);
  }
};

TEST_F(EarlyMarksDeathTest, are_the_last_hundred_before_the_first_pool) {
  EXPECT_EXIT(mark_and_open(), testing::ExitedWithCode(42), "");
  const RecordedFile recorded = read_recorded(path());
  std::vector<std::string> marks;
  for (const auto& event : recorded.events)
    if (event.kind == static_cast<std::uint16_t>(RecordedKind::mark))
      marks.push_back(recorded.text(event.value));
  ASSERT_EQ(marks.size(), 101U);
  EXPECT_EQ(marks.front(), "3");
  EXPECT_EQ(marks[99], "102");
  EXPECT_EQ(marks.back(), "open");
  EXPECT_EQ(read_recorded(path() + ".2").count(RecordedKind::mark), 0U) << "none are left";
}

// --- stacks

TEST(StackCallbacks, come_together_or_not_at_all) {
  const auto capture = [](void*, std::uint64_t*, std::size_t) { return std::size_t{0}; };
  const auto describe = [](void*, std::uint64_t, const char**, std::uint64_t*, const char**) {};
  EXPECT_EQ(vpmm_set_stack_callback(capture, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`capture` and `describe` come together, or both are null");
  EXPECT_EQ(vpmm_set_stack_callback(nullptr, describe, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_set_stack_callback(capture, describe, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_set_stack_callback(nullptr, nullptr, nullptr), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::capi_test
