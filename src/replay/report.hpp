// SPDX-License-Identifier: Apache-2.0
// replay: results as JSON lines for programs, and as a table with its reading for people.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "replay/replay.hpp"

namespace vpmm::replay {

// One JSON object on one line, no line feed. The command line promises the keys and their order.
// Times are microseconds with three decimals at most; `hazards` is null if unchecked, and the keys
// of a fit if none was sought or found. Kinds of calls are named as in driver/calls.def.
std::string to_json(const ReplayResult& result);

// Tables of one row per result or call. A table wider than `columns` becomes a paragraph for each
// row, of which no figure is broken.
using Columns = std::optional<std::size_t>;

// One row per result. Leaves out the footprint of the simulator's cuda-async, a stand-in for the
// real one.
std::string table(std::span<const ReplayResult> results, Columns columns = std::nullopt);

// One row per result and kind of call of its allocator: count and durations.
std::string calls_table(std::span<const ReplayResult> results, Columns columns = std::nullopt);

// One row per result: its fit, and the ratio to live memory in pages.
std::string fit_table(std::span<const ReplayResult> results, Columns columns = std::nullopt);

// A sentence per trace: memory that the pool held for live memory, and its cost against the other
// allocators of the same trace and driver, without stand-ins. Empty without a pool's result.
std::string summary(std::span<const ReplayResult> results);

}  // namespace vpmm::replay
