// SPDX-License-Identifier: Apache-2.0
// hunt: a random program in a child process, so that a crash or a hang is an answer, too.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

#include "property/world.hpp"

namespace vpmm::hunt {

using property::Program;
Program program_of(std::uint64_t seed);

// In memory that the processes share.
struct Totals {
  std::uint64_t programs = 0;
  std::uint64_t operations = 0;
  property::Figures figures;
  double cpu_seconds = 0;
};
void add(Totals& sum, const Totals& each);
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

double now_s();
pid_t forked();  // as fork(); the child ends with its parent
// For a process that plays programs. Its parent alone hears of SIGTERM.
void become_child();
// Ends the process if the program does, or failed.
void play(const Program& program, double patience_s, Slot& slot, const property::Watch& watch);
// The failure of a child that ended: "hazard: ...", "signal 6", "hang"; empty: none.
std::string told(int status, const Slot& slot);

// Runs one program in a child, which a signal to end the hunt ends, too. Returns its first failure.
// `script`: file for its text in C, or -1. The child's own messages appear if they are `shown`.
enum class Messages { shown, dropped };
std::string failure_of(const Program& program, const Habits& habits, Messages messages,
                       int script = -1);

}  // namespace vpmm::hunt
