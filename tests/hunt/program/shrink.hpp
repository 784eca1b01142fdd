// SPDX-License-Identifier: Apache-2.0
// hunt: the shortest program that is found to fail in the same way.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "hunt/program/child.hpp"

namespace vpmm::hunt {

using Verdict = std::function<std::string(const Program&)>;

// "hazard" of "hazard: use after free: ...": a smaller program must not fail in another way.
std::string kind_of(const std::string& failure);
// Leaves out operations, then makes the scene and the arguments simple, until nothing changes or
// after `most_runs`. The result depends on the program and the verdicts alone.
Program shrunk(Program program, const std::string& failure, const Verdict& verdict,
               std::size_t most_runs);

}  // namespace vpmm::hunt
