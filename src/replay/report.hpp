// replay: results as JSON lines for programs, and as a table with its reading for people.
#pragma once

#include <span>
#include <string>

#include "replay/replay.hpp"

namespace vpmm::replay {

// One JSON object on one line, no line feed. The keys are part of the command line's promise: they
// and their order stay. Times are microseconds with three decimals at most; `hazards` is null where
// nobody checks, and the keys of a fit are null where none was looked for or found. The kinds of
// calls are named as in driver/calls.def.
std::string to_json(const ReplayResult& result);

// One row per result. The footprint of the simulator's cuda-async, a stand-in for the real one, is
// left out.
std::string table(std::span<const ReplayResult> results);

// One row per result and kind of call that its allocator made: how many, and what they took.
std::string calls_table(std::span<const ReplayResult> results);

// One row per result: its fit, and what that is over what lived, in pages.
std::string fit_table(std::span<const ReplayResult> results);

// What the table says, in a sentence per trace: what the pool held for what was live, and what that
// cost compared with the other allocators of the same trace and driver, stand-ins left out. Empty
// when no result is a pool's.
std::string summary(std::span<const ReplayResult> results);

}  // namespace vpmm::replay
