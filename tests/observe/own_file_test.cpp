// SPDX-License-Identifier: Apache-2.0
// tests: the file of a recording is its own, no longer than the recording lasts, whoever inherited
// it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/race_window.hpp"
#include "base/scope_exit.hpp"
#include "observe/own_file.hpp"
#include "observe/recorded_program.hpp"

namespace vpmm::observe {
namespace {

using Access = OwnFile::Access;

constexpr const char* kPlace = "a file is locked, and may have lost its name";

// The descriptors of this process that stand for the file.
std::vector<int> descriptors_of(const std::string& path) {
  std::vector<int> found;
  const std::string real = std::filesystem::canonical(path);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code is_closed;
    if (std::filesystem::read_symlink(entry, is_closed) == real)
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

ErrorCode refusal_of(const std::string& path) {
  const auto file = OwnFile::create(path, Access::read_and_write);
  return file.ok() ? ErrorCode{} : file.error().code;
}

class OwnFileTest : public testing::Test {
 protected:
  void TearDown() override {
    race_window.store(nullptr);
    for (const std::string& path : {path_, path_ + ".csv"}) std::filesystem::remove(path);
  }
  // Where the window is, `step` is done to the file.
  void always(void (*step)()) {
    window_path = path_;
    window_step = step;
    race_window.store([](const char* place) {
      if (std::string(place) == kPlace) window_step();
    });
  }

  inline static std::string window_path;
  inline static void (*window_step)() = nullptr;
  const std::string path_ = testing::TempDir() + "vpmm_own_file_" + std::to_string(getpid());
};

TEST_F(OwnFileTest, is_in_use_until_it_is_given_up) {
  auto file = OwnFile::create(path_, Access::read_and_write);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(refusal_of(path_), ErrorCode::file_in_use);
  file.value().reset();
  EXPECT_EQ(refusal_of(path_), ErrorCode{});
}

// As a child has it that was forked a moment before the file was listed.
TEST_F(OwnFileTest, of_a_recording_that_ended_is_free_whoever_has_its_descriptor) {
  for (const std::string& path : {path_, path_ + ".csv"}) {
    auto program = RecordedProgram::create(path, 0);
    ASSERT_TRUE(program.ok()) << program.error().message;
    const std::vector<int> owned = descriptors_of(path);
    ASSERT_EQ(owned.size(), 1u);
    const int inherited = ::dup(owned.front());
    const ScopeExit close_it([&] { ::close(inherited); });
    EXPECT_EQ(refusal_of(path), ErrorCode::file_in_use);
    EXPECT_TRUE(program.value()->close().ok());
    EXPECT_EQ(refusal_of(path), ErrorCode{}) << path;
  }
}

TEST_F(OwnFileTest, is_closed_in_a_forked_child_and_stays_the_parents) {
  for (const std::string& path : {path_, path_ + ".csv"}) {
    auto program = RecordedProgram::create(path, 0);
    ASSERT_TRUE(program.ok()) << program.error().message;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const bool is_closed = descriptors_of(path).empty();
      program.value().reset();
      _exit(is_closed ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << path;
    EXPECT_EQ(refusal_of(path), ErrorCode::file_in_use) << path;
    program.value()->record_allocate(kA, 64, 1, 1);
    EXPECT_TRUE(program.value()->close().ok());
    EXPECT_EQ(descriptors_of(path).size(), 0u);
  }
}

TEST_F(OwnFileTest, that_was_given_up_in_the_parent_closes_nothing_in_a_child) {
  auto first = OwnFile::create(path_, Access::write);
  auto second = OwnFile::create(path_ + ".csv", Access::write);
  ASSERT_TRUE(first.ok() && second.ok());
  const int number = first.value()->release();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0)
    _exit(descriptors_of(path_).size() == 1 && descriptors_of(path_ + ".csv").empty() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(number);
}

TEST_F(OwnFileTest, that_lost_its_name_to_another_is_opened_anew) {
  always([] {
    race_window.store(nullptr);
    std::ofstream(window_path + ".csv") << "another";
    std::filesystem::rename(window_path + ".csv", window_path);
  });
  const auto file = OwnFile::create(path_, Access::write);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(::write(file.value()->descriptor(), "ours", 4), 4);
  EXPECT_EQ(std::filesystem::file_size(path_), 4u);
}

// As a file system does whose files have no lasting numbers, or no names before they are closed.
TEST_F(OwnFileTest, whose_name_never_leads_to_it_is_taken_all_the_same) {
  always([] { std::filesystem::remove(window_path); });
  EXPECT_EQ(refusal_of(path_), ErrorCode{});
}

}  // namespace
}  // namespace vpmm::observe
