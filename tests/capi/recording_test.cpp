// capi: recordings that nobody stops: what is in the file when the process exits, aborts or forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "capi/sim_pool.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::capi_test {
namespace {

// The threadsafe style starts the test anew in a process of its own, which records; the test reads what is left.
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
    if (vpmm_default_pool(0, &pool) != VPMM_OK || vpmm_record_start(pool, path().c_str()) != VPMM_OK) _exit(99);
  }
  static void allocate(int count) {
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    if (vpmm_default_pool(0, &pool) != VPMM_OK) _exit(98);
    for (int i = 0; i < count; ++i)
      if (vpmm_allocate(pool, 4096, nullptr, &ptr) != VPMM_OK) _exit(97);
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
  EXPECT_EXIT((start(), allocate(3000), std::abort()), testing::KilledBySignal(SIGABRT), "");
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
  EXPECT_EXIT((start(), allocate(5), fork_and_exit_in_child(), allocate(5), std::exit(0)), testing::ExitedWithCode(0),
              "");
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

}  // namespace
}  // namespace vpmm::capi_test
