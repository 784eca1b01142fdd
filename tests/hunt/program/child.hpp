// hunt: random programs in child processes, so that a crash or a hang is an answer, too.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "property/world.hpp"

namespace vpmm::hunt {

using property::Program;
Program program_of(std::uint64_t seed);

// In memory that the processes share.
struct Totals {
  std::uint64_t programs = 0;
  std::uint64_t operations = 0;
  property::Figures figures;
};
struct Slot {
  std::uint64_t seed = 0;  // that runs
  Totals totals;           // of programs that ended
  std::array<char, 4096> failure{};
};

// What all children do alike.
struct Habits {
  property::Defect defect = property::Defect::none;
  double patience_s = 60;  // that one program may take
  std::size_t operations_per_check = 256;
};

// Runs one program in a child. Returns its first failure: "hazard: ...", "signal 6", "hang"; empty:
// none. `script`: file for its text in C, or -1. The child's own messages appear if `is_loud`.
enum class Messages { shown, dropped };
std::string failure_of(const Program& program, const Habits& habits, Messages messages,
                       int script = -1);

// Runs programs of consecutive seeds in several children until the time or the number is over.
struct Course {
  std::uint64_t first_seed = 1;
  std::uint64_t programs = ~std::uint64_t{0};
  double seconds = 1e9;
  unsigned jobs = 1;
};
struct Suspect {
  std::uint64_t seed = 0;
  std::string failure;
};
struct Outcome {
  Totals totals;
  std::vector<Suspect> suspects;
  double seconds = 0;
  double cpu_seconds = 0;  // of all processes
};
// Ends early at `kMostSuspects`.
constexpr std::size_t kMostSuspects = 1000;
Outcome run(const Course& course, const Habits& habits);

}  // namespace vpmm::hunt
