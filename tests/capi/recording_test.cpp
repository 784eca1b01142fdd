// SPDX-License-Identifier: Apache-2.0
// capi: recordings that nobody stops, what is in the file when the process exits, aborts or forks;
// and files that take no bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "capi/sim_pool.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::capi_test {
namespace {

// The threadsafe style starts the test anew in a process of its own, which records; the test reads
// what is left.
class RecordingDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { std::filesystem::remove(path()); }

  std::string path() const {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    return testing::TempDir() + "vpmm_recording_" + test + ".csv.gz";
  }

  // In the process-wide pool, which is never destroyed.
  void start() const {
    vpmm_pool* pool = nullptr;
    if (vpmm_default_pool(0, &pool) != VPMM_OK ||
        vpmm_record_start(pool, path().c_str()) != VPMM_OK)
      _exit(99);
  }
  static void allocate(int count) {
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    if (vpmm_default_pool(0, &pool) != VPMM_OK) _exit(98);
    for (int i = 0; i < count; ++i)
      if (vpmm_allocate(pool, 4096, nullptr, &ptr) != VPMM_OK) _exit(97);
  }

  // Until the file holds so many calls; a thread writes them.
  void wait_for(std::size_t calls) const {
    for (int i = 0; i < 6000; ++i) {
      const auto trace = observe::read_trace(path());
      if (trace.ok() && trace.value().events.size() >= calls) return;
      usleep(10'000);
    }
    _exit(95);
  }

  void expect_recorded(std::size_t least, bool is_whole) const {
    const auto trace = observe::read_trace(path());
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_GE(trace.value().events.size(), least);
    EXPECT_EQ(trace.value().warning.empty(), is_whole) << trace.value().warning;
  }
};

TEST_F(RecordingDeathTest, that_was_not_stopped_is_whole_after_an_ordinary_exit) {
  EXPECT_EXIT((start(), allocate(10), std::exit(0)), testing::ExitedWithCode(0), "");
  expect_recorded(10, true);
}

TEST_F(RecordingDeathTest, loses_only_the_last_calls_when_the_process_aborts) {
  EXPECT_EXIT((start(), allocate(3000), wait_for(2048), allocate(10), std::abort()),
              testing::KilledBySignal(SIGABRT), "");
  expect_recorded(std::size_t{2} * 1024, false);
}

TEST_F(RecordingDeathTest, has_its_first_line_from_the_start) {
  EXPECT_EXIT((start(), std::abort()), testing::KilledBySignal(SIGABRT), "");
  expect_recorded(0, false);
}

// Ends with the child's exit status.
void fork_and_exit_in_child() {
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(96);
}

TEST_F(RecordingDeathTest, is_left_alone_by_a_forked_child_that_exits) {
  EXPECT_EXIT((start(), allocate(5), fork_and_exit_in_child(), allocate(5), std::exit(0)),
              testing::ExitedWithCode(0), "");
  expect_recorded(10, true);
}

using Recording = SimPool;

TEST_F(Recording, a_second_one_is_refused_before_it_replaces_a_file) {
  const std::string path = testing::TempDir() + "vpmm_recording_first.csv.gz";
  ASSERT_EQ(vpmm_record_start(pool_, path.c_str()), VPMM_OK) << vpmm_last_error();
  allocate(4096);
  EXPECT_EQ(vpmm_record_start(pool_, path.c_str()), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_record_stop(pool_), VPMM_OK);
  const auto trace = observe::read_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().events.size(), 1U);
  std::filesystem::remove(path);
}

// --- a file that takes no bytes

constexpr int kCalls = 250'000;  // far more than a recording keeps

void allocate_and_free(vpmm_pool* pool) {
  for (int i = 0; i < kCalls / 2; ++i) {
    void* ptr = nullptr;
    if (vpmm_allocate_any_stream(pool, 5000, 0, &ptr) != VPMM_OK ||
        vpmm_deallocate_any_stream(pool, ptr) != VPMM_OK)
      _exit(94);
  }
}

// A pipe whose reader reads nothing.
int make_full_pipe(const std::string& path) {
  std::filesystem::remove(path);
  if (mkfifo(path.c_str(), 0600) != 0) return -1;
  return open(path.c_str(), O_RDONLY | O_NONBLOCK);
}

TEST_F(Recording, into_a_pipe_that_is_full_stops_no_call_and_says_what_it_lost) {
  const std::string path = testing::TempDir() + "vpmm_recording_pipe";
  const int reader = make_full_pipe(path);
  ASSERT_GE(reader, 0);
  ASSERT_EQ(vpmm_record_start(pool_, path.c_str()), VPMM_OK) << vpmm_last_error();
  alarm(120);
  allocate_and_free(pool_);
  alarm(0);
  EXPECT_EQ(fcntl(reader, F_SETFL, 0), 0);
  std::thread drain([reader] {
    char bytes[4096];
    while (read(reader, bytes, sizeof(bytes)) > 0) continue;
  });
  EXPECT_EQ(vpmm_record_stop(pool_), VPMM_ERROR_BAD_FILE);
  EXPECT_TRUE(last_error_names("calls are not in it")) << vpmm_last_error();
  drain.join();
  close(reader);
  std::filesystem::remove(path);
}

TEST_F(RecordingDeathTest, into_a_pipe_that_is_full_does_not_keep_the_process_from_exiting) {
  EXPECT_EXIT(
      {
        if (make_full_pipe(path()) < 0) _exit(93);
        start();
        vpmm_pool* pool = nullptr;
        if (vpmm_default_pool(0, &pool) != VPMM_OK) _exit(98);
        alarm(120);
        allocate_and_free(pool);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "not finished, for it takes no bytes");
}

}  // namespace
}  // namespace vpmm::capi_test
