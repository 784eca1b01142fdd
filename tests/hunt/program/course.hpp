// SPDX-License-Identifier: Apache-2.0
// hunt: programs of consecutive seeds in several children at once. The time, and signals, end all
// of it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "hunt/program/child.hpp"

namespace vpmm::hunt {

struct Course {
  std::uint64_t first_seed = 1;
  std::uint64_t step = 1;  // from seed to seed
  std::uint64_t programs = ~std::uint64_t{0};
  double seconds = 1e9;
  unsigned jobs = 1;
  Habits habits;
  std::vector<property::Defect> planted;  // in turn, by seed; empty: none
  Habits habits_of(std::uint64_t seed) const;
};

struct Suspect {
  std::uint64_t seed = 0;
  std::string failure;
};
// Failures that differ in numbers alone.
struct Kind {
  std::string name;
  Suspect first;
  std::vector<std::uint64_t> seeds;
};
struct Outcome {
  Totals totals;
  std::vector<Kind> kinds;
  std::vector<std::uint64_t> unfinished;  // seeds that ran on when the time was over
  double seconds = 0;
  unsigned jobs = 0;
};
std::size_t findings_of(const Outcome& outcome);

// Writes what is to be said of the first failure of a kind. A child calls it, and soon ends after
// `end_s` or a signal.
using Teller = std::function<void(const Suspect& suspect, double end_s, std::FILE* out)>;
// Hears of the sums now and then.
using Keeper = std::function<void(const Outcome& so_far)>;

// A finding takes the place of a child for up to a quarter of the time that is left. Ends early at
// `kMostFindings`.
constexpr std::size_t kMostFindings = 1000;
Outcome run(const Course& course, const Teller& teller, const Keeper& keeper);

}  // namespace vpmm::hunt
