// SPDX-License-Identifier: Apache-2.0
// capi: recordings with options, by the environment, with frames of another language; and what a
// kill leaves behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "capi/sim_pool.hpp"
#include "observe/trace_file.hpp"
#include "support/recorded_file.hpp"
#include "vpmm/recording.hpp"

namespace vpmm::capi_test {
namespace {

using observe::RecordedKind;
using test::read_recorded;
using test::RecordedFile;

std::string file_of_test() {
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  return testing::TempDir() + "vpmm_" + std::to_string(getpid()) + "_" + test.substr(0, 40) +
         ".vpmmrec";
}

class RecordedEvents : public SimPool {
 protected:
  void TearDown() override {
    std::filesystem::remove(path_);
    SimPool::TearDown();
  }
  vpmm_record_options options() const {
    vpmm_record_options options{};
    options.size = sizeof(options);
    options.path = path_.c_str();
    return options;
  }

  const std::string path_ = file_of_test();
};

TEST_F(RecordedEvents, with_options_are_recorded_and_marked) {
  vpmm_record_options asked = options();
  asked.stacks = "native";
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  allocate(1000);
  ASSERT_EQ(vpmm_record_mark(pool_, "step 12"), VPMM_OK);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_record_mark(pool_, "too late"), VPMM_OK)
      << "nothing is recorded, and that is no mistake";
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.header["stacks"], "native");
  EXPECT_NE(file.first(RecordedKind::allocate).stack, 0U);
  EXPECT_EQ(file.text(file.first(RecordedKind::mark).value), "step 12");
}

TEST_F(RecordedEvents, have_the_marks_that_name_no_pool) {
  ASSERT_EQ(vpmm_record_mark(nullptr, "nobody hears this"), VPMM_OK);
  vpmm_record_options asked = options();
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  record_mark("step 1");
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.count(RecordedKind::mark), 1U);
  EXPECT_EQ(file.text(file.first(RecordedKind::mark).value), "step 1");
}

TEST_F(RecordedEvents, know_what_a_stream_is_called_whose_memory_lived_before) {
  auto* const per_thread = reinterpret_cast<void*>(2);  // NOLINT: CU_STREAM_PER_THREAD
  void* ptr = nullptr;
  allocate(4096);
  ASSERT_EQ(vpmm_allocate(pool_, 4096, per_thread, &ptr), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_start(pool_, path_.c_str()), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.count(RecordedKind::live), 2U);
  const std::string streams = file.definitions["streams"].dump();
  EXPECT_NE(streams.find("(0x0)"), std::string::npos) << streams;
  EXPECT_NE(streams.find("(0x2)"), std::string::npos) << streams;
}

TEST_F(RecordedEvents, go_to_no_file_that_another_recording_is_written_to) {
  vpmm_pool* other = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &other), VPMM_OK) << vpmm_last_error();
  for (const std::string& path : {path_, path_ + ".csv"}) {
    vpmm_record_options asked = options();
    asked.path = path.c_str();
    ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_record_start(other, path.c_str()), VPMM_ERROR_BAD_FILE);
    EXPECT_TRUE(last_error_names("another recording is being written to it")) << vpmm_last_error();
    allocate(1000);
    EXPECT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(observe::read_trace(path).value().allocations, 1U);
    EXPECT_EQ(vpmm_record_start(other, path.c_str()), VPMM_OK)
        << "it is over: " << vpmm_last_error();
    EXPECT_EQ(vpmm_record_stop(other), VPMM_OK);
  }
  EXPECT_EQ(vpmm_pool_destroy(other), VPMM_OK);
  std::filesystem::remove(path_ + ".csv");
}

TEST_F(RecordedEvents, refuse_options_that_are_wrong) {
  vpmm_record_options asked = options();
  asked.size = 8;
  EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("vpmm_record_options.size is 8")) << vpmm_last_error();
  asked = options();
  asked.path = nullptr;
  EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_record_start_with(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_record_mark(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  asked = options();
  asked.stacks = "java";
  EXPECT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("stacks `java`")) << vpmm_last_error();
}

TEST_F(RecordedEvents, of_the_cpp_header_end_with_its_scope) {
  {
    const recording recorded(pool_ref(pool_), path_, {"none", 1, 0, 0});
    allocate(1000);
    recorded.mark("in between");
  }
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.count(RecordedKind::allocate), 1U);
  EXPECT_EQ(file.end["ended"], "stopped");
}

// --- frames of another language

std::size_t two_frames(void* argument, uint64_t* frames, std::size_t most) {
  EXPECT_GE(most, 2U);
  frames[0] = 7;
  frames[1] = *static_cast<const uint64_t*>(argument);
  return 2;
}

void name_frame(void* /*argument*/, uint64_t frame, const char** file, uint64_t* line,
                const char** function) {
  *file = "model.py";
  *line = frame;
  *function = frame == 7 ? "forward" : "train";
}

TEST_F(RecordedEvents, have_the_frames_that_a_provider_gives) {
  uint64_t outer = 8;
  ASSERT_EQ(vpmm_set_stack_callback(two_frames, name_frame, &outer), VPMM_OK);
  vpmm_record_options asked = options();
  asked.stacks = "python";
  ASSERT_EQ(vpmm_record_start_with(pool_, &asked), VPMM_OK) << vpmm_last_error();
  allocate(1000);
  allocate(1000);
  outer = 9;
  allocate(1000);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_set_stack_callback(nullptr, nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_set_stack_callback(two_frames, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.definitions["stacks"].size(), 2U);
  const std::string number = std::to_string(file.first(RecordedKind::allocate).stack);
  EXPECT_EQ(file.definitions["stacks"][number].dump(),
            R"([["model.py",7,"forward"],["model.py",8,"train"]])");
}

// --- by the environment

class RecordedByEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    setenv("VPMM_RECORD", (folder_ + "/run-%p.%d.csv.gz").c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"VPMM_RECORD", "VPMM_RECORD_STACKS", "VPMM_RECORD_SAMPLE",
                             "VPMM_RECORD_LIMIT", "VPMM_RECORD_WINDOW"})
      unsetenv(name);
    std::filesystem::remove_all(folder_);
  }
  std::string run(const std::string& suffix) const {
    return folder_ + "/run-" + std::to_string(getpid()) + suffix;
  }
  static void use_a_pool() {
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_allocate(pool, 1000, nullptr, &ptr), VPMM_OK);
    EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK);
  }

  const std::string folder_ = file_of_test();
};

TEST_F(RecordedByEnvironment, each_pool_has_a_file_of_its_own) {
  use_a_pool();
  use_a_pool();
  EXPECT_EQ(observe::read_trace(run(".0.csv.gz")).value().allocations, 1U);
  EXPECT_EQ(observe::read_trace(run(".2.0.csv.gz")).value().allocations, 1U);
}

// As children do, which inherit the variable.
TEST_F(RecordedByEnvironment, a_process_that_finds_the_file_in_use_takes_one_of_its_own) {
  const std::string file = folder_ + "/run.vpmm";
  setenv("VPMM_RECORD", file.c_str(), 1);
  const int taken = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(taken, LOCK_EX), 0);
  ASSERT_EQ(::write(taken, "mine", 4), 4);
  testing::internal::CaptureStderr();
  use_a_pool();
  const std::string said = testing::internal::GetCapturedStderr();
  ::close(taken);
  EXPECT_NE(said.find("warning: recording to " + folder_ + "/run." + std::to_string(getpid())),
            std::string::npos)
      << said;
  EXPECT_EQ(std::filesystem::file_size(file), 4U);
  EXPECT_EQ(read_recorded(folder_ + "/run." + std::to_string(getpid()) + ".vpmm")
                .count(RecordedKind::allocate),
            1U);
}

TEST_F(RecordedByEnvironment, a_file_that_is_not_in_use_and_cannot_be_recorded_to_is_an_error) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  setenv("VPMM_RECORD", pipe.c_str(), 1);
  setenv("VPMM_RECORD_LIMIT", "1MiB", 1);
  testing::internal::CaptureStderr();
  use_a_pool();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("nothing is recorded: " + pipe), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(pipe + "." + std::to_string(getpid())));
}

TEST_F(RecordedByEnvironment, options_are_taken_from_it) {
  const std::string file = folder_ + "/events";
  setenv("VPMM_RECORD", file.c_str(), 1);
  setenv("VPMM_RECORD_STACKS", "native", 1);
  setenv("VPMM_RECORD_LIMIT", "1MiB", 1);
  setenv("VPMM_RECORD_WINDOW", "60", 1);
  use_a_pool();
  const RecordedFile recorded = read_recorded(file);
  EXPECT_EQ(recorded.header["stacks"], "native");
  EXPECT_EQ(recorded.count(RecordedKind::allocate), 1U);
}

TEST_F(RecordedByEnvironment, the_default_as_info_prints_it_is_no_file) {
  setenv("VPMM_RECORD", "none", 1);
  use_a_pool();
  EXPECT_FALSE(std::filesystem::exists("none"));
}

TEST_F(RecordedByEnvironment, what_is_wrong_with_it_keeps_no_pool_from_opening) {
  setenv("VPMM_RECORD", "/no/such/folder/file", 1);
  testing::internal::CaptureStderr();
  use_a_pool();
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("nothing is recorded: /no/such/folder/file"),
      std::string::npos);
  setenv("VPMM_RECORD", (folder_ + "/%x").c_str(), 1);
  testing::internal::CaptureStderr();
  use_a_pool();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("a % stands before p"), std::string::npos);
  setenv("VPMM_RECORD", (folder_ + "/f").c_str(), 1);
  setenv("VPMM_RECORD_LIMIT", "much", 1);
  testing::internal::CaptureStderr();
  use_a_pool();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("VPMM_RECORD_LIMIT=much"),
            std::string::npos);
}

// --- processes that end

class RecordedEventsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { std::filesystem::remove(path()); }
  static std::string path() {
    return testing::TempDir() + "vpmm_recorded_events_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static void start_and_allocate(int count) {
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    if (vpmm_default_pool(0, &pool) != VPMM_OK ||
        vpmm_record_start(pool, path().c_str()) != VPMM_OK)
      _exit(99);
    for (int i = 0; i < count; ++i)
      if (vpmm_allocate(pool, 4096, nullptr, &ptr) != VPMM_OK) _exit(97);
  }
  static void wait_for(std::size_t calls) {
    for (int i = 0; i < 3000; ++i) {
      const auto trace = observe::read_trace(path());
      if (trace.ok() && trace.value().events.size() >= calls) return;
      usleep(10'000);
    }
    _exit(95);
  }
};

TEST_F(RecordedEventsDeathTest, are_whole_after_an_ordinary_exit) {
  EXPECT_EXIT((start_and_allocate(10), std::exit(0)), testing::ExitedWithCode(0), "");
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(RecordedKind::allocate), 10U);
  EXPECT_EQ(file.end["ended"], "exit");
}

TEST_F(RecordedEventsDeathTest, of_the_last_second_at_most_are_missing_after_a_kill) {
  EXPECT_EXIT((start_and_allocate(100), wait_for(100), kill(getpid(), SIGKILL)),
              testing::KilledBySignal(SIGKILL), "");
  const auto trace = observe::read_trace(path());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().allocations, 100U);
  EXPECT_NE(trace.value().warning, "");
}

TEST_F(RecordedEventsDeathTest, have_the_request_that_failed_right_before_the_end) {
  const auto fail_and_end = [] {
    start_and_allocate(1);
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    if (vpmm_default_pool(0, &pool) != VPMM_OK) _exit(98);
    if (vpmm_allocate(pool, std::size_t{1} << 40, nullptr, &ptr) != VPMM_ERROR_OUT_OF_MEMORY)
      _exit(97);
    _exit(3);
  };
  EXPECT_EXIT(fail_and_end(), testing::ExitedWithCode(3), "");
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(file.count(RecordedKind::out_of_memory), 1U);
  EXPECT_EQ(file.count(RecordedKind::allocate_failed), 1U);
}

void mark_and_open_two_pools(const std::string& path) {
  vpmm_pool* first = nullptr;
  vpmm_pool* second = nullptr;
  unsetenv("VPMM_RECORD");
  if (vpmm_record_mark(nullptr, "nobody asked") != VPMM_OK) _exit(99);
  setenv("VPMM_RECORD", path.c_str(), 1);
  if (vpmm_record_mark(nullptr, "step 0") != VPMM_OK) _exit(98);
  if (vpmm_default_pool(0, &first) != VPMM_OK || vpmm_pool_create(0, nullptr, &second) != VPMM_OK)
    _exit(97);
}

TEST_F(RecordedEventsDeathTest,
       that_the_environment_asks_for_begin_with_the_marks_made_before_there_was_a_pool) {
  EXPECT_EXIT((mark_and_open_two_pools(path()), std::exit(0)), testing::ExitedWithCode(0), "");
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(file.count(RecordedKind::mark), 1U);
  EXPECT_EQ(file.text(file.first(RecordedKind::mark).value), "step 0");
  EXPECT_EQ(read_recorded(path() + ".2").count(RecordedKind::mark), 0U);
  std::filesystem::remove(path() + ".2");
}

void fork_and_use_in_child(vpmm_pool* pool) {
  const pid_t child = fork();
  if (child == 0) {
    void* ptr = nullptr;
    std::exit(vpmm_allocate(pool, 4096, nullptr, &ptr) == VPMM_ERROR_PROCESS_ENDING ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(96);
}

TEST_F(RecordedEventsDeathTest, of_a_forked_child_are_none) {
  EXPECT_EXIT(
      {
        start_and_allocate(5);
        vpmm_pool* pool = nullptr;
        if (vpmm_default_pool(0, &pool) != VPMM_OK) _exit(98);
        fork_and_use_in_child(pool);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(RecordedKind::allocate), 5U);
  EXPECT_FALSE(file.end.is_null());
}

}  // namespace
}  // namespace vpmm::capi_test
