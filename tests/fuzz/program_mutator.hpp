// SPDX-License-Identifier: Apache-2.0
// fuzz tests: bytes of programs of the hunt, changed draw by draw and step by step.
#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/targets.hpp"

namespace vpmm::fuzz {

// Bytes that a program of the hunt takes for one number.
inline constexpr std::size_t kDraw = 2;
// Most operations of a program, without those that come with them.
inline constexpr std::size_t kMostSteps = 300;

// The program of `input` after a few changes: whole steps left out, repeated, moved, made anew, or
// single draws changed. Whole draws, at least one, at most `most` bytes; bytes behind the program
// are left out. The same input and seed give the same result. Empty if `most` is less than a draw.
Contents changed_program(Input input, std::size_t most, std::uint32_t seed);

// The program of one input with steps of the other's. Sizes as above.
Contents crossed_programs(Input one, Input other, std::size_t most, std::uint32_t seed);

}  // namespace vpmm::fuzz
