// SPDX-License-Identifier: Apache-2.0
// tests: programs that nobody wrote: sizes and lifetimes at random, for promises about every
// program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>

#include "observe/trace_file.hpp"

namespace vpmm::replay {

struct RandomProgram {
  std::uint64_t seed = 1;
  std::size_t operations = 6000;
  std::size_t streams = 1;
  Bytes largest = kGiB;  // request
  Bytes most_live = 12 * kGiB;
};

void PrintTo(const RandomProgram& program, std::ostream* out);  // for GoogleTest

// Sizes are log-uniform from 256 B to the largest, half of them from a short list that the program
// keeps coming back to. Allocations live like a stack, like a queue, anyhow, or to the end. The
// program goes through phases, each with a level of live memory that it keeps to, in half of them
// the most, and a way of freeing that it prefers. Of sixteen frees one is on another stream.
// Depends on the options alone.
observe::Trace random_program(const RandomProgram& program);

// As a file that `vpmm replay` reads.
void write_trace(const observe::Trace& trace, const std::string& path);

}  // namespace vpmm::replay
