// SPDX-License-Identifier: Apache-2.0
// hunt: programs that failed, made small.
#include "hunt/program/finding.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "hunt/program/shrink.hpp"
#include "hunt/program/signals.hpp"

namespace vpmm::hunt {
namespace {

constexpr std::size_t kMostRuns = 2000;
constexpr double kPatience = 5;  // of each run: a hang costs it each time
constexpr std::size_t kNever = ~std::size_t{0};
constexpr double kLeastPatience = 0.5;

std::string code_of(const Program& program) {
  std::string code = property::to_code(program.scene);
  for (const property::Operation& each : program.operations)
    code += "  " + property::to_code(each) + "\n";
  return code;
}

// Writes the program in C, and returns its path.
std::string write_script(const Program& program, std::uint64_t seed, const Telling& telling) {
  std::filesystem::create_directories(telling.folder);
  const std::string path = fmt::format("{}/hunt-{}.c", telling.folder, seed);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  if (file < 0) return "";
  failure_of(program, telling.habits, Messages::dropped, file);
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

// Runs of a program and of smaller ones, as long as there is time.
class Trial {
 public:
  explicit Trial(double end_s) : end_s_(end_s) {}

  bool is_over() const { return is_stopped() || now_s() >= end_s_; }

  // Empty where the time is over, or is too short to tell a hang from a program that goes on.
  std::string failure_of(const Program& program, Habits habits, Messages messages) const {
    if (is_over()) return "";
    const double left_s = end_s_ - now_s();
    const bool is_cut =
        left_s < std::exchange(habits.patience_s, std::min(habits.patience_s, left_s));
    const std::string failure = hunt::failure_of(program, habits, messages);
    return is_stopped() || (is_cut && kind_of(failure) == "hang") ? "" : failure;
  }

 private:
  const double end_s_;
};

}  // namespace

// A failure that does not come again by itself depends on the programs before it in its process.
void tell(const Suspect& suspect, const Telling& telling, std::FILE* out) {
  const Program program = program_of(suspect.seed);
  const Trial trial(telling.end_s);
  Habits hasty = telling.habits;
  std::string failure;
  for (const std::size_t each : {kNever, telling.habits.operations_per_check, std::size_t{1}}) {
    hasty.operations_per_check = each;  // fewer looks take less time, and a look may mend a failure
    failure = trial.failure_of(program, hasty, Messages::shown);
    if (!failure.empty()) break;
  }
  if (failure.empty())
    return fmt::print(out, "  seed {}: {}\n", suspect.seed,
                      trial.is_over()
                          ? "the time was over before it failed again"
                          : "its program alone does not fail: run the seeds before it, too");
  hasty.patience_s = std::min(hasty.patience_s, kPatience);
  const std::size_t rate = hasty.operations_per_check;
  const std::string kind = kind_of(failure);
  const Verdict verdict = [&](const Program& each) {
    std::string found = trial.failure_of(each, hasty, Messages::dropped);
    if (kind_of(found) == kind) failure = found;
    return found;
  };
  const Program few = shrunk(program, failure, verdict, kMostRuns);
  hasty.operations_per_check = 1;  // the failure appears where it happens, unless a look mends it
  if (kind_of(verdict(few)) != kind) hasty.operations_per_check = rate;
  fmt::print(out, "  seed {} shrunk from {} operations to {}{}: {}\n{}", suspect.seed,
             program.operations.size(), few.operations.size(),
             trial.is_over() ? ", until the time was over" : "", failure, code_of(few));
  wait_for_signal(0);  // one that came in the meantime would end the last run
  hasty.patience_s = std::min(hasty.patience_s, std::max(telling.end_s - now_s(), kLeastPatience));
  const std::string path = write_script(few, suspect.seed, {hasty, telling.folder, 0});
  if (!path.empty()) fmt::print(out, "in C, {}:\n{}", path, completed(path, failure));
}

}  // namespace vpmm::hunt
