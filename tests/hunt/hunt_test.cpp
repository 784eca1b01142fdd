// SPDX-License-Identifier: Apache-2.0
// hunt: the first seeds find nothing, and defects that are planted are found, shrunk and printed
// as C that shows them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "support/repository_path.hpp"

namespace vpmm::hunt {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Answer {
  int code = -1;
  std::string text;  // of both outputs
};

Answer shell(const std::string& command) {
  Answer answer;
  FILE* const out = popen((command + " 2>&1").c_str(), "r");
  if (out == nullptr) return answer;
  std::array<char, 4096> part{};
  while (const std::size_t size = std::fread(part.data(), 1, part.size(), out))
    answer.text.append(part.data(), size);
  const int status = pclose(out);
  if (WIFEXITED(status)) answer.code = WEXITSTATUS(status);
  return answer;
}

Answer hunt(const std::string& arguments) { return shell(VPMM_HUNT " " + arguments); }
// Gets the signal after so many seconds.
Answer hunt_until(const std::string& signal, double seconds, const std::string& arguments) {
  return shell("timeout --preserve-status -s " + signal + " " + std::to_string(seconds) +
               " " VPMM_HUNT " " + arguments);
}

// A hang takes its patience at each run, so that making it small takes minutes.
const char* const kLong = "--first 3 --programs 1 --plant hangs --patience 0.3";

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t number = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++number;
  return number;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Hunt : public testing::Test {
 protected:
  Hunt() { std::filesystem::create_directories(folder_); }
  ~Hunt() override { std::filesystem::remove_all(folder_); }

  std::string out() const { return " --out " + folder_.string(); }
  std::string sums() const { return text_of(folder_ / "sums.txt"); }
  std::filesystem::path script(int seed) const {
    return folder_ / ("hunt-" + std::to_string(seed) + ".c");
  }
  // Compiles the program in C and, unless sanitizers are in the way, runs it.
  Answer compiled_and_run(int seed) const {
    const std::string flags = "-std=c11 -Wall -Wextra -Werror -I" + repository_path("include") +
                              " -I" + repository_path("tests") + " " + script(seed).string();
    const std::string program = (folder_ / "program").string();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return shell("cc -c " + flags + " -o " + program);
#else
    const std::string library =
        " -L" VPMM_STAGE_FOLDER " -lvpmm_stage -Wl,-rpath," VPMM_STAGE_FOLDER;
    return shell("cc " + flags + library + " -o " + program + " && " + program);
#endif
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("vpmm-hunt-test-" + std::to_string(getpid()));
};

// Lines of the main function.
std::ptrdiff_t lines_of_main(const std::string& text) {
  const auto main = text.begin() + static_cast<std::ptrdiff_t>(text.find("int main"));
  return std::count(main, text.end(), '\n');
}

TEST_F(Hunt, the_first_seeds_meet_no_hazard_and_leave_nothing_behind) {
  const Answer answer = hunt("--programs 400 --jobs 2" + out());
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.text, HasSubstr("findings: 0"));
  EXPECT_THAT(answer.text, Not(HasSubstr("never:"))) << "kinds that no program had";
  EXPECT_THAT(answer.text, ContainsRegex("\n[1-9][0-9]* guarded allocations, [1-9]"));
}

TEST_F(Hunt, a_planted_hazard_is_shrunk_to_a_few_lines_of_c_that_show_it) {
  const Answer answer = hunt("--seed 4 --plant uses-untold" + out());
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.text, HasSubstr("finding: seed 4: hazard: use after free"));
  EXPECT_THAT(answer.text, HasSubstr("again: ./dev hunt --seed 4"));
  const std::string text = text_of(script(4));
  EXPECT_LE(lines_of_main(text), 20) << text;
  const Answer shown = compiled_and_run(4);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_EQ(shown.code, 0) << shown.text;
#else
  EXPECT_EQ(shown.code, 1) << shown.text;
  EXPECT_THAT(shown.text, HasSubstr("hazard: use after free"));
#endif
}

TEST_F(Hunt, the_same_seed_is_shrunk_to_the_same_program) {
  const auto calls = [&] {
    hunt("--seed 4 --plant uses-untold" + out());
    const std::string text = text_of(script(4));
    return text.substr(0, text.find("/* found here"));  // addresses differ
  };
  EXPECT_EQ(calls(), calls());
}

// Real time decides whether the socket makes its answer anew. After the first line, which has
// times, the sums are of the programs alone.
TEST_F(Hunt, a_program_that_asks_runs_alike_each_time) {
  const auto calls = [&] {
    const std::string text = hunt("--seed 1062" + out()).text;
    const std::size_t begin = text.find("operations: ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const std::string first = calls();
  EXPECT_THAT(first, HasSubstr("Ask "));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(calls(), first);
}

// All these seeds are multiples of 7, so their programs have a process that imports. Several
// programs of one process use one importer, or the next after a kill.
TEST_F(Hunt, programs_with_another_process_run_alike_each_time) {
  const auto operations = [&] {
    const std::string text = hunt("--first 7 --step 7 --programs 12 --jobs 1" + out()).text;
    EXPECT_THAT(text, HasSubstr("findings: 0"));
    const std::size_t begin = text.find("operations: ");
    return text.substr(begin, text.find("events in", begin) - begin);
  };
  const std::string first = operations();
  EXPECT_THAT(first, HasSubstr("KillImporter "));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(operations(), first);
}

TEST_F(Hunt, crashes_and_hangs_are_found_and_named) {
  for (const auto& [defect, words] :
       {std::pair{"crashes", "signal 6"}, std::pair{"hangs --patience 0.3", "hang"}}) {
    const Answer answer = hunt("--seed 3 --plant " + std::string(defect) + out());
    EXPECT_EQ(answer.code, 1);
    EXPECT_THAT(answer.text, HasSubstr(std::string("finding: seed 3: ") + words));
    EXPECT_LE(lines_of_main(text_of(script(3))), 20);
    EXPECT_EQ(compiled_and_run(3).code, 0) << "the program's own defect is not in its text";
  }
}

TEST_F(Hunt, goes_on_after_findings_and_makes_the_first_of_each_kind_small) {
  const Answer answer =
      hunt("--programs 12 --jobs 1 --plant none,crashes,uses-untold,none" + out());
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.text, HasSubstr("12 programs in"));
  EXPECT_THAT(answer.text, Not(HasSubstr("\n0 calls"))) << "programs without a defect count";
  EXPECT_THAT(answer.text, HasSubstr("3 of signal #: Aborted: seeds 1, 5, 9\n"));
  EXPECT_THAT(answer.text, ContainsRegex("2 of hazard: use after free[^\n]*: seeds 2, 10\n"));
  EXPECT_THAT(answer.text, HasSubstr("findings: 5\n"));
  EXPECT_EQ(count(answer.text, "shrunk from"), 2U);
  EXPECT_TRUE(std::filesystem::exists(script(1)) && std::filesystem::exists(script(2)));
}

TEST_F(Hunt, the_time_bounds_how_small_a_program_is_made) {
  const Answer answer = hunt("--seconds 8 " + std::string(kLong) + out());
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.text, ContainsRegex("seed 3 shrunk from .*, until the time was over: hang"));
  EXPECT_FALSE(text_of(script(3)).empty());
}

TEST_F(Hunt, the_time_ends_programs_that_hang_and_the_sums_of_all_processes_are_printed) {
  const Answer answer = hunt("--seconds 3 --jobs 2 --plant none,hangs --patience 3600" + out());
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.text, Not(HasSubstr("\n0 calls")));
  EXPECT_THAT(answer.text, ContainsRegex("not at their ends when the time was over: seeds [0-9]+"));
  EXPECT_THAT(answer.text, HasSubstr("findings: 0"));
}

TEST_F(Hunt, a_signal_ends_it_with_the_sums_and_the_usual_status) {
  for (const char* const signal : {"INT", "TERM"}) {
    const Answer clean = hunt_until(signal, 2, "--programs 1000000 --jobs 2" + out());
    EXPECT_EQ(clean.code, 0);
    EXPECT_THAT(clean.text, HasSubstr(" calls of pools"));
    EXPECT_EQ(sums(), clean.text);
    const Answer found = hunt_until(signal, 4, kLong + out());
    EXPECT_EQ(found.code, 1);
    EXPECT_THAT(found.text, ContainsRegex("seed 3 shrunk from .*, until the time was over: hang"));
    EXPECT_THAT(found.text, HasSubstr("findings: 1"));
  }
}

TEST_F(Hunt, a_hunt_that_is_killed_leaves_the_sums_of_the_second_before) {
  hunt_until("KILL", 4, "--programs 1000000 --jobs 2" + out());
  EXPECT_THAT(sums(), HasSubstr(" calls of pools"));
  EXPECT_THAT(sums(), HasSubstr("findings: 0"));
}

// The processes inherit the folder in their environment, and would hang beyond the patience of this
// test.
TEST_F(Hunt, no_process_outlives_a_hunt_that_is_killed) {
  const std::string folder = out().substr(out().find('/'));
  const auto started = [&](bool is_other) {
    std::size_t number = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc"))
      number += text_of(each.path() / "environ").find("TMPDIR=" + folder) != std::string::npos &&
                        (text_of(each.path() / "cmdline").find("--actor") != std::string::npos) ==
                            is_other
                    ? 1
                    : 0;
    return number;
  };
  const auto comes = [](auto&& is_so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (is_so()) return true;
      usleep(10'000);
    }
    return false;
  };
  const std::string hunt =
      shell("TMPDIR=" + folder + " " VPMM_HUNT " --first 7 --step 7 --jobs 2" +
            " --plant hangs --patience 3600 --programs 9" + out() + " > /dev/null 2>&1 & echo $!")
          .text;
  EXPECT_TRUE(comes([&] { return started(false) >= 3 && started(true) >= 2; }));
  ASSERT_EQ(kill(static_cast<pid_t>(std::stoi(hunt)), SIGKILL), 0);
  EXPECT_TRUE(comes([&] { return started(false) + started(true) == 0; }));
}

TEST_F(Hunt, a_large_step_leaves_out_no_program) {
  EXPECT_THAT(hunt("--programs 3 --step 4294967296" + out()).text, HasSubstr("3 programs in"));
}

TEST_F(Hunt, there_is_a_process_for_each_core) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ASSERT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
  const std::string programs = "--programs 4" + out();
  EXPECT_THAT(hunt(programs).text,
              HasSubstr(", " + std::to_string(CPU_COUNT(&usable)) + " at once,"));
  EXPECT_THAT(hunt(programs + " --jobs 3").text, HasSubstr(", 3 at once,"));
}

TEST_F(Hunt, wrong_arguments_are_refused) {
  for (const char* const wrong : {"", "--seconds 0", "--seconds soon", "--seed -1", "--jobs 0",
                                  "--seed 1 --seconds 1", "--plant nonsense --seed 1", "--nonsense",
                                  "--step 0 --programs 1", "--step 4294967297 --programs 1"}) {
    const Answer answer = hunt(wrong);
    EXPECT_NE(answer.code, 0) << wrong;
    EXPECT_THAT(answer.text, Not(HasSubstr("findings"))) << wrong;
    EXPECT_FALSE(answer.text.empty()) << wrong;
  }
}

}  // namespace
}  // namespace vpmm::hunt
