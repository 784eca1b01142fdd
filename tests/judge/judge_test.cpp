// judge: random programs, and those in files, keep every promise of the pool.
//
// VPMM_JUDGE_PROGRAMS: how many random programs. VPMM_SEED: the first, or with
// VPMM_JUDGE_PROGRAMS=1 the only one. VPMM_JUDGE_FILE: a program to run instead of those in
// tests/judge/programs. VPMM_JUDGE_GOES_ON: failures end nothing.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "judge/generator.hpp"
#include "judge/shrink.hpp"
#include "judge/trial.hpp"
#include "support/repository_path.hpp"
#include "support/watchdog.hpp"

namespace vpmm::judge {
namespace {

constexpr std::size_t kOperationsPerProgram = 600;
constexpr std::uint64_t kPrograms = 250;

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const std::string text = environment(name);
  return text.empty() ? otherwise : std::stoull(text);
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// An abort inside a program must name it, too; the watchdog ends a hang with one.
std::string& running() {
  static std::string text;
  return text;
}

void tell_running(int signal) {
  const std::string& text = running();
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Judge : public testing::Test {
 protected:
  Judge() : watchdog_("a program"), watched_(watchdog_, "the program") {
    for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, tell_running);
  }
  ~Judge() override {
    for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, SIG_DFL);
  }

 private:
  test::Watchdog watchdog_;
  test::Watchdog::Watched watched_;
};

void expect_no_failure_of_seed(std::uint64_t seed) {
  const std::string command =
      fmt::format("VPMM_SEED={} VPMM_JUDGE_PROGRAMS=1 {} --gtest_filter=Judge.random*", seed,
                  program_invocation_name);
  running() = "\nin: " + command + "\n";
  const Program program = random_program(seed, kOperationsPerProgram);
  const std::string failure = failure_of(program, Look::sometimes);
  if (failure.empty()) return;
  const Verdict verdict = [](const Program& each) { return failure_of(each, Look::always); };
  const Program few = shrunk(program, verdict);
  ADD_FAILURE() << failure << "\nReplay: " << command
                << "\nShrunk: " << failure_of(few, Look::always) << "\n"
                << to_text(few);
}

void expect_no_failure_of_file(const std::filesystem::path& path) {
  running() = "\nin: " + path.string() + "\n";
  std::string problem;
  const auto program = read_program(text_of(path), problem);
  ASSERT_TRUE(program) << path << ": " << problem;
  EXPECT_EQ(failure_of(*program, Look::always), "") << path;
}

TEST_F(Judge, random_programs_agree_with_a_naive_allocator) {
  const std::uint64_t first = environment("VPMM_SEED", 1);
  const std::uint64_t programs = environment("VPMM_JUDGE_PROGRAMS", kPrograms);
  const bool goes_on = !environment("VPMM_JUDGE_GOES_ON").empty();
  for (std::uint64_t seed = first; seed < first + programs && (goes_on || !HasFailure()); ++seed)
    expect_no_failure_of_seed(seed);
}

TEST_F(Judge, programs_in_files_agree_with_a_naive_allocator) {
  if (const std::string file = environment("VPMM_JUDGE_FILE"); !file.empty())
    return expect_no_failure_of_file(file);
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(repository_path("tests/judge/programs")))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) expect_no_failure_of_file(file);
}

TEST_F(Judge, a_program_reads_as_it_was_printed) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const Program program = random_program(seed, 200);
    std::string problem;
    const auto read = read_program(to_text(program), problem);
    ASSERT_TRUE(read) << problem;
    EXPECT_EQ(read->operations, program.operations);
    EXPECT_EQ(to_text(*read), to_text(program));
  }
}

}  // namespace
}  // namespace vpmm::judge
