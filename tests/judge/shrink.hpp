// judge: a failing program made small.
#pragma once

#include <functional>
#include <string>

#include "judge/program.hpp"

namespace vpmm::judge {

// The failure of a program; empty: none.
using Verdict = std::function<std::string(const Program&)>;

// "overlap" of "overlap: 512 bytes ...": leaving things out must not lead to another failure.
std::string kind_of(const std::string& failure);

// Leaves out and makes smaller all that the failure does not need.
Program shrunk(Program program, const Verdict& verdict);

}  // namespace vpmm::judge
