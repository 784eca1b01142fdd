// property tests: random programs on random machines keep every promise: no hazard, no broken
// invariant, nothing left.
//
// VPMM_SOAK_OPERATIONS: how many operations in all. VPMM_SOAK_FIRST_SEED: where to begin, so that
// several processes share a soak. VPMM_SEED: replays one seed and prints its operations.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "property/dice.hpp"
#include "support/watchdog.hpp"

namespace vpmm::property {
namespace {

constexpr std::size_t kOperationsPerSeed = 1500;
constexpr std::uint64_t kOperations = 200'000;
constexpr std::uint64_t kOnceFailed[] = {475, 3475, 4735};

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::stoull(text);
}

std::string replay_command(std::uint64_t seed) {
  return fmt::format("VPMM_SEED={} {} --gtest_filter=PoolProperty.*", seed,
                     program_invocation_name);
}

// An abort inside a seed must name it, too; the watchdog ends a hang with one.
std::string& running_seed() {
  static std::string text;
  return text;
}

void tell_seed(int signal) {
  const std::string& text = running_seed();
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// "hazard" of "hazard: use after free: ...": leaving operations out must not lead to another
// failure.
std::string kind(const std::string& failure) { return failure.substr(0, failure.find(':')); }

// Leaves out what the failure does not need, in ever smaller pieces.
std::vector<Operation> shrunk(const Scene& scene, std::vector<Operation> operations,
                              const std::string& failure) {
  for (std::size_t piece = operations.size() / 2; piece > 0; piece /= 2) {
    for (std::size_t at = 0; at < operations.size();) {
      std::vector<Operation> fewer = operations;
      const std::size_t end = std::min(at + piece, fewer.size());
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at),
                  fewer.begin() + static_cast<std::ptrdiff_t>(end));
      if (kind(failure_of(scene, fewer)) != kind(failure))
        at += piece;
      else
        operations = std::move(fewer);
    }
  }
  return operations;
}

std::string as_code(const Scene& scene, const std::vector<Operation>& operations) {
  std::string code = to_code(scene) + "failure_of(scene, {\n";
  for (const Operation& operation : operations) code += "    " + to_code(operation) + ",\n";
  return code + "});\n";
}

std::string failure_of_seed(std::uint64_t seed) {
  Dice dice(seed);
  const Scene scene = dice.scene();
  const std::vector<Operation> operations = dice.program(kOperationsPerSeed);
  running_seed() = "\nin: " + replay_command(seed) + "\n";
  const std::string failure = failure_of(scene, operations);
  if (failure.empty()) return "";
  const std::vector<Operation> few = shrunk(scene, operations, failure);
  return fmt::format("{}\nReplay: {}\nShrunk: {}\n{}", failure, replay_command(seed),
                     failure_of(scene, few), as_code(scene, few));
}

void report(const std::string& failure) {
  if (!failure.empty()) ADD_FAILURE() << failure;
}

TEST(PoolProperty, random_programs_meet_no_hazard_and_leave_nothing_behind) {
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, tell_seed);
  test::Watchdog watchdog("random programs");
  const test::Watchdog::Watched watched(watchdog, "the program");
  if (const std::uint64_t seed = environment("VPMM_SEED", 0); seed != 0) {
    Dice dice(seed);
    const Scene scene = dice.scene();
    fmt::print("{}", as_code(scene, dice.program(kOperationsPerSeed)));
    report(failure_of_seed(seed));
  } else {
    const std::uint64_t seeds =
        environment("VPMM_SOAK_OPERATIONS", kOperations) / kOperationsPerSeed;
    const std::uint64_t first = environment("VPMM_SOAK_FIRST_SEED", 1);
    for (const std::uint64_t once : kOnceFailed) report(failure_of_seed(once));
    for (std::uint64_t next = first; next < first + seeds && !HasFailure(); ++next)
      report(failure_of_seed(next));
  }
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, SIG_DFL);
}

}  // namespace
}  // namespace vpmm::property
