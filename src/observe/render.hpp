// observe: a pool's snapshot as a picture on one line, as text for people and as JSON for programs.
#pragma once

#include <string>

#include "observe/snapshot.hpp"

namespace vpmm::observe {

// Sizes in pages, lowest address first: [4] allocated, [-6] free, [*10] hole, [~2] zombie, [#1] in
// flight. A hole that ends a reservation is left out (it is usually terabytes of nothing); a bar
// separates reservations. "[]": all is hole. A size that is no whole number of pages has a unit:
// [100B], [5MiB].
std::string picture(const PoolSnapshot& snapshot);

// Every figure, one per line: name, value, meaning.
std::string to_text(const Statistics& statistics);
// The figures, the picture, then every region in ascending address order: address, bytes, notation,
// what was asked for, stamp.
std::string to_text(const PoolSnapshot& snapshot);

// One JSON object; the keys are the names in statistics.def. No line breaks.
std::string to_json(const Statistics& statistics);
// Addresses are strings ("0x7f0000000000"), because JSON numbers lose bits beyond 2^53 in many
// readers.
std::string to_json(const PoolSnapshot& snapshot);

}  // namespace vpmm::observe
