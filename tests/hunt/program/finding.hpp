// SPDX-License-Identifier: Apache-2.0
// hunt: what is said of a program that failed: the shortest one that is found, as code and as C.
#pragma once

#include <cstdio>
#include <string>

#include "hunt/program/course.hpp"

namespace vpmm::hunt {

// Makes the program small until `end_s`, and writes it to `out` and in C into `folder`.
struct Telling {
  Habits habits;
  std::string folder;
  double end_s = 0;
};
void tell(const Suspect& suspect, const Telling& telling, std::FILE* out);

}  // namespace vpmm::hunt
