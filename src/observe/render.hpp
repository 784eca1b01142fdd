// SPDX-License-Identifier: Apache-2.0
// observe: a pool's snapshot as a picture on one line, as text for people and as JSON for programs.
#pragma once

#include <string>

#include "observe/snapshot.hpp"

namespace vpmm::observe {

// Sizes in pages, lowest address first: [4] allocated, [-6] free, [*10] hole, [~2] zombie, [#1] in
// flight. Leaves out the hole at the end of a reservation, usually terabytes; a bar separates
// reservations. "[]": only holes. A size in broken pages has a unit: [100B], [5MiB].
std::string picture(const PoolSnapshot& snapshot);

// Every figure, one per line: name, value, meaning.
std::string to_text(const Statistics& statistics);
// Figures, picture, then every region by address: address, bytes, notation, requested bytes, stamp.
std::string to_text(const PoolSnapshot& snapshot);

// One JSON object; the keys are the names in statistics.def. No line breaks.
std::string to_json(const Statistics& statistics);
// Same for a snapshot. Addresses are strings ("0x7f0000000000"), because JSON numbers lose bits
// beyond 2^53 in many readers.
std::string to_json(const PoolSnapshot& snapshot);

}  // namespace vpmm::observe
