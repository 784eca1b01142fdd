// judge: random programs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "judge/program.hpp"

namespace vpmm::judge {

// The same for the same seed: first a setting and the program's habits, then operations that keep
// to them.
Program random_program(std::uint64_t seed, std::size_t operations);

}  // namespace vpmm::judge
