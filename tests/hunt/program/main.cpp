// SPDX-License-Identifier: Apache-2.0
// hunt: random programs against pools on the simulator, until the time is over.
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "hunt/program/course.hpp"
#include "hunt/program/finding.hpp"
#include "hunt/program/summary.hpp"
#include "ipc/actor.hpp"

namespace vpmm::hunt {
namespace {

constexpr std::uint64_t kLargestStep = std::uint64_t{1} << 32;  // for four billion seeds at least

struct Options {
  Course course;
  std::uint64_t seed = 0;
  std::string folder = ".";
};

unsigned cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  return sched_getaffinity(0, sizeof usable, &usable) == 0
             ? static_cast<unsigned>(CPU_COUNT(&usable))
             : 1;
}

// A reader of the file finds all sums of one time.
void keep(const Outcome& outcome, const std::string& folder) {
  const std::string path = folder + "/sums.txt";
  std::filesystem::create_directories(folder);
  std::ofstream(path + ".new") << summary_of(outcome);
  std::filesystem::rename(path + ".new", path);
}

// For the sockets of this process and its children, beside those of other programs.
class SocketFolder {
 public:
  SocketFolder() {
    if (mkdtemp(path_.data()) != nullptr) setenv("VPMM_IPC_DIR", path_.c_str(), 1);
  }
  ~SocketFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "vpmm-hunt-XXXXXX";
};

int hunt(const Options& options) {
  const SocketFolder sockets;
  Course course = options.course;
  if (options.seed != 0) {
    course.first_seed = options.seed;
    course.programs = course.jobs = 1;
  }
  const Keeper keeper = [&](const Outcome& outcome) {
    if (options.seed == 0) keep(outcome, options.folder);  // a hunt's sums stay
  };
  const Outcome outcome = run(
      course,
      [&](const Suspect& suspect, double end_s, std::FILE* out) {
        tell(suspect, {course.habits_of(suspect.seed), options.folder, end_s}, out);
      },
      keeper);
  keeper(outcome);
  fmt::print("{}", summary_of(outcome));
  return outcome.kinds.empty() ? 0 : 1;
}

void add_options(CLI::App& app, Options& options) {
  auto* const seconds = app.add_option("--seconds", options.course.seconds, "time of the hunt")
                            ->check(CLI::PositiveNumber);
  auto* const programs =
      app.add_option("--programs", options.course.programs, "programs, if no time is given")
          ->check(CLI::PositiveNumber);
  auto* const seed = app.add_option("--seed", options.seed, "runs the program of this seed alone")
                         ->check(CLI::PositiveNumber);
  app.add_option("--first", options.course.first_seed, "the first seed; 1 if it is not given")
      ->check(CLI::PositiveNumber);
  app.add_option("--step", options.course.step,
                 "from seed to seed; 7 from a multiple of 7 on: all share with another process")
      ->check(CLI::Range(std::uint64_t{1}, kLargestStep));
  options.course.jobs = cores();
  app.add_option("--jobs", options.course.jobs, "processes at once; one per core without it")
      ->check(CLI::Range(1, 256));
  app.add_option("--out", options.folder, "folder for programs in C, and for sums.txt");
  app.add_option("--patience", options.course.habits.patience_s,
                 "seconds that one program may take")
      ->check(CLI::PositiveNumber);
  using property::Defect;
  const std::map<std::string, Defect> defects{{"none", Defect::none},
                                              {"uses-untold", Defect::uses_untold},
                                              {"crashes", Defect::crashes},
                                              {"hangs", Defect::hangs}};
  app.add_option("--plant", options.course.planted, "defects of the programs in turn, for tests")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(defects));
  seed->excludes(seconds)->excludes(programs);
}

}  // namespace
}  // namespace vpmm::hunt

int main(int argc, char** argv) {
  vpmm::ipc_test::act(argc, argv);  // returns in a hunt
  CLI::App app("Random programs against pools on the simulated GPU, with every promise checked");
  vpmm::hunt::Options options;
  vpmm::hunt::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  if (app.count("--seconds") + app.count("--programs") + app.count("--seed") == 0) {
    std::fputs("vpmm_hunt: name --seconds, --programs or --seed\n", stderr);
    return 2;
  }
  return vpmm::hunt::hunt(options);
}
