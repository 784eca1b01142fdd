// hunt: random programs against pools on the simulator, until the time is over.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "hunt/program/child.hpp"
#include "hunt/program/shrink.hpp"
#include "hunt/program/summary.hpp"

namespace vpmm::hunt {
namespace {

constexpr std::size_t kMostRuns = 2000;
constexpr std::size_t kMostTold = 3;  // findings of a kind that are shrunk
constexpr double kPatienceOfShrinking = 5;

struct Options {
  Course course;
  Habits habits;
  std::uint64_t seed = 0;
  std::string folder = ".";
};

std::string code_of(const Program& program) {
  std::string code = property::to_code(program.scene);
  for (const property::Operation& each : program.operations)
    code += "  " + property::to_code(each) + "\n";
  return code;
}

// Writes the program in C, and returns its path.
std::string write_script(const Program& program, std::uint64_t seed, const Options& options) {
  std::filesystem::create_directories(options.folder);
  const std::string path = fmt::format("{}/hunt-{}.c", options.folder, seed);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  if (file < 0) return "";
  failure_of(program, options.habits, Messages::dropped, file);
  close(file);
  return path;
}

// A stream that is made, or a variable that is defined, and nothing else names it.
bool is_unused(const std::string& line, const std::string& text) {
  std::string name;
  if (line.rfind("  s[", 0) == 0) name = line.substr(2, line.find(']') - 1);
  if (const std::size_t bracket = line.find('['); line.rfind("static ", 0) == 0)
    name = line.substr(bracket - 1, 2);  // "s["
  if (name == "l[") return false;        // of pools
  return !name.empty() && text.find(name) == text.rfind(name);
}

// Leaves out what nothing uses, and ends the text of a program that crashed.
std::string completed(const std::string& path, const std::string& failure) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!text.ends_with("}\n"))
    text += fmt::format("\n  /* found here: {} */\n  return stage_end();\n}}\n", failure);
  std::string few;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!is_unused(line, text)) few += line + "\n";
  std::ofstream(path) << few;
  return few;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A failure that does not come again by itself depends on the programs before it in its process.
void tell(const Suspect& suspect, const Options& options) {
  fmt::print("finding: seed {}: {}\n", suspect.seed, suspect.failure);
  const Program program = program_of(suspect.seed);
  Habits hasty = options.habits;
  hasty.operations_per_check = 1;  // the failure appears where it happens, unless a look mends it
  std::string again = failure_of(program, hasty, Messages::shown);
  if (again.empty()) {
    hasty.operations_per_check = options.habits.operations_per_check;
    again = failure_of(program, hasty, Messages::shown);
  }
  if (again.empty()) {
    fmt::print("  the program of the seed alone does not fail: run the seeds before it, too\n");
    return;
  }
  hasty.patience_s = std::min(hasty.patience_s, kPatienceOfShrinking);  // a hang costs it each time
  const Verdict verdict = [&](const Program& each) {
    return failure_of(each, hasty, Messages::dropped);
  };
  const Program few = shrunk(program, again, verdict, kMostRuns);
  const std::string failure = verdict(few);
  fmt::print("  again: ./dev hunt --seed {}\n  shrunk from {} operations to {}: {}\n{}",
             suspect.seed, program.operations.size(), few.operations.size(), failure, code_of(few));
  const std::string path = write_script(few, suspect.seed, options);
  if (path.empty()) return;
  fmt::print("in C, {}:\n{}", path, completed(path, failure));
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
  const Outcome outcome = run(course, options.habits);
  std::map<std::string, std::size_t> told;  // by kind
  for (const Suspect& each : outcome.suspects) {
    if (++told[kind_of(each.failure)] <= kMostTold)
      tell(each, options);
    else
      fmt::print("finding, too: seed {}: {}\n", each.seed, first_line(each.failure));
  }
  fmt::print("{}findings: {}\n", summary_of(outcome), outcome.suspects.size());
  return outcome.suspects.empty() ? 0 : 1;
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
  app.add_option("--jobs", options.course.jobs, "processes at once")->check(CLI::Range(1, 256));
  app.add_option("--out", options.folder, "folder for programs in C");
  app.add_option("--patience", options.habits.patience_s, "seconds that one program may take")
      ->check(CLI::PositiveNumber);
  using property::Defect;
  const std::map<std::string, Defect> defects{
      {"uses-untold", Defect::uses_untold}, {"crashes", Defect::crashes}, {"hangs", Defect::hangs}};
  app.add_option("--plant", options.habits.defect, "a defect that the programs have, for tests")
      ->transform(CLI::CheckedTransformer(defects));
  seed->excludes(seconds)->excludes(programs);
}

}  // namespace
}  // namespace vpmm::hunt

int main(int argc, char** argv) {
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
